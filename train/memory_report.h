// The picture of one run's memory: files for people, programs and other tools' viewers.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "train/memory_record.h"
#include "train/report.h"

namespace headroom {

// What --memory-report FILE.json holds:
//   "run"       the object that --json prints (report.h)
//   "step"      the recorded step
//   "tags"      names of the tags, the order of all arrays of bytes by tag
//   "phases"    names of the phases
//   "timeline"  {"time_us": [..], "allocated": [..], "reserved": [..], "phase": [index..],
//               "op": [name..], "path": [name..], "by_tag": [[bytes of tag 0..], ..]}: the state
//               after each event that changed the allocated bytes; entry 0 is the state before the
//               first
//   "dropped_events"
//   "peak"      {"allocated", "index" (into the timeline), "phase", "op", "path",
//               "by_tag": [..], "parts": [{"tag", "path", "op", "bytes", "blocks"}..]}, largest
//               first; parts and by_tag sum to "allocated"
//   "layers"    [{"path", "by_tag": [..], "total"}..] at the peak, largest first; they sum to it
// Of a failed run "run" has what that prints (report.h), and "peak" is the instant of the failure:
// its op, path and phase are those of the request, its parts what was held.
nlohmann::ordered_json memory_report_json(const StepRecord& record, const Report& report);
nlohmann::ordered_json memory_report_json(const StepRecord& record, const FailedRun& run);

// Writes such a report where its flag says: a page for FILE.html, else JSON. Replaces the file
// whole or not at all. Throws DataError if it cannot be written.
void write_memory_report(const std::string& path, const StepRecord& record, const Report& report);
void write_memory_report(const std::string& path, const StepRecord& record, const FailedRun& run);

}  // namespace headroom
