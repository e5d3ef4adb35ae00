// The table and the JSON object at the end of a run.
#include "train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <new>

#include <nlohmann/json.hpp>

#include "core/memory/allocation_failure.h"
#include "train/display.h"
#include "train/flags.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

bool computes(const RunInfo& info) { return !parse_device(info.device_name).is_meta(); }

std::string row(const std::string& name, const std::string& value) {
  return fmt::format("  {:<18}{}\n", name, value);
}

std::string part_rows(const PhasePeak& peak) {
  std::array<int, kTagCount> order{};
  for (int i = 0; i < kTagCount; ++i) order[static_cast<size_t>(i)] = i;
  const auto part = [&](int tag) { return peak.parts[static_cast<size_t>(tag)]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return part(a) > part(b); });
  std::string out;
  for (const int tag : order) {
    if (part(tag) == 0) continue;
    const double percent =
        100.0 * static_cast<double>(part(tag)) / static_cast<double>(peak.allocated);
    out += fmt::format("    {:<18}{:>12}{:>8.1f} %\n", words_of(static_cast<Tag>(tag)),
                       format_bytes(part(tag)), percent);
  }
  return out;
}

std::string phase_row(const char* name, const PhasePeak& peak) {
  if (peak.allocated == 0) return {};
  return row(name, fmt::format("{} allocated, {} reserved", format_bytes(peak.allocated),
                               format_bytes(peak.reserved)));
}

std::string result_rows(const RunResult& result) {
  std::string out;
  if (result.test_accuracy) {
    out += row("test accuracy", fmt::format("{:.2f} %  (loss {:.4f})", 100 * *result.test_accuracy,
                                            result.test_loss.value_or(NAN)));
  }
  out += row("train loss", fmt::format("{:.4f}", result.train_loss));
  if (!std::isfinite(result.train_loss)) {
    out += row("", "the loss is not finite: try a smaller --lr or --clip-norm");
  }
  out += row("speed", fmt::format("{} images/s, {:.2f} ms per step",
                                  format_rate(result.images_per_s), result.step_ms));
  if (result.skipped_steps > 0) {
    out +=
        row("skipped steps", fmt::format("{} (the loss scale was too high)", result.skipped_steps));
  }
  return out;
}

// What no peak counts, so that nobody takes a peak for what the driver shows.
std::string outside_row(const RunInfo& info, const OutsideMemory& outside) {
  const char* const name = "outside of it";
  const Device device = parse_device(info.device_name);
  if (device.is_meta()) {
    return row(name, device.stands_for == DeviceType::cuda
                         ? "context and libraries, which are not predicted"
                         : "code, data and libraries, which are not predicted");
  }
  if (device.is_cpu()) return row(name, "code, data and libraries, which are not measured");
  if (outside.bytes) {
    return row(name, fmt::format("{} of context and libraries", format_bytes(*outside.bytes)));
  }
  return row(name, fmt::format("context and libraries, at most {}: the driver gives no bytes of "
                               "this process, all processes together hold that",
                               format_bytes(outside.at_most_bytes.value_or(0))));
}

Json json_of(const BytesByTag& parts) {
  Json out = Json::object();
  for (int tag = 0; tag < kTagCount; ++tag) {
    out[name_of(static_cast<Tag>(tag))] = parts[static_cast<size_t>(tag)];
  }
  return out;
}

Json json_of(const PhasePeak& peak) {
  if (peak.allocated == 0) return nullptr;  // the phase never ran
  return {{"peak_allocated", peak.allocated},
          {"peak_reserved", peak.reserved},
          {"peak_parts", json_of(peak.parts)},
          {"host_peak_allocated", peak.host_allocated},
          {"host_peak_reserved", peak.host_reserved}};
}

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// What is known of a run at its start.
Json begun_json(const TrainConfig& config, const RunInfo& info) {
  Json out;
  out["model"] = config.model;
  out["data"] = info.data_name;
  out["device"] = info.device_name;
  out["device_description"] = info.device_description;
  out["parameter_count"] = info.parameter_count;
  out["batch"] = config.batch;
  out["accum"] = config.accum;
  return out;
}

void put_facts(const OutOfMemory::Facts& facts, Json& out) {
  out["requested_bytes"] = facts.requested_bytes;
  out["rounded_bytes"] = facts.rounded_bytes;
  out["segment_bytes"] = facts.segment_bytes;
  out["allocated_bytes"] = facts.allocated_bytes;
  out["reserved_bytes"] = facts.reserved_bytes;
  out["limit_bytes"] = facts.limit_bytes > 0 ? Json(facts.limit_bytes) : Json(nullptr);
  out["device_free_bytes"] = facts.device_free_bytes;
  out["device_total_bytes"] = facts.device_total_bytes;
}

void put_holders(const AllocationFailure& failure, Json& out) {
  constexpr size_t kModules = 10;
  out["device"] = name_of(failure.device());
  out["op"] = failure.context().op;
  out["path"] = path_name(failure.context().path);
  out["phase"] = name_of(failure.context().phase);
  BytesByTag parts{};
  for (const LiveBlock& block : failure.live()) {
    parts[static_cast<size_t>(block.tag)] += block.bytes;
  }
  out["parts"] = json_of(parts);
  out["modules"] = Json::array();
  for (const auto& [path, bytes] : largest_modules(failure.live(), kModules)) {
    out["modules"].push_back({{"path", path}, {"bytes", bytes}});
  }
}

Json error_json(const std::exception& error) {
  const auto* out_of_memory = dynamic_cast<const OutOfMemory*>(&error);
  Json out = {{"kind", "out of memory"},
              {"message", out_of_memory ? error.what() : "the host is out of memory"}};
  for (const char* key : {"device", "op", "path", "phase", "requested_bytes", "rounded_bytes",
                          "segment_bytes", "allocated_bytes", "reserved_bytes", "limit_bytes",
                          "device_free_bytes", "device_total_bytes", "parts", "modules"}) {
    out[key] = nullptr;
  }
  if (out_of_memory) put_facts(out_of_memory->facts(), out);
  const auto* failure = dynamic_cast<const AllocationFailure*>(&error);
  if (failure) put_holders(*failure, out);
  return out;
}

// A path may be anything but UTF-8.
std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const OutOfMemory*>(&error) || dynamic_cast<const std::bad_alloc*>(&error);
}

std::string words_of(Tag tag) {
  std::string words = name_of(tag);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string to_table(const Report& report) {
  const RunResult& r = report.result;
  const char* how = r.over_threshold ? "stopped above --memory-threshold" : "interrupted";
  std::string out = r.interrupted ? fmt::format("{} after step {}\n", how, r.steps)
                                  : fmt::format("{} steps\n", r.steps);
  if (computes(report.info)) out += result_rows(r);
  out += row("device", device_text(report.info));
  if (report.cudnn_version) out += row("cuDNN", *report.cudnn_version);
  out += row("peak reserved", format_bytes(r.peak.reserved));
  out += outside_row(report.info, report.outside);
  out += row("peak allocated", fmt::format("{}, of which", format_bytes(r.peak.allocated)));
  out += part_rows(r.peak);
  out += phase_row("in the first step", r.first_step);
  out += phase_row("in evaluation", r.evaluation);
  if (r.peak.host_allocated > 0) {
    out += row("peak on the host", fmt::format("{} allocated, {} reserved, beside the above",
                                               format_bytes(r.peak.host_allocated),
                                               format_bytes(r.peak.host_reserved)));
  }
  if (report.autocast) {
    for (const auto& [name, text] : autocast_lines(*report.autocast)) out += row(name, text);
  }
  if (r.out_of_memory_retries > 0) {
    out += row("out of memory", fmt::format("halved {} times, to --batch {} --accum {}, evaluation "
                                            "--eval-batch {}",
                                            r.out_of_memory_retries, report.config.batch,
                                            report.config.accum, report.config.eval_batch));
  }
  if (r.workspace_fallbacks > 0) {
    out += row("fallbacks", fmt::format("{} convolutions took a plan with a smaller workspace",
                                        r.workspace_fallbacks));
  }
  return out;
}

std::string to_json(const Report& report) {
  const RunInfo& info = report.info;
  const RunResult& r = report.result;
  const bool values = computes(info);
  Json out = begun_json(report.config, info);
  out["cudnn_version"] = json_of(report.cudnn_version);
  out["steps"] = r.steps;
  out["epochs"] = info.epochs;
  out["interrupted"] = r.interrupted;
  out["train_loss"] = values ? Json(r.train_loss) : Json(nullptr);
  out["test_loss"] = values ? json_of(r.test_loss) : Json(nullptr);
  out["test_accuracy"] = values ? json_of(r.test_accuracy) : Json(nullptr);
  out["step_ms"] = values ? Json(r.step_ms) : Json(nullptr);
  out["images_per_s"] = values ? Json(r.images_per_s) : Json(nullptr);
  out["peak_allocated"] = r.peak.allocated;
  out["peak_reserved"] = r.peak.reserved;
  out["peak_parts"] = json_of(r.peak.parts);
  out["host_peak_allocated"] = r.peak.host_allocated;
  out["host_peak_reserved"] = r.peak.host_reserved;
  out["context_and_libraries_bytes"] = json_of(report.outside.bytes);
  out["context_and_libraries_at_most_bytes"] = json_of(report.outside.at_most_bytes);
  out["first_step"] = json_of(r.first_step);
  out["evaluation"] = json_of(r.evaluation);
  out["autocast"] = report.autocast ? autocast_json(*report.autocast) : Json(nullptr);
  out["skipped_steps"] = r.skipped_steps;
  out["loss_scale"] = r.loss_scale > 0 ? Json(r.loss_scale) : Json(nullptr);
  out["out_of_memory_retries"] = r.out_of_memory_retries;
  out["workspace_fallbacks"] = r.workspace_fallbacks;
  out["config"] = config_to_json(report.config);
  return dumped(out);
}

std::string to_json(const FailedRun& run) {
  Json out = begun_json(run.config, run.info);
  if (run.info.parameter_count == 0) out["data"] = out["parameter_count"] = nullptr;
  out["steps"] = run.steps;
  out["error"] = error_json(*run.error);
  out["config"] = config_to_json(run.config);
  return dumped(out);
}

}  // namespace headroom
