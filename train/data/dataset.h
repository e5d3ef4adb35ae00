// Labelled image sets as `train` reads them: bytes in H,W,C order and a class number per image,
// with the constants that normalise them. `open_data` recognises what a `--data` argument names.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace headroom {

struct ImageShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;

  int64_t bytes() const { return channels * height * width; }
  bool operator==(const ImageShape&) const = default;
};

// What is known of a set before any pixel is read.
struct DatasetInfo {
  std::string name;  // for people: "mnist train", "photos (held out)"
  ImageShape shape;
  std::vector<std::string> class_names;  // the label is the index here
  // Per channel, of pixels scaled to [0, 1]: the network is fed (pixel / 255 - mean) / std.
  std::vector<float> mean, std;
  std::vector<std::string> warnings;  // things a person should hear once, at the start
};

// A set of images of one shape. All const members may be called from several threads at once.
class Dataset {
 public:
  // Throws Error unless the info is complete: a shape, a class, one mean and std per channel.
  explicit Dataset(DatasetInfo info);
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  const DatasetInfo& info() const { return info_; }
  const std::string& name() const { return info_.name; }
  const ImageShape& shape() const { return info_.shape; }
  const std::vector<std::string>& class_names() const { return info_.class_names; }
  int64_t classes() const { return static_cast<int64_t>(info_.class_names.size()); }
  const std::vector<std::string>& warnings() const { return info_.warnings; }

  virtual int64_t size() const = 0;

  // Writes the shape().bytes() pixels of image `index` to hwc [height, width, channels], u8.
  // Requires 0 <= index < size(). Throws DataError, naming the file, if the image cannot be read.
  virtual void read(int64_t index, uint8_t* hwc) const = 0;

  // In [0, classes()). Requires 0 <= index < size().
  virtual int64_t label(int64_t index) const = 0;

 private:
  DatasetInfo info_;
};

// A set whose images are bytes in memory, one after the other, each [height, width, channels].
class MemoryDataset : public Dataset {
 public:
  // Throws Error unless pixels.size() == labels.size() * shape.bytes() and labels are in range.
  MemoryDataset(DatasetInfo info, std::vector<uint8_t> pixels, std::vector<uint8_t> labels);

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  void read(int64_t index, uint8_t* hwc) const override;
  int64_t label(int64_t index) const override { return labels_[index]; }

 private:
  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
};

struct DataSplit {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> test;
};

constexpr int64_t kMaxImageSize = 8192;  // of a side that images are resized to

struct DataOptions {
  // Side of the square that images are resized to (see resize.h); 0 keeps the size of the files.
  int64_t image_size = 0;
  // Of the sets that are made up (the digits and `random:`). Not the seed of training: at its
  // default, runs with different training seeds see the same data.
  uint64_t seed = 0;
};

// Opens the training and the test set that `spec` names:
//   ""                          digits drawn from a built-in font: 10,000 and 2,000 of 1x28x28
//   DIR                         MNIST in IDX files, gzipped or not; CIFAR-10 in its binary
//                               version; or an image folder (idx.h, cifar.h and image_folder.h say
//                               what is read). The usual sub-folders are looked into as well: raw,
//                               MNIST/raw, cifar-10-batches-bin
//   random:CxHxW:CLASSES[:COUNT]  uniform random bytes and labels, for benchmarks
// Throws InvalidArgument if nothing is recognised or anything is wrong with what is. IDX and
// CIFAR-10 files are read whole and checked, of image files the headers are.
DataSplit open_data(const std::string& spec, const DataOptions& options = {});

// Reads a whole set, in parallel. pixels [size, height, width, channels], labels [size]. Throws
// what Dataset::read throws.
struct DatasetBytes {
  std::vector<uint8_t> pixels;
  std::vector<int64_t> labels;
};
DatasetBytes read_all(const Dataset& data);

}  // namespace headroom
