// Readings for programs.
#include <nlohmann/json.hpp>

#include "train/watch/reading_text.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json json_of(const Run& run, std::optional<int64_t> process_bytes) {
  const Ledger& ledger = run.ledger;
  const Account account = account_of(ledger, process_bytes);
  Json tags = Json::object();
  for (int tag = 0; tag < kTagCount; ++tag) {
    tags[name_of(static_cast<Tag>(tag))] = ledger.tag_bytes[tag];
  }
  return {{"device", ledger.device},
          {"model", ledger.model},
          {"updated_ms", ledger.updated_ms},
          {"step", ledger.step},
          {"total_steps", ledger.total_steps},
          {"live_bytes", account.live_bytes},
          {"cached_bytes", account.cached_bytes},
          {"fragmented_bytes", account.split_bytes},
          {"reserved_bytes", ledger.reserved_bytes},
          {"peak_bytes", ledger.peak_allocated_bytes},
          {"limit_bytes", ledger.limit_bytes > 0 ? Json(ledger.limit_bytes) : Json(nullptr)},
          {"context_and_libraries_bytes", or_null(account.outside_bytes)},
          {"unexplained_bytes", or_null(account.unexplained_bytes)},
          {"live_by_tag", tags}};
}

Json process_json(const Run& run, std::optional<int64_t> bytes) {
  return {{"pid", run.ledger.pid},
          {"name", run.name},
          {"bytes", or_null(bytes)},
          {"run", json_of(run, bytes)}};
}

Json json_of(const Reading& reading, const GpuReading& gpu) {
  Json processes = Json::array();
  for (const GpuProcess& process : gpu.processes) {
    const Run* run = gpu_run_of(reading, process.pid);
    processes.push_back({{"pid", process.pid},
                         {"name", process.name.empty() ? Json(nullptr) : Json(process.name)},
                         {"graphics", process.graphics},
                         {"bytes", or_null(process.bytes)},
                         {"run", run ? json_of(*run, process.bytes) : Json(nullptr)}});
  }
  return {{"index", gpu.index},
          {"name", gpu.name.empty() ? Json(nullptr) : Json(gpu.name)},
          {"uuid", gpu.uuid.empty() ? Json(nullptr) : Json(gpu.uuid)},
          {"used_bytes", or_null(gpu.used_bytes)},
          {"total_bytes", or_null(gpu.total_bytes)},
          {"utilisation_percent", or_null(gpu.utilisation_percent)},
          {"failures", gpu.failures},
          {"processes", processes}};
}

}  // namespace

std::string reading_json(const Reading& reading) {
  Json gpus = Json::array(), unlisted = Json::array(), host = Json::array();
  for (const GpuReading& gpu : reading.gpus) gpus.push_back(json_of(reading, gpu));
  for (const Run* run : unlisted_runs(reading)) {
    unlisted.push_back(process_json(*run, std::nullopt));
  }
  for (const Run* run : cpu_runs(reading)) host.push_back(process_json(*run, run->resident_bytes));
  const Json out = {
      {"time", reading.time},
      {"nvml_failure", reading.nvml_failure.empty() ? Json(nullptr) : Json(reading.nvml_failure)},
      {"gpus", gpus},
      {"unlisted_runs", unlisted},
      {"host",
       {{"total_bytes", reading.host.total_bytes},
        {"available_bytes", reading.host.available_bytes},
        {"processes", host}}}};
  // A process may be named in any bytes.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace headroom
