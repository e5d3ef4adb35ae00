// One training step's memory, event by event, and what it comes to: the course of the bytes by tag,
// and who holds what at the instant of the peak.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/memory/allocation_failure.h"
#include "core/memory/caching_allocator.h"
#include "train/trainer.h"

namespace headroom {

// Events kept of a step. One of resnet50 has some three thousand; with many micro-batches the
// oldest are dropped.
constexpr int64_t kRecordedEvents = int64_t{1} << 19;

struct StepRecord {
  int64_t step = 0;
  EventLog log;                       // from the step's begin to its end
  std::vector<SegmentInfo> segments;  // at its end
  bool expandable_segments = false;   // the allocator's setting
  MemoryPeak peak;
  int64_t free_bytes = 0;  // at its end: what could still be reserved of the limit or the device
};

// Records the step with the highest peak, the first of them where several have it. The first step
// of the process, which searches plans and makes optimizer state, counts only if there is no other:
// so the record's peak is the run's. Steps differ a little until the cache has settled, since a
// block is not split for a small remainder. A step that is tried again is recorded anew. While the
// recorder lives it uses the allocator's record of events, afresh for each step and evaluation.
class StepRecorder : public TrainObserver {
 public:
  explicit StepRecorder(Device device) : device_(device) {}
  ~StepRecorder() override;  // stops recording
  StepRecorder(const StepRecorder&) = delete;
  StepRecorder& operator=(const StepRecorder&) = delete;

  void on_start(const RunInfo& info) override;
  void on_step_begin(int64_t step) override;
  void on_step(const StepInfo& step) override;
  void on_evaluation_begin() override;

  // Nothing before the step has ended.
  const std::optional<StepRecord>& record() const { return record_; }

  // The step or evaluation that an exception has ended: all that it did, its failure and the
  // clearing up included. For callers that caught it; record() stays.
  StepRecord unfinished() const;

 private:
  StepRecord take(int64_t step) const;

  Device device_;
  int64_t from_step_ = 0;
  int64_t begun_ = 0;  // step
  std::optional<StepRecord> record_;
};

// What was held when the request failed: the record's peak is that instant, and its log ends there.
// `unfinished` is of the step that failed; without one the log has the failure alone.
StepRecord record_at(const AllocationFailure& failure, StepRecord unfinished = {});

// The state after each event that changed the allocated bytes: index 0 is the state before the
// first.
struct TimelinePoint {
  int64_t event = -1;  // into the log's events
  BytesByTag by_tag{};
  int64_t reserved_bytes = 0;
};
std::vector<TimelinePoint> timeline_of(const EventLog& log);

// What one module holds at the instant of the peak, by tag. Paths are those of the module tree;
// bytes of no module come under "". The rows sum to the peak.
struct LayerRow {
  std::string path;
  BytesByTag by_tag{};
  int64_t total_bytes = 0;
};
std::vector<LayerRow> layers_at_peak(const MemoryPeak& peak);  // largest first

}  // namespace headroom
