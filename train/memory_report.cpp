// Writing the report.
#include "train/memory_report.h"

#include <nlohmann/json.hpp>

#include "train/checkpoint/atomic_file.h"
#include "train/pages.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

Json names_of_tags() {
  Json out = Json::array();
  for (int tag = 0; tag < kTagCount; ++tag) out.push_back(name_of(static_cast<Tag>(tag)));
  return out;
}

Json names_of_phases() {
  Json out = Json::array();
  for (int phase = 0; phase <= static_cast<int>(Phase::search); ++phase) {
    out.push_back(name_of(static_cast<Phase>(phase)));
  }
  return out;
}

int64_t sum_of(const BytesByTag& bytes) {
  int64_t sum = 0;
  for (const int64_t each : bytes) sum += each;
  return sum;
}

Json timeline_json(const EventLog& log, const std::vector<TimelinePoint>& points) {
  Json time = Json::array(), allocated = Json::array(), reserved = Json::array();
  Json phases = Json::array(), ops = Json::array(), paths = Json::array();
  std::vector<Json> by_tag(kTagCount, Json::array());
  const int64_t begin = log.events.empty() ? 0 : log.events.front().time_us;
  for (const TimelinePoint& point : points) {
    const MemoryEvent event =
        point.event >= 0 ? log.events[static_cast<size_t>(point.event)] : MemoryEvent{};
    time.push_back(point.event >= 0 ? event.time_us - begin : 0);
    allocated.push_back(sum_of(point.by_tag));
    reserved.push_back(point.reserved_bytes);
    phases.push_back(static_cast<int>(event.phase));
    ops.push_back(event.op);
    paths.push_back(path_name(event.path));
    for (size_t tag = 0; tag < by_tag.size(); ++tag) by_tag[tag].push_back(point.by_tag[tag]);
  }
  return {{"time_us", time}, {"allocated", allocated}, {"reserved", reserved}, {"phase", phases},
          {"op", ops},       {"path", paths},          {"by_tag", by_tag}};
}

Json peak_json(const StepRecord& record, const std::vector<TimelinePoint>& points) {
  const MemoryPeak& peak = record.peak;
  size_t index = 0;
  while (index + 1 < points.size() && points[index].event < peak.event) ++index;
  const MemoryEvent event =
      peak.event >= 0 ? record.log.events[static_cast<size_t>(peak.event)] : MemoryEvent{};
  Json parts = Json::array();
  BytesByTag by_tag{};
  for (const PeakPart& part : peak.parts) {
    by_tag[static_cast<size_t>(part.tag)] += part.bytes;
    parts.push_back({{"tag", name_of(part.tag)},
                     {"path", path_name(part.path)},
                     {"op", part.op},
                     {"bytes", part.bytes},
                     {"blocks", part.blocks}});
  }
  return {{"allocated", peak.allocated_bytes},
          {"index", index},
          {"phase", name_of(event.phase)},
          {"op", event.op},
          {"path", path_name(event.path)},
          {"by_tag", by_tag},
          {"parts", parts}};
}

Json report_of(const StepRecord& record, const std::string& run_json) {
  const std::vector<TimelinePoint> points = timeline_of(record.log);
  Json layers = Json::array();
  for (const LayerRow& row : layers_at_peak(record.peak)) {
    layers.push_back({{"path", row.path}, {"by_tag", row.by_tag}, {"total", row.total_bytes}});
  }
  Json out;
  out["run"] = Json::parse(run_json);
  out["step"] = record.step;
  out["tags"] = names_of_tags();
  out["phases"] = names_of_phases();
  out["timeline"] = timeline_json(record.log, points);
  out["dropped_events"] = record.log.dropped;
  out["peak"] = peak_json(record, points);
  out["layers"] = layers;
  return out;
}

void write_report(const std::string& path, const Json& report) {
  const bool is_page = path.ends_with(".html");
  write_file_atomically(
      path, is_page ? page_of_memory_report(report)
                    : report.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

Json memory_report_json(const StepRecord& record, const Report& report) {
  return report_of(record, to_json(report));
}

Json memory_report_json(const StepRecord& record, const FailedRun& run) {
  return report_of(record, to_json(run));
}

void write_memory_report(const std::string& path, const StepRecord& record, const Report& report) {
  write_report(path, memory_report_json(record, report));
}

void write_memory_report(const std::string& path, const StepRecord& record, const FailedRun& run) {
  write_report(path, memory_report_json(record, run));
}

}  // namespace headroom
