// The device side of input: micro-batches of bytes arrive on the copy stream in fixed buffers, and
// are normalised (and cropped and mirrored, for training) on the device into the network's dtype
// and layout.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "core/tensor/tensor.h"
#include "train/config.h"
#include "train/data/dataset.h"
#include "train/data/loader.h"

namespace headroom {

// A micro-batch on the device, ready for the model.
struct InputBatch {
  Tensor images;  // [n,c,h,w], f16, bf16 or f32, in the layout asked for
  Tensor labels;  // i64 [n]
  MicroBatch plan;
  int64_t count = 0;
};

struct InputOptions {
  Device device;
  DType dtype = DType::f32;
  MemoryFormat layout = MemoryFormat::channels_last;
  bool crop = false;  // pad by 4 and crop at random
  bool flip = false;  // mirror left-right with probability 1/2
  bool resident = false;
  int64_t max_batch = 1;
  int64_t threads = 0;  // loading images
  uint64_t seed = 0;
};

// One pass over a source of micro-batches. Bytes are copied while the step before computes: two
// device buffers take turns, and a pinned ring of host buffers feeds them. With `resident`, the set
// lies on the device as bytes and only indices travel.
class DeviceInput {
 public:
  // Borrows `data`. Throws OutOfMemory when buffers (or the resident set) do not fit.
  DeviceInput(const Dataset& data, BatchSource source, const InputOptions& options);
  ~DeviceInput();
  DeviceInput(const DeviceInput&) = delete;
  DeviceInput& operator=(const DeviceInput&) = delete;

  // The next micro-batch, or nullopt after the last. Its images are a new tensor tagged as input;
  // its labels stay valid until the call after the next. Throws DataError for an image that cannot
  // be read.
  std::optional<InputBatch> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headroom
