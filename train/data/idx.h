// IDX files, the format of MNIST (yann.lecun.com/exdb/mnist), plain or gzipped whatever their name.
//
// An IDX file is: two zero bytes, a type byte (8: unsigned bytes, the only one taken here), the
// number of dimensions, each dimension as a big-endian 32-bit number, then the elements in
// row-major order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/data/dataset.h"

namespace headroom {

struct IdxArray {
  std::vector<int64_t> dims;
  std::vector<uint8_t> bytes;  // row-major
};

// Reads a whole file and checks it: type, `dimensions`, no dimension 0, and exactly the length that
// the header says. Nothing is allocated before the header is found plausible for the file's real
// size, so a header that asks for terabytes is refused; memory grows with the data that come, and a
// gzip file is never inflated past its header's claim. Throws InvalidArgument, with the expected
// and the found length.
IdxArray read_idx(const std::string& path, int dimensions);

// Image file [n, h, w] and label file [n] as one set of 1xHxW images of ten classes, normalised
// with MNIST's constants. Throws InvalidArgument if the counts differ or a label is over 9.
std::unique_ptr<Dataset> open_idx(const std::string& images_path, const std::string& labels_path,
                                  const std::string& name);

// The MNIST pair of a folder: {train,t10k}-{images-idx3,labels-idx1}-ubyte, also with a dot before
// idx, also with .gz behind. nullopt if the folder has no such file; throws InvalidArgument if one
// of the four is missing.
std::optional<DataSplit> open_mnist(const std::string& folder);

}  // namespace headroom
