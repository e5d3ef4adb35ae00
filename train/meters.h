// Meters of a run: losses gathered on the device, peaks per phase, and the step clock. None of them
// waits for the device inside a step.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "core/tensor/tensor.h"
#include "train/trainer.h"

namespace headroom {

// Sums of losses. Those of micro-batches go into a ring on the device that is read when someone
// asks or it is full; they are added up on the host in double, so that long averages stay exact.
class LossMeter {
 public:
  void open(Device device);
  // Adds the summed loss (f32 [] on the device) of `count` samples, to the window or to a new one.
  void add(const Tensor& loss_sum, int64_t count, bool begin_window);

  // These wait for the device.
  double mean();  // per sample, of everything since restore(0, 0)
  double last_window_mean();
  double sum();
  double count() { return count_; }
  void restore(double sum, double count);

  // Before a window, and back to there if the window is given up.
  struct Mark {
    int64_t entries = 0, window_count = 0;
    double count = 0;
  };
  Mark mark() const { return {flushed_ + filled_, window_count_, count_}; }
  void restore(const Mark& mark);

 private:
  void flush();

  Tensor ring_;
  std::vector<bool> begins_;  // per entry of the ring: whether a window begins with it
  int64_t filled_ = 0;        // entries of the ring since the last flush
  int64_t flushed_ = 0;       // entries before them
  int64_t window_count_ = 0;  // samples of the last window
  double window_sum_ = 0;     // of its entries that were flushed
  double open_sum_ = 0;       // the same, until it joins sum_ when the next window begins
  double sum_ = 0, count_ = 0;
};

// Peaks of the device's allocator and of the host's per phase of a run.
class MemoryMeter {
 public:
  enum Phase : int { first_step, training, evaluation };

  // The peaks since the last call count for the phase that ran; `next` begins.
  void begin(Device device, Phase next);
  // After each optimizer step: the first one ends its phase.
  void end_of_step(Device device);
  // Forgets the peak since the last step or begin(): of an attempt that ran out of memory.
  void discard(Device device);
  void finish(Device device);
  // The most allocated in any training step so far, the running phase included.
  int64_t peak_of_steps(Device device) const;
  const PhasePeak& peak(Phase phase) const { return peaks_[static_cast<size_t>(phase)]; }
  // Of the steps after the first, or of the first if there was no other.
  const PhasePeak& peak_of_run() const { return peak(steps_ > 1 ? training : first_step); }

 private:
  void fold(Device device);
  static void reset(Device device);

  std::array<PhasePeak, 3> peaks_;
  Phase phase_ = first_step;
  int64_t steps_ = 0;
  bool running_ = false;
};

// Wall time of training, evaluation left out; the first step is left out of rates.
class StepClock {
 public:
  void start(Device device);  // waits for the device
  void step(Device device, int64_t images);
  void pause(Device device);  // waits for the device
  double seconds() const;     // so far, the first step included
  double step_ms() const;
  double images_per_s() const;

 private:
  using Clock = std::chrono::steady_clock;
  double since_start() const;

  Clock::time_point started_;
  bool running_ = false;
  double seconds_ = 0;        // of finished stretches
  double first_seconds_ = 0;  // of the first step
  int64_t steps_ = 0, images_ = 0, first_images_ = 0;
};

}  // namespace headroom
