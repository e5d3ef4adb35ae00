// A table of a run's convolutions: layer x direction x engine x workspace x time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/ops/conv_calls.h"
#include "train/report.h"
#include "train/trainer.h"

namespace headroom {

// All calls of one layer in one direction with the same shapes, engine and workspace.
struct ConvRow {
  ConvCallInfo call;  // the first of them
  int64_t calls = 0;  // in all recorded steps
  int64_t timed_calls = 0;
  double total_ms = 0;  // of the timed calls

  double ms() const { return timed_calls > 0 ? total_ms / static_cast<double>(timed_calls) : 0; }
};

// Records the convolutions of the first steps, those of evaluations left out, and times them in all
// but the first: it is the one that loads kernels and searches for plans. Each timed step ends with
// a wait for the device. A step that is tried again is recorded anew.
class ConvRecorder : public TrainObserver, public ConvCallListener {
 public:
  static constexpr int64_t kSteps = 6;

  explicit ConvRecorder(Device device) : device_(device) {}
  ~ConvRecorder() override;  // stops listening
  ConvRecorder(const ConvRecorder&) = delete;
  ConvRecorder& operator=(const ConvRecorder&) = delete;

  void on_step_begin(int64_t step) override;
  void on_step(const StepInfo& step) override;
  void on_conv_begin() override;
  void on_conv_end(const ConvCallInfo& call) override;

  const std::vector<ConvRow>& rows() const { return rows_; }  // in the order of first use
  int64_t steps() const { return steps_; }                    // recorded

 private:
  struct Timer {
    EventHandle begin = nullptr, end = nullptr;
  };
  using Key = std::tuple<PathId, ConvDirection, std::string>;

  void listen(bool on);
  void add(const ConvCallInfo& call, const Timer& timer);

  Device device_;
  bool listening_ = false;
  ConvCallListener* before_ = nullptr;
  int64_t steps_ = 0;
  std::vector<ConvCallInfo> pending_;  // of the running step; call i has timer i
  std::vector<Timer> timers_;
  std::vector<ConvRow> rows_;
  std::map<Key, size_t> places_;
};

// Columns of text, or an object:
//   run         the object of train's --json
//   steps       recorded, the first included
//   rows        path, direction, x, w, y (shapes), dtype, engine, workspace_bytes (given),
//               used_bytes (of them; null where it is not told), searched_plans, search_ms and
//               best_ms (null without a timed search), calls, ms (mean; null where nothing was
//               timed: on a meta device, or with a single step)
//   first_step, peak   peak_allocated and peak_reserved of the first step, where searches run and
//               optimizer state is made, and of those after it
std::string conv_table(const ConvRecorder& recorder, const Report& report);
nlohmann::ordered_json conv_report_json(const ConvRecorder& recorder, const Report& report);

// JSON if the name ends in .json, else text. The file is replaced whole or not at all. Throws
// DataError if it cannot be written.
void write_conv_report(const std::string& path, const ConvRecorder& recorder, const Report& report);

}  // namespace headroom
