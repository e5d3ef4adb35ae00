// Recording convolutions, and the table of them.
#include "train/conv_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/memory/caching_allocator.h"
#include "train/checkpoint/atomic_file.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

std::string shape_text(const Shape& shape) {
  return fmt::format("{}", fmt::join(shape.begin(), shape.end(), "x"));
}

Json shape_json(const Shape& shape) {
  return Json(std::vector<int64_t>(shape.begin(), shape.end()));
}

Json peak_json(const PhasePeak& peak) {
  return {{"peak_allocated", peak.allocated}, {"peak_reserved", peak.reserved}};
}

Json row_json(const ConvRow& row) {
  const ConvEngine& engine = row.call.engine;
  const bool searched = engine.searched_plans > 0;
  return {{"path", path_name(row.call.path)},
          {"direction", words_of(row.call.direction)},
          {"x", shape_json(row.call.x)},
          {"w", shape_json(row.call.w)},
          {"y", shape_json(row.call.y)},
          {"dtype", name_of(row.call.dtype)},
          {"engine", engine.name},
          {"workspace_bytes", row.call.workspace_bytes},
          {"used_bytes", engine.used_bytes >= 0 ? Json(engine.used_bytes) : Json(nullptr)},
          {"searched_plans", engine.searched_plans},
          {"search_ms", searched ? Json(engine.search_ms) : Json(nullptr)},
          {"best_ms", searched ? Json(engine.best_ms) : Json(nullptr)},
          {"calls", row.calls},
          {"ms", row.timed_calls > 0 ? Json(row.ms()) : Json(nullptr)}};
}

std::string search_text(const ConvEngine& engine) {
  if (engine.searched_plans == 0) return "-";
  return fmt::format("{} plans, {:.1f} ms", engine.searched_plans, engine.search_ms);
}

std::string phase_line(const char* name, const PhasePeak& peak) {
  return fmt::format("{:<24}{} allocated, {} reserved\n", name, format_bytes(peak.allocated),
                     format_bytes(peak.reserved));
}

}  // namespace

ConvRecorder::~ConvRecorder() {
  listen(false);
  for (const Timer& timer : timers_) {
    runtime_of(device_).destroy_event(timer.begin);
    runtime_of(device_).destroy_event(timer.end);
  }
}

void ConvRecorder::listen(bool on) {
  if (on == listening_) return;
  if (on) {
    before_ = set_conv_call_listener(this);
  } else {
    set_conv_call_listener(before_);
  }
  listening_ = on;
}

void ConvRecorder::on_step_begin(int64_t) {
  pending_.clear();
  listen(steps_ < kSteps);
}

void ConvRecorder::on_conv_begin() {
  DeviceRuntime& runtime = runtime_of(device_);
  if (timers_.size() == pending_.size()) {
    timers_.push_back({runtime.create_event(), runtime.create_event()});
  }
  runtime.record_event(timers_[pending_.size()].begin, Stream::compute);
}

void ConvRecorder::on_conv_end(const ConvCallInfo& call) {
  runtime_of(device_).record_event(timers_[pending_.size()].end, Stream::compute);
  pending_.push_back(call);
}

void ConvRecorder::on_step(const StepInfo&) {
  if (!listening_) return;
  listen(false);
  for (size_t i = 0; i < pending_.size(); ++i) add(pending_[i], timers_[i]);
  ++steps_;
}

void ConvRecorder::add(const ConvCallInfo& call, const Timer& timer) {
  const Key key{call.path, call.direction,
                detail::concat(call.x, call.w, call.y, call.dtype, call.engine.name, ' ',
                               call.workspace_bytes)};
  const auto [place, is_new] = places_.try_emplace(key, rows_.size());
  if (is_new) rows_.push_back({call});
  ConvRow& row = rows_[place->second];
  ++row.calls;
  if (steps_ == 0 || device_.is_meta()) return;
  DeviceRuntime& runtime = runtime_of(device_);
  runtime.synchronize_event(timer.end);
  row.total_ms += runtime.elapsed_ms(timer.begin, timer.end);
  ++row.timed_calls;
}

std::string conv_table(const ConvRecorder& recorder, const Report& report) {
  std::string out = fmt::format("{}, {} images per pass, on {}; convolutions of {} steps\n\n",
                                model_text(report.config), report.config.batch,
                                report.info.device_name, recorder.steps());
  constexpr const char* kLine = "{:<24}{:<17}{:<18}{:<18}{:<6}{:>12}{:>12}{:>22}{:>8}{:>11}  {}\n";
  out += fmt::format(kLine, "layer", "direction", "x", "w", "dtype", "workspace", "used", "search",
                     "calls", "ms", "engine");
  for (const ConvRow& row : recorder.rows()) {
    const ConvCallInfo& call = row.call;
    out += fmt::format(kLine, path_name(call.path), words_of(call.direction), shape_text(call.x),
                       shape_text(call.w), name_of(call.dtype), format_bytes(call.workspace_bytes),
                       call.engine.used_bytes >= 0 ? format_bytes(call.engine.used_bytes) : "-",
                       search_text(call.engine), row.calls,
                       row.timed_calls > 0 ? fmt::format("{:.4f}", row.ms()) : "not timed",
                       call.engine.name);
  }
  out += "\n" + phase_line("peak, first step", report.result.first_step);
  return out + phase_line("peak, later steps", report.result.peak);
}

Json conv_report_json(const ConvRecorder& recorder, const Report& report) {
  Json rows = Json::array();
  for (const ConvRow& row : recorder.rows()) rows.push_back(row_json(row));
  return {{"run", Json::parse(to_json(report))},
          {"steps", recorder.steps()},
          {"rows", rows},
          {"first_step", peak_json(report.result.first_step)},
          {"peak", peak_json(report.result.peak)}};
}

void write_conv_report(const std::string& path, const ConvRecorder& recorder,
                       const Report& report) {
  write_file_atomically(path, path.ends_with(".json")
                                  ? conv_report_json(recorder, report)
                                            .dump(-1, ' ', false, Json::error_handler_t::replace) +
                                        "\n"
                                  : conv_table(recorder, report));
}

}  // namespace headroom
