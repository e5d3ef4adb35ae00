// The order of training: which images make up each micro-batch of each optimizer step. A function
// of (size, options, position) alone, so a run can be stopped anywhere and go on with the same
// batches.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace headroom {

struct SamplerOptions {
  int64_t batch = 1;  // images of a micro-batch
  int64_t accum = 1;  // micro-batches of a window, that is, of an optimizer step
  // Images of a window, whose last micro-batch may then be short; 0: batch * accum. It keeps the
  // windows of a run as they are when its micro-batches change.
  int64_t window = 0;
  bool drop_last = false;  // leave out an epoch's last window if it is short of images
  bool shuffle = true;
  uint64_t seed = 0;
};

// Where the next window starts: `position` images into the order of `epoch`.
struct SamplerState {
  int64_t epoch = 0;
  int64_t position = 0;
  bool operator==(const SamplerState&) const = default;
};

// One forward and backward pass.
struct MicroBatch {
  std::vector<int64_t>
      indices;  // into the data set, in order; `batch` or, at an epoch's end, fewer
  int64_t epoch = 0;
  int64_t window = 0;          // since the epoch's start
  int64_t in_window = 0;       // which micro-batch of its window
  bool last_in_window = true;  // an optimizer step follows
  bool last_in_epoch = true;
  int64_t window_images = 0;  // of all micro-batches of the window: what the mean loss divides by
  // Where the next window starts. Saved after this window's optimizer step, it resumes exactly
  // there, however many batches were loaded ahead.
  SamplerState state_after_window;
};

class Sampler {
 public:
  // For a set of `size` images. Throws InvalidArgument if size, batch or accum is under 1, window
  // under 0, or if drop_last leaves no window at all ("there are no batches").
  Sampler(int64_t size, const SamplerOptions& options);

  const SamplerOptions& options() const { return options_; }
  int64_t windows_per_epoch() const;  // of an epoch run from its start
  int64_t batches_per_epoch() const;

  // The micro-batches of the next window, then moves on; epochs follow each other without end. All
  // windows have the same number of images but the last of an epoch. Micro-batches are full until
  // the window's images run out.
  std::vector<MicroBatch> next_window();

  const SamplerState& state() const { return state_; }
  // Throws InvalidArgument unless 0 <= epoch <= 2^62 and 0 <= position <= size. `batch` and
  // `accum` may differ from those the state was saved with.
  void restore(const SamplerState& state);

 private:
  bool window_starts_at(int64_t position) const;
  void normalise();  // moves to the next epoch if no window starts here
  void order_epoch(int64_t epoch);

  int64_t size_;
  SamplerOptions options_;
  SamplerState state_;
  std::vector<int64_t> order_;  // of epoch ordered_epoch_; empty without shuffle
  int64_t ordered_epoch_ = -1;
};

// The order of an epoch: a uniformly random permutation of 0 .. size - 1, drawn by Fisher and
// Yates' shuffle from Philox at (seed, epoch).
std::vector<int64_t> epoch_order(int64_t size, uint64_t seed, int64_t epoch);

// The seed of the random changes made to image `index` in `epoch`: independent of its place in the
// order, and of which thread or device handles it.
uint64_t augmentation_seed(uint64_t seed, int64_t epoch, int64_t index);

// Micro-batches one at a time; nullopt when there are no more.
using BatchSource = std::function<std::optional<MicroBatch>()>;

// The micro-batches of the next `windows` windows of `sampler`.
BatchSource batch_source(Sampler sampler, int64_t windows);

}  // namespace headroom
