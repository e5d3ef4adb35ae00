// Tells what a data argument names and opens it.
#include <filesystem>

#include "train/data/cifar.h"
#include "train/data/dataset.h"
#include "train/data/digits.h"
#include "train/data/idx.h"
#include "train/data/image_folder.h"
#include "train/data/random_data.h"
#include "train/data/resize.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

DataSplit resize_both(DataSplit split, int64_t side) {
  if (side == 0) return split;
  return {resized(std::move(split.train), side), resized(std::move(split.test), side)};
}

DataSplit open_folder(const std::string& folder, int64_t image_size) {
  // Where archives of MNIST and CIFAR-10, and PyTorch's downloads of them, put the files.
  for (const char* below : {"", "raw", "MNIST/raw", "cifar-10-batches-bin"}) {
    const fs::path place = fs::path(folder) / below;
    std::error_code error;
    if (!fs::is_directory(place, error)) continue;
    if (auto mnist = open_mnist(place.string())) return resize_both(std::move(*mnist), image_size);
    if (auto cifar = open_cifar_folder(place.string())) {
      return resize_both(std::move(*cifar), image_size);
    }
  }
  if (auto images = open_image_folder(folder, image_size)) return std::move(*images);
  throw InvalidArgument(detail::concat(
      "data: ", folder,
      ": nothing recognised; needed are MNIST's IDX files "
      "(train-images-idx3-ubyte, ...), CIFAR-10's binary files (data_batch_1.bin, ...), or class "
      "folders of .jpg or .png images, in train and test folders or alone"));
}

}  // namespace

DataSplit open_data(const std::string& spec, const DataOptions& options) {
  CHECK_ARG(options.image_size >= 0 && options.image_size <= kMaxImageSize,
            "data: image size must be from 1 to ", kMaxImageSize,
            ", or 0 for that of the files, got ", options.image_size);
  if (spec.empty()) return resize_both(make_digits(options.seed), options.image_size);
  if (spec.starts_with("random:")) {
    const RandomDataSpec random = parse_random_spec(spec);
    CHECK_ARG(options.image_size == 0 || (random.shape.height == options.image_size &&
                                          random.shape.width == options.image_size),
              "data: ", spec, " gives its own size, but the image size asked for is ",
              options.image_size);
    return random_data(random, options.seed);
  }
  std::error_code error;
  CHECK_ARG(fs::exists(spec, error), "data: ", spec, ": no such folder");
  CHECK_ARG(fs::is_directory(spec, error), "data: ", spec,
            ": is a file, a folder is needed (unpack an archive first)");
  return open_folder(spec, options.image_size);
}

}  // namespace headroom
