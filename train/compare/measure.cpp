// Measuring one configuration.
#include "train/compare/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <numeric>
#include <utility>

#include "train/command_line.h"
#include "train/compare/first_step.h"
#include "train/flags.h"
#include "train/memory_record.h"

namespace headroom {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kTimelinePoints = 400;

// Half a unit in the last place of what products are computed with. TF32 has f16's 11 bits.
double unit_roundoff_of(const TrainConfig& config, Device device) {
  if (config.amp) return *config.amp == DType::bf16 ? 0x1p-8 : 0x1p-11;
  return device.is_cuda() && config.tf32 != Tf32::off ? 0x1p-11 : 0x1p-24;
}

int64_t depth_of(const Module& model) {
  const std::vector<NamedTensor> parameters = model.named_parameters();
  return std::count_if(parameters.begin(), parameters.end(),
                       [](const NamedTensor& entry) { return entry.tensor.rank() > 1; });
}

// Watches a run: keeps the first step's values, records and times steps, reads the driver.
class RowObserver : public TrainObserver {
 public:
  RowObserver(Device device, const std::function<void(const RowProgress&)>& on_progress)
      : device_(device), recorder_(device), on_progress_(on_progress) {}

  void on_start(const RunInfo& info) override {
    progress_.steps = info.total_steps;
    last_recorded_ = std::max<int64_t>(2, info.total_steps / 2);
    steps_per_epoch_ = info.steps_per_epoch;
    train_images_ = info.train_images;
    recorder_.on_start(info);
    on_progress_(progress_);
  }

  void on_step_begin(int64_t step) override {
    if (step <= last_recorded_) recorder_.on_step_begin(step);
  }

  void on_used_gradient(const UsedGradientInfo& info) override {
    if (info.step == 1 && !device_.is_meta()) used_gradients_.push_back(used_gradient(info));
  }

  void on_gradients(const GradientInfo& info) override {
    if (info.step != 1 || device_.is_meta()) return;
    first_step_ = first_step_of(info, std::move(used_gradients_));
  }

  void on_step(const StepInfo& step) override {
    if (step.step <= last_recorded_) {
      recorder_.on_step(step);
      read_driver();
    }
    const bool is_last = step.step == progress_.steps;
    step_images_ = std::max(step_images_, step.images);
    keep_time(step, is_last);
    if (!device_.is_meta()) {
      if (is_last) loss_ = step.read_loss();
      if (step.step <= kEarlyStep) early_loss_ = step.read_loss();
    }
    peak_so_far_ = step.peak_bytes;
    progress_.step = step.step;
    on_progress_(progress_);
  }

  void on_evaluation_begin() override {
    progress_.evaluating = true;
    on_progress_(progress_);
    progress_.evaluating = false;
  }

  // The allocator keeps its segments, so what the driver shows now is the most.
  void on_epoch(const EpochInfo&) override { read_driver(); }

  void on_out_of_memory(const OutOfMemoryInfo& what) override {
    note_ = fmt::format("ran out of memory and halved its batch, at last to {} x {}", what.batch,
                        what.accum);
  }

  void on_threshold(const ThresholdInfo& what) override {
    note_ = fmt::format("went above its --memory-threshold, at last in step {}: {}", what.step,
                        name_of(what.action));
  }

  const std::optional<FirstStep>& first_step() const { return first_step_; }
  const std::optional<StepRecord>& record() const { return recorder_.record(); }
  double loss() const { return loss_; }
  double early_loss() const { return early_loss_; }
  int64_t step_images() const { return step_images_; }
  int64_t peak_so_far() const { return peak_so_far_; }
  const std::string& note() const { return note_; }

  // Of the timed steps; with none behind the recorded ones, as the trainer has it.
  void put_speed(const RunResult& result, RowMeasurement& row) const {
    if (device_.is_meta()) return;
    row.step_ms = result.step_ms;
    row.images_per_s = result.images_per_s;
    if (timed_steps_ == 0) return;
    constexpr double kMsPerSecond = 1e3;
    const double seconds = std::chrono::duration<double>(timed_for_).count();
    row.step_ms = seconds * kMsPerSecond / static_cast<double>(timed_steps_);
    row.images_per_s = static_cast<double>(timed_steps_ * step_images_) / seconds;
  }

  // Of this process, if it is known what was free before it.
  std::optional<int64_t> device_bytes(int64_t free_before) const {
    if (free_before < 0 || least_free_ < 0) return std::nullopt;
    return std::max<int64_t>(0, free_before - least_free_);
  }

  void read_driver() {
    if (!device_.is_cuda()) return;
    const int64_t free = runtime_of(device_).memory_info().free_bytes;
    least_free_ = least_free_ < 0 ? free : std::min(least_free_, free);
  }

 private:
  // An epoch's last window may be short of images: another shape, for which plans are made and,
  // with a timed search, tried out.
  bool is_short(int64_t step) const {
    return step % steps_per_epoch_ == 0 && train_images_ < steps_per_epoch_ * step_images_;
  }

  // The clock runs from the end of one step to the end of a later one of the same epoch, over whole
  // windows alone.
  void keep_time(const StepInfo& step, bool is_last) {
    const bool ends = is_last || step.step % steps_per_epoch_ == 0 || is_short(step.step + 1);
    if (running_) {
      ++timed_steps_;
      if (!ends) return;
      runtime_of(device_).synchronize();
      timed_for_ += Clock::now() - began_;
      running_ = false;
    } else if (step.step >= last_recorded_ && !ends) {
      runtime_of(device_).synchronize();
      began_ = Clock::now();
      running_ = true;
    }
  }

  Device device_;
  StepRecorder recorder_;
  std::function<void(const RowProgress&)> on_progress_;
  RowProgress progress_;
  std::vector<NamedValues> used_gradients_;
  std::optional<FirstStep> first_step_;
  std::string note_;
  double loss_ = 0, early_loss_ = 0;
  int64_t last_recorded_ = 0, step_images_ = 0, peak_so_far_ = 0, least_free_ = -1;
  int64_t steps_per_epoch_ = 1, train_images_ = 0, timed_steps_ = 0;
  bool running_ = false;
  Clock::time_point began_;
  Clock::duration timed_for_{};
};

// After the run: nothing that happens here is measured.
TrainingFacts facts_of(Trainer& trainer, const RunResult& result, const RowObserver& observer,
                       const RowRequest& request, const std::string& reference) {
  allocator_of(Device::cpu()).set_memory_limit(0);
  TrainingFacts out;
  const FirstStep& step = *observer.first_step();
  if (request.has_reference) {
    const FirstStep first = read_first_step(reference);
    out.first_step_identical = are_identical(step, first);
    out.gradient_difference = largest_difference(step.gradients, first.gradients);
    out.batch_norm_difference = largest_difference(step.buffers, first.buffers);
  } else {
    write_first_step(reference, step);
    out.first_step_identical = true;
    out.gradient_difference = largest_difference(step.gradients, step.gradients);
    out.batch_norm_difference = largest_difference(step.buffers, step.buffers);
  }
  out.has_batch_norm = !step.buffers.empty();
  out.loss = observer.loss();
  out.early_loss = observer.early_loss();
  out.fingerprint = fingerprint_of(trainer.model());
  out.skipped_steps = result.skipped_steps;
  out.step_images = observer.step_images();
  out.micro_batch = trainer.config().batch;
  out.depth = depth_of(trainer.model());
  out.unit_roundoff = unit_roundoff_of(trainer.config(), trainer.device());
  out.config = config_to_json(trainer.config());
  return out;
}

void measure(Trainer& trainer, RowObserver& observer, const RowRequest& request,
             const std::string& reference, RowMeasurement& row) {
  const RunResult result = trainer.run(observer);
  row.status = result.over_threshold ? RowStatus::out_of_memory : RowStatus::ok;
  if (result.over_threshold) row.message = "ended above its --memory-threshold";
  row.peak = result.peak;
  row.first_step_peak = result.first_step.allocated;
  row.evaluation_peak = result.evaluation.allocated;
  observer.put_speed(result, row);
  if (observer.record()) {
    const EventLog& log = observer.record()->log;
    row.timeline = thinned(timeline_of(log), log);
  }
  if (row.status != RowStatus::ok || trainer.device().is_meta()) return;
  row.message = observer.note();
  row.facts = facts_of(trainer, result, observer, request, reference);
}

// Peaks of what was done until memory ran out.
void put_peaks_so_far(Device device, int64_t peak_of_steps, RowMeasurement& row) {
  const MemoryStats stats = allocator_of(device).stats();
  const PoolStats& all = stats[Pool::all];
  row.peak.reserved = all.reserved_bytes.peak;
  row.peak.allocated = std::max(peak_of_steps, all.allocated_bytes.peak);
  if (row.peak.allocated == all.allocated_bytes.peak) row.peak.parts = stats.peak_by_tag;
  row.peak.host_allocated = host_allocator_of(device).max_allocated_bytes();
  row.peak.host_reserved = host_allocator_of(device).max_reserved_bytes();
}

}  // namespace

RowMeasurement measure_row(const RowRequest& request, const std::string& reference,
                           const std::function<void(const RowProgress&)>& on_progress) {
  RowMeasurement row;
  std::optional<RowObserver> observer;
  Device device;
  try {
    const TrainConfig config = parse_command_line(request.arguments).config;
    device = device_of(config);
    Trainer trainer(config);
    observer.emplace(device, on_progress);
    measure(trainer, *observer, request, reference, row);
  } catch (const OutOfMemory& error) {
    row.status = RowStatus::out_of_memory;
    row.message = error.what();
    put_peaks_so_far(device, observer ? observer->peak_so_far() : 0, row);
    if (observer) observer->read_driver();
  } catch (const std::bad_alloc&) {
    row.status = RowStatus::out_of_memory;
    row.message = "the host is out of memory";
  } catch (const std::exception& error) {
    row.status = RowStatus::failed;
    row.message = error.what();
  }
  if (observer) row.device_bytes = observer->device_bytes(request.device_free_bytes);
  return row;
}

Timeline thinned(const std::vector<TimelinePoint>& points, const EventLog& log) {
  Timeline out;
  const auto total = [](const TimelinePoint& point) {
    return std::accumulate(point.by_tag.begin(), point.by_tag.end(), int64_t{0});
  };
  const size_t count = std::min(points.size(), kTimelinePoints);
  for (size_t i = 0; i < count; ++i) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i * points.size() / count);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>((i + 1) * points.size() / count);
    const auto most = std::max_element(
        begin, end, [&](const auto& a, const auto& b) { return total(a) < total(b); });
    out.by_tag.push_back(most->by_tag);
    const bool has_event = most->event >= 0;
    const Phase phase =
        has_event ? log.events[static_cast<size_t>(most->event)].phase : Phase::none;
    out.phase.emplace_back(name_of(phase));
  }
  return out;
}

}  // namespace headroom
