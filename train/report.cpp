// The table and the JSON object at the end of a run.
#include "train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include <nlohmann/json.hpp>

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

}  // namespace

std::string words_of(Tag tag) {
  std::string words = name_of(tag);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

std::string to_table(const Report& report) {
  const RunResult& r = report.result;
  std::string out = r.interrupted ? fmt::format("interrupted after step {}\n", r.steps)
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
  Json out;
  out["model"] = report.config.model;
  out["data"] = info.data_name;
  out["device"] = info.device_name;
  out["device_description"] = info.device_description;
  out["cudnn_version"] = report.cudnn_version ? Json(*report.cudnn_version) : Json(nullptr);
  out["parameter_count"] = info.parameter_count;
  out["batch"] = report.config.batch;
  out["accum"] = report.config.accum;
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
  out["skipped_steps"] = r.skipped_steps;
  out["loss_scale"] = r.loss_scale > 0 ? Json(r.loss_scale) : Json(nullptr);
  out["out_of_memory_retries"] = r.out_of_memory_retries;
  out["workspace_fallbacks"] = r.workspace_fallbacks;
  out["config"] = config_to_json(report.config);
  // A path may be anything but UTF-8.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace headroom
