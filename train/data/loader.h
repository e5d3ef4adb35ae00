// Loads micro-batches ahead of the step that needs them: worker threads fill a fixed ring of host
// buffers, the consumer takes them strictly in order.
//
//   Loader loader(data, batch_source(sampler, steps), {.threads = 4, .max_batch = 64});
//   while (std::optional<Batch> batch = loader.next()) {
//     copy(batch->pixels, ...);         // may still be running when release is called later
//     loader.release(*batch);           // from here on the buffer is filled anew
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "train/data/dataset.h"
#include "train/data/sampler.h"

namespace headroom {

// Makes a host buffer of `bytes` bytes, aligned to 64, freed by the pointer's deleter.
using HostBuffer = std::shared_ptr<std::byte>;
using HostBufferFactory = std::function<HostBuffer(int64_t bytes)>;

// From the C++ heap.
HostBuffer heap_buffer(int64_t bytes);

constexpr int64_t kMaxLoaderThreads = 1024;

struct LoaderOptions {
  int64_t threads = 2;    // 0: images are read by next() itself
  int64_t slots = 3;      // buffers of the ring: batches in use or loaded ahead
  int64_t max_batch = 1;  // images that a buffer takes
  uint64_t seed = 0;      // of the augmentation seeds
  HostBufferFactory make_buffer = heap_buffer;  // for copies to a device: page-locked memory
};

// A loaded micro-batch. The pointers are into one slot's buffer and stay valid until it is
// released.
struct Batch {
  MicroBatch plan;
  int64_t count = 0;                             // images: plan.indices.size()
  const uint8_t* pixels = nullptr;               // [count, height, width, channels]
  const int64_t* labels = nullptr;               // [count]
  const uint64_t* augmentation_seeds = nullptr;  // [count], of (seed, plan.epoch, index)
  int64_t slot = 0;                              // which buffer, 0 .. slots - 1
};

// One consumer: next() and release() may be called from one thread at a time.
class Loader {
 public:
  // Borrows `data`, which must outlive the loader. Buffers are made here, by the calling thread.
  // `source` is called by any thread, but never twice at once, and in order.
  // Throws InvalidArgument if an option is out of range, and what make_buffer throws.
  Loader(const Dataset& data, BatchSource source, const LoaderOptions& options);
  // Waits for the images being read now and for no others. Buffers handed out become invalid.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch, waiting for it if need be; nullopt after the last. What batches hold depends on
  // data, source and seed, not on the number of threads.
  // If reading an image or the source itself threw, the exception is thrown here, in the place of
  // that batch (of several bad images of a batch, the one of the first), and again by every later
  // call. Throws InvalidArgument if the batch's slot is still held, so that waiting would never
  // end. Slots are used in turn: the slot is that of the batch `slots` before.
  std::optional<Batch> next();

  // Gives a batch's buffer back. Call it when nothing reads the buffer any more: after the copy
  // that does has ended, not when it was queued. Batches may be released in any order. Throws
  // InvalidArgument if the batch is not held.
  void release(const Batch& batch);

  // Bytes of one slot's buffer.
  int64_t slot_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headroom
