// Running rows, and the files made of them.
#include "train/compare/comparison.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/base/device.h"
#include "train/compare/process.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

// Of the whole device, all processes: what the next row's process finds.
int64_t free_bytes_of(Device device) {
  return device.is_cuda() ? runtime_of(device).memory_info().free_bytes : -1;
}

RowRequest request_for(const Configuration& row, const CompareLine& line, Device device,
                       bool has_reference) {
  RowRequest request;
  request.arguments = line.shared;
  request.arguments.insert(request.arguments.end(), row.flags.begin(), row.flags.end());
  request.arguments.push_back(fmt::format("--device={}", name_of(device)));
  request.has_reference = has_reference;
  request.device_free_bytes = free_bytes_of(device);
  request.parent = getpid();
  return request;
}

void compare(const RowMeasurement& first, ComparedRow& row) {
  RowMeasurement& measured = row.measured;
  if (measured.status != RowStatus::ok) return;
  row.saved =
      1 - static_cast<double>(measured.peak.allocated) / static_cast<double>(first.peak.allocated);
  if (!measured.facts || !first.facts) return;
  row.fidelity = fidelity_of(*measured.facts, *first.facts);
  const std::string& why = row.fidelity->reason;
  measured.message += (measured.message.empty() || why.empty() ? "" : "; ") + why;
}

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json bytes_or_null(int64_t bytes) { return bytes > 0 ? Json(bytes) : Json(nullptr); }

Json parts_of(const PhasePeak& peak) {
  Json out = Json::object();
  for (size_t tag = 0; tag < kTagCount; ++tag) {
    out[name_of(static_cast<Tag>(tag))] = peak.parts[tag];
  }
  return out;
}

bool has_parts(const PhasePeak& peak) {
  return std::any_of(peak.parts.begin(), peak.parts.end(), [](int64_t bytes) { return bytes > 0; });
}

Json timeline_json(const Timeline& timeline) {
  if (timeline.by_tag.empty()) return nullptr;
  Json by_tag = Json::object();
  for (size_t tag = 0; tag < kTagCount; ++tag) {
    Json& bytes = by_tag[name_of(static_cast<Tag>(tag))] = Json::array();
    for (const BytesByTag& point : timeline.by_tag) bytes.push_back(point[tag]);
  }
  return {{"by_tag", by_tag}, {"phase", timeline.phase}};
}

Json fidelity_json(const std::optional<Fidelity>& fidelity) {
  if (!fidelity) return nullptr;
  return {{"label", name_of(fidelity->label)},
          {"gradient_difference", json_of(fidelity->gradient_difference)},
          {"loss", fidelity->loss},
          {"loss_difference", json_of(fidelity->loss_difference)},
          {"early_loss_difference", json_of(fidelity->early_loss_difference)},
          {"batch_norm_difference", json_of(fidelity->batch_norm_difference)}};
}

Json row_json(const ComparedRow& row) {
  const RowMeasurement& m = row.measured;
  Json out;
  out["name"] = row.configuration.name;
  out["flags"] = row.configuration.flags;
  out["status"] = name_of(m.status);
  out["message"] = m.message;
  out["peak_allocated"] = bytes_or_null(m.peak.allocated);
  out["peak_reserved"] = bytes_or_null(m.peak.reserved);
  out["device_bytes"] = json_of(m.device_bytes);
  out["parts"] = has_parts(m.peak) ? parts_of(m.peak) : Json(nullptr);
  out["first_step_peak"] = bytes_or_null(m.first_step_peak);
  out["evaluation_peak"] = bytes_or_null(m.evaluation_peak);
  out["host_peak"] = bytes_or_null(m.peak.host_allocated);
  out["step_ms"] = json_of(m.step_ms);
  out["images_per_s"] = json_of(m.images_per_s);
  out["saved"] = json_of(row.saved);
  out["fidelity"] = fidelity_json(row.fidelity);
  out["timeline"] = timeline_json(m.timeline);
  return out;
}

std::string csv_field(const Json& value) {
  if (value.is_null()) return {};
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Name and value of each column: a row's fields, objects taken apart.
std::vector<std::pair<std::string, Json>> columns_of(const Json& row) {
  std::vector<std::pair<std::string, Json>> out;
  const Json no_parts = parts_of({}), no_fidelity = fidelity_json(Fidelity{});
  const auto append = [&](const Json& object, const Json& keys) {
    for (const auto& [key, ignored] : keys.items()) {
      out.emplace_back(key, object.is_null() ? Json(nullptr) : object.at(key));
    }
  };
  for (const auto& [key, value] : row.items()) {
    if (key == "timeline") continue;
    if (key == "parts") {
      append(value, no_parts);
    } else if (key == "fidelity") {
      append(value, no_fidelity);
    } else if (key == "flags") {
      const auto flags = value.get<std::vector<std::string>>();
      out.emplace_back(key, fmt::format("{}", fmt::join(flags, " ")));
    } else {
      out.emplace_back(key, value);
    }
  }
  return out;
}

}  // namespace

Comparison run_comparison(const CompareLine& line, Device device, CompareObserver& observer,
                          const std::function<bool()>& stop) {
  Comparison out;
  out.config = line.config;
  out.config.device = name_of(device);
  out.command = line.command;
  out.device_description = runtime_of(device).description();
  const SharedFile reference;
  for (size_t i = 0; i < line.rows.size() && !out.interrupted; ++i) {
    ComparedRow row;
    row.configuration = line.rows[i];
    observer.on_row_begin(i, row.configuration);
    if (!row.configuration.left_out.empty()) {
      row.measured.status = RowStatus::left_out;
      row.measured.message = row.configuration.left_out;
    } else {
      const std::optional<RowMeasurement> measured = run_row_process(
          request_for(row.configuration, line, device,
                      reference_of(out.rows) && reference_of(out.rows)->measured.facts),
          reference, [&](const RowProgress& progress) { observer.on_row_progress(progress); },
          stop);
      out.interrupted = !measured;
      if (!measured) break;
      row.measured = *measured;
    }
    out.rows.push_back(std::move(row));
    if (const ComparedRow* first = reference_of(out.rows)) {
      compare(first->measured, out.rows.back());
    }
    observer.on_row_end(out.rows.back());
    out.interrupted = stop();
  }
  return out;
}

const ComparedRow* reference_of(const std::vector<ComparedRow>& rows) {
  const auto found = std::find_if(rows.begin(), rows.end(), [](const ComparedRow& row) {
    return row.measured.status == RowStatus::ok;
  });
  return found == rows.end() ? nullptr : &*found;
}

Json comparison_json(const Comparison& comparison) {
  Json rows = Json::array();
  for (const ComparedRow& row : comparison.rows) rows.push_back(row_json(row));
  Json out;
  out["model"] = comparison.config.model;
  out["batch"] = comparison.config.batch;
  out["accum"] = comparison.config.accum;
  out["device"] = comparison.config.device;
  out["device_description"] = comparison.device_description;
  out["cudnn_version"] = json_of(comparison.cudnn_version);
  out["steps"] = comparison.config.steps;
  out["command"] = comparison.command;
  out["rows"] = rows;
  return out;
}

std::string comparison_csv(const Comparison& comparison) {
  std::string out;
  for (const ComparedRow& row : comparison.rows) {
    std::string head, line;
    for (const auto& [name, value] : columns_of(row_json(row))) {
      head += (head.empty() ? "" : ",") + name;
      line += (line.empty() && name == "name" ? "" : ",") + csv_field(value);
    }
    if (out.empty()) out = head + "\r\n";
    out += line + "\r\n";
  }
  return out;
}

}  // namespace headroom
