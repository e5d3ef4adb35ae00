// To JSON and back.
#include "train/compare/measurement.h"

#include <limits>

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <class T>
std::optional<T> optional_of(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<T>(json.get<T>());
}

// JSON has null for what is not finite.
double number_of(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::quiet_NaN() : json.get<double>();
}

Json json_of(const TrainingFacts& facts) {
  return {{"first_step_identical", facts.first_step_identical},
          {"gradient_difference", json_of(facts.gradient_difference)},
          {"batch_norm_difference", json_of(facts.batch_norm_difference)},
          {"has_batch_norm", facts.has_batch_norm},
          {"loss", facts.loss},
          {"early_loss", facts.early_loss},
          {"fingerprint", facts.fingerprint},
          {"skipped_steps", facts.skipped_steps},
          {"step_images", facts.step_images},
          {"micro_batch", facts.micro_batch},
          {"depth", facts.depth},
          {"unit_roundoff", facts.unit_roundoff},
          {"config", facts.config}};
}

TrainingFacts facts_of(const Json& json) {
  TrainingFacts out;
  out.first_step_identical = json.at("first_step_identical");
  out.gradient_difference = optional_of<double>(json.at("gradient_difference"));
  out.batch_norm_difference = optional_of<double>(json.at("batch_norm_difference"));
  out.has_batch_norm = json.at("has_batch_norm");
  out.loss = number_of(json.at("loss"));
  out.early_loss = number_of(json.at("early_loss"));
  out.fingerprint = json.at("fingerprint");
  out.skipped_steps = json.at("skipped_steps");
  out.step_images = json.at("step_images");
  out.micro_batch = json.at("micro_batch");
  out.depth = json.at("depth");
  out.unit_roundoff = json.at("unit_roundoff");
  out.config = json.at("config");
  return out;
}

}  // namespace

const char* name_of(RowStatus status) {
  switch (status) {
    case RowStatus::ok:
      return "ok";
    case RowStatus::out_of_memory:
      return "out of memory";
    case RowStatus::failed:
      return "failed";
    case RowStatus::left_out:
      break;
  }
  return "left out";
}

Json to_json(const RowRequest& request) {
  return {{"arguments", request.arguments},
          {"has_reference", request.has_reference},
          {"device_free_bytes", request.device_free_bytes},
          {"parent", request.parent}};
}

RowRequest request_of(const Json& json) {
  RowRequest out;
  out.arguments = json.at("arguments").get<std::vector<std::string>>();
  out.has_reference = json.at("has_reference");
  out.device_free_bytes = json.at("device_free_bytes");
  out.parent = json.at("parent");
  return out;
}

Json to_json(const RowMeasurement& row) {
  return {{"status", static_cast<int>(row.status)},
          {"message", row.message},
          {"peak_allocated", row.peak.allocated},
          {"peak_reserved", row.peak.reserved},
          {"parts", row.peak.parts},
          {"host_allocated", row.peak.host_allocated},
          {"host_reserved", row.peak.host_reserved},
          {"first_step_peak", row.first_step_peak},
          {"evaluation_peak", row.evaluation_peak},
          {"device_bytes", json_of(row.device_bytes)},
          {"step_ms", json_of(row.step_ms)},
          {"images_per_s", json_of(row.images_per_s)},
          {"timeline", {{"by_tag", row.timeline.by_tag}, {"phase", row.timeline.phase}}},
          {"facts", row.facts ? json_of(*row.facts) : Json(nullptr)}};
}

RowMeasurement measurement_of(const Json& json) {
  RowMeasurement out;
  out.status = static_cast<RowStatus>(json.at("status").get<int>());
  out.message = json.at("message");
  out.peak.allocated = json.at("peak_allocated");
  out.peak.reserved = json.at("peak_reserved");
  out.peak.parts = json.at("parts").get<BytesByTag>();
  out.peak.host_allocated = json.at("host_allocated");
  out.peak.host_reserved = json.at("host_reserved");
  out.first_step_peak = json.at("first_step_peak");
  out.evaluation_peak = json.at("evaluation_peak");
  out.device_bytes = optional_of<int64_t>(json.at("device_bytes"));
  out.step_ms = optional_of<double>(json.at("step_ms"));
  out.images_per_s = optional_of<double>(json.at("images_per_s"));
  out.timeline.by_tag = json.at("timeline").at("by_tag").get<std::vector<BytesByTag>>();
  out.timeline.phase = json.at("timeline").at("phase").get<std::vector<std::string>>();
  if (!json.at("facts").is_null()) out.facts = facts_of(json.at("facts"));
  return out;
}

}  // namespace headroom
