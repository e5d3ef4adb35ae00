// CIFAR-10 in its binary version (www.cs.toronto.edu/~kriz/cifar.html): records of 3073 bytes, a
// label byte and then 32x32 red, green and blue planes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/data/dataset.h"

namespace headroom {

// The records of `paths`, in that order, as 3x32x32 images; planes become pixels. class_names must
// be ten. Throws InvalidArgument if a file's length is not a multiple of 3073, if one is empty, or
// if a label is over 9.
std::unique_ptr<Dataset> open_cifar(const std::vector<std::string>& paths,
                                    const std::vector<std::string>& class_names,
                                    const std::string& name,
                                    std::vector<std::string> warnings = {});

// data_batch_N.bin in the order of N, test_batch.bin, and, if there is one, batches.meta.txt with
// the ten class names. nullopt if the folder has no such file; throws InvalidArgument if training
// or test files are missing, if two training files have one number (data_batch_1, data_batch_01) or
// the same bytes. A gap in the numbers is a warning.
std::optional<DataSplit> open_cifar_folder(const std::string& folder);

}  // namespace headroom
