// Meters.
#include "train/meters.h"

#include <algorithm>
#include <limits>

#include "core/ops/contract.h"

namespace headroom {
namespace {

constexpr int64_t kRingSize = 256;

Tensor entry_of(const Tensor& ring, int64_t index) {
  return detail::alias(ring, index, {}, {}, MemoryFormat::contiguous);
}

}  // namespace

void LossMeter::open(Device device) {
  const TagScope tag(Tag::other);
  ring_ = zeros({kRingSize}, {DType::f32, device});
  begins_.resize(kRingSize);
}

void LossMeter::add(const Tensor& loss_sum, int64_t count, bool begin_window) {
  if (filled_ == kRingSize) flush();
  if (begin_window) window_count_ = 0;
  begins_[static_cast<size_t>(filled_)] = begin_window;
  slots::copy(loss_sum, entry_of(ring_, filled_++));
  window_count_ += count;
  count_ += static_cast<double>(count);
}

// Window by window, so that the sum's last digits do not depend on when it is read.
void LossMeter::flush() {
  if (filled_ == 0) return;
  std::vector<float> values(kRingSize);
  runtime_of(ring_.device()).copy_to_host(values.data(), ring_.view().data, ring_.nbytes());
  for (size_t i = 0; i < static_cast<size_t>(filled_); ++i) {
    if (begins_[i]) {
      sum_ += open_sum_;
      open_sum_ = window_sum_ = 0;
    }
    open_sum_ += static_cast<double>(values[i]);
    window_sum_ += static_cast<double>(values[i]);
  }
  flushed_ += filled_;
  filled_ = 0;
}

double LossMeter::sum() {
  flush();
  return sum_ + open_sum_;
}

double LossMeter::mean() {
  return count_ > 0 ? sum() / count_ : std::numeric_limits<double>::quiet_NaN();
}

double LossMeter::last_window_mean() {
  flush();
  return window_sum_ / static_cast<double>(window_count_);
}

void LossMeter::restore(double sum, double count) {
  flush();
  sum_ = sum;
  open_sum_ = 0;
  count_ = count;
}

void LossMeter::restore(const Mark& mark) {
  if (flushed_ > mark.entries) {  // the ring was full in the middle of the window
    open_sum_ = window_sum_ = 0;
    flushed_ = mark.entries;
  }
  filled_ = mark.entries - flushed_;
  window_count_ = mark.window_count;
  count_ = mark.count;
}

void MemoryMeter::fold(Device device) {
  const CachingAllocator& allocator = allocator_of(device);
  const MemoryStats stats = allocator.stats();
  PhasePeak& peak = peaks_[static_cast<size_t>(phase_)];
  const PoolStats& all = stats[Pool::all];
  if (all.allocated_bytes.peak > peak.allocated) {
    peak.allocated = all.allocated_bytes.peak;
    peak.parts = stats.peak_by_tag;
  }
  peak.reserved = std::max(peak.reserved, all.reserved_bytes.peak);
  const CachingAllocator& host = host_allocator_of(device);
  peak.host_allocated = std::max(peak.host_allocated, host.max_allocated_bytes());
  peak.host_reserved = std::max(peak.host_reserved, host.max_reserved_bytes());
}

void MemoryMeter::reset(Device device) {
  allocator_of(device).reset_peak_stats();
  host_allocator_of(device).reset_peak_stats();
}

void MemoryMeter::begin(Device device, Phase next) {
  if (running_) fold(device);
  reset(device);
  phase_ = next;
  running_ = true;
}

void MemoryMeter::end_of_step(Device device) {
  fold(device);
  if (++steps_ == 1) begin(device, training);
}

void MemoryMeter::discard(Device device) { reset(device); }

int64_t MemoryMeter::peak_of_steps(Device device) const {
  const int64_t finished = std::max(peak(first_step).allocated, peak(training).allocated);
  const bool counts = running_ && phase_ != evaluation;
  return counts ? std::max(finished, allocator_of(device).max_allocated_bytes()) : finished;
}

void MemoryMeter::finish(Device device) {
  fold(device);
  running_ = false;
}

double StepClock::since_start() const {
  return std::chrono::duration<double>(Clock::now() - started_).count();
}

void StepClock::start(Device device) {
  if (running_) return;
  runtime_of(device).synchronize();
  started_ = Clock::now();
  running_ = true;
}

void StepClock::step(Device device, int64_t images) {
  images_ += images;
  if (++steps_ > 1) return;
  runtime_of(device).synchronize();
  first_seconds_ = seconds_ + since_start();
  first_images_ = images;
}

void StepClock::pause(Device device) {
  if (!running_) return;
  runtime_of(device).synchronize();
  seconds_ += since_start();
  running_ = false;
}

double StepClock::seconds() const { return seconds_ + (running_ ? since_start() : 0); }

double StepClock::step_ms() const {
  constexpr double kMsPerSecond = 1e3;
  if (steps_ < 2) return seconds() * kMsPerSecond;
  return (seconds() - first_seconds_) * kMsPerSecond / static_cast<double>(steps_ - 1);
}

double StepClock::images_per_s() const {
  const double time = steps_ < 2 ? seconds() : seconds() - first_seconds_;
  const int64_t images = steps_ < 2 ? images_ : images_ - first_images_;
  return time > 0 ? static_cast<double>(images) / time : 0;
}

}  // namespace headroom
