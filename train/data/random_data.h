// Sets of random bytes with random labels, for measuring speed: real data must not be all zeros, on
// which GPUs run faster.
#pragma once

#include <cstdint>
#include <string>

#include "train/data/dataset.h"

namespace headroom {

struct RandomDataSpec {
  ImageShape shape;
  int64_t classes = 0;
  int64_t count = 0;
};

constexpr int64_t kRandomImages = 10000;  // of the training set, if the spec gives no count

// Parses random:CxHxW:CLASSES[:COUNT]. Throws InvalidArgument, quoting the form, if the text is not
// of it or a number is out of range (an image is at most 256 MiB).
RandomDataSpec parse_random_spec(const std::string& spec);

// COUNT training and max(1, COUNT / 5) test images. Image i is a window, chosen by (seed, split,
// i), of one block of uniform random bytes, so that serving it costs one copy; its label is uniform
// too. Normalised with the constants of uniform bytes: 0.5 and 0.2898.
DataSplit random_data(const RandomDataSpec& spec, uint64_t seed);

}  // namespace headroom
