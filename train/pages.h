// Self-contained pages: HTML with style, script and data inside. They load nothing, so they can be
// mailed, archived and opened from a disk without a network.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace headroom {

// The page of --memory-report FILE.html; data as memory_report_json makes it (memory_report.h).
std::string page_of_memory_report(const nlohmann::ordered_json& data);

// The page of memory-compare's --html. `data`:
//   "model", "batch", "accum", "device", "device_description", "cudnn_version", "steps"
//   "command"   what to type to measure it again
//   "rows"      [{"name", "flags": [..], "status": "ok" | "out of memory" | "failed" | "left out",
//               "message", "peak_allocated", "peak_reserved", "device_bytes",
//               "parts": {tag: bytes}, "first_step_peak", "evaluation_peak", "step_ms",
//               "images_per_s", "saved": part of the first row's peak that it does without,
//               "fidelity": {"label": "reference" | "bit-identical" | "rounding" |
//                            "changes training", "gradient_difference", "loss",
//                            "loss_difference", "batch_norm_difference"},
//               "timeline": {"by_tag": {tag: [bytes..]}, "phase": [name..]}}..]
// The first row that is ok is the one that others are compared with. Numbers, "fidelity" and
// "timeline" may be null or missing where there are none.
std::string page_of_comparison(const nlohmann::ordered_json& data);

}  // namespace headroom
