// Checks that every set shares, sets kept in memory, and reading a set whole.
#include "train/data/dataset.h"

#include <cstring>
#include <utility>

#include "core/base/parallel.h"

namespace headroom {

Dataset::Dataset(DatasetInfo info) : info_(std::move(info)) {
  const ImageShape& shape = info_.shape;
  CHECK(shape.channels > 0 && shape.height > 0 && shape.width > 0, info_.name, ": empty shape");
  CHECK(!info_.class_names.empty(), info_.name, ": no class");
  CHECK(static_cast<int64_t>(info_.mean.size()) == shape.channels, info_.name, ": mean");
  CHECK(static_cast<int64_t>(info_.std.size()) == shape.channels, info_.name, ": std");
}

MemoryDataset::MemoryDataset(DatasetInfo info, std::vector<uint8_t> pixels,
                             std::vector<uint8_t> labels)
    : Dataset(std::move(info)), pixels_(std::move(pixels)), labels_(std::move(labels)) {
  CHECK(static_cast<int64_t>(pixels_.size()) == size() * shape().bytes(), name(), ": ",
        pixels_.size(), " pixel bytes for ", size(), " labels");
  for (const uint8_t label : labels_) CHECK(label < classes(), name(), ": label ", int{label});
}

void MemoryDataset::read(int64_t index, uint8_t* hwc) const {
  const int64_t bytes = shape().bytes();
  std::memcpy(hwc, pixels_.data() + index * bytes, static_cast<size_t>(bytes));
}

DatasetBytes read_all(const Dataset& data) {
  const int64_t count = data.size(), bytes = data.shape().bytes();
  DatasetBytes all;
  all.pixels.resize(static_cast<size_t>(count * bytes));
  all.labels.resize(static_cast<size_t>(count));
  parallel_ranges(count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      data.read(i, all.pixels.data() + i * bytes);
      all.labels[static_cast<size_t>(i)] = data.label(i);
    }
  });
  return all;
}

}  // namespace headroom
