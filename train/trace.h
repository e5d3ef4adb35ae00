// What the host does in a run's first steps, and the memory meanwhile, in the trace event format
// that chrome://tracing and https://ui.perfetto.dev draw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/ranges.h"
#include "core/memory/scopes.h"
#include "train/memory_record.h"
#include "train/trainer.h"

namespace headroom {

// Records the ranges of the training thread and the allocator's events in the first steps of the
// process and in the evaluations between and right after them. Passes all ranges on to the listener
// that it found. Times are the host's: on a GPU, when work was handed over, not when it ran, unless
// launches block. While it records it restarts the allocator's record of events at each step and
// stops it at its end: an observer that reads that too has to be told first.
class TraceRecorder : public TrainObserver, public RangeListener {
 public:
  // Call on the thread that trains.
  TraceRecorder(Device device, int64_t steps);
  ~TraceRecorder() override;  // stops recording
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  void on_start(const RunInfo& info) override;
  void on_step_begin(int64_t step) override;
  void on_step(const StepInfo& step) override;
  void on_evaluation_begin() override;
  void on_epoch(const EpochInfo& epoch) override;

  void begin_range(RangeKind kind, const char* name, int64_t number) noexcept override;
  void end_range() noexcept override;

  // For callers that caught what has ended the run: the memory of the step that did not end.
  void take_unfinished();

  // The trace so far:
  //   "traceEvents"  one "X" for each range, its kind as category, with the module path, the phase
  //                  and, of a step, its number as arguments; "C" counters "allocated and cached"
  //                  and "allocated by tag", whose bytes sum to the reserved and to the allocated
  //                  bytes, at each event of the allocator
  //   "otherData"    device, what the times are, the steps recorded and what was left out
  std::string json() const;

 private:
  struct Range {
    RangeKind kind = RangeKind::op;
    Phase phase = Phase::none;
    PathId path = 0;
    const char* name = "";
    int64_t number = 0;
    int64_t begin_ns = 0, end_ns = 0;
  };
  static constexpr int64_t kNotKept = -1;

  void start();
  void take_memory();

  Device device_;
  int64_t steps_left_ = 0;
  RangeListener* next_ = nullptr;
  bool recording_ = false;
  std::vector<Range> ranges_;
  std::vector<int64_t> open_;  // into ranges_, or kNotKept; the deepest are not in it
  size_t depth_ = 0;
  std::vector<EventLog> memory_;
  int64_t first_step_ = 0, steps_recorded_ = 0, steps_done_ = 0;
  int64_t ranges_dropped_ = 0, evaluations_dropped_ = 0;
};

// Replaces the file whole or not at all. Throws DataError if it cannot be written.
void write_trace(const std::string& path, const TraceRecorder& trace);

}  // namespace headroom
