// A reading as text for a person and as JSON for a program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/watch/reading.h"

namespace headroom {

// Lines, each ended. `pid`: the one process that was asked for. What is not known is said to be so,
// never shown as zero.
std::string reading_text(const Reading& reading, std::optional<int64_t> pid = std::nullopt);

// One line without its end:
//   {"time": seconds since 1970,
//    "nvml_failure": text or null,
//    "gpus": [{"index", "name", "uuid", "used_bytes", "total_bytes", "utilisation_percent",
//              "failures": [text], "processes": [{"pid", "name", "graphics", "bytes", "run"}]}],
//    "unlisted_runs": [process],
//    "host": {"total_bytes", "available_bytes", "processes": [process]}}
// where a process of no GPU's list is {"pid", "name", "bytes", "run"}, a run is null or
//   {"device", "model", "updated_ms", "step", "total_steps", "live_bytes", "cached_bytes",
//    "fragmented_bytes", "reserved_bytes", "peak_bytes", "limit_bytes",
//    "context_and_libraries_bytes", "unexplained_bytes", "live_by_tag": {tag: bytes}}
// and whatever is not known is null.
std::string reading_json(const Reading& reading);

}  // namespace headroom
