// What a run comes to: the table for people and the object for programs.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "train/autocast_account.h"
#include "train/memory_guard.h"
#include "train/trainer.h"

namespace headroom {

struct Report {
  TrainConfig config;  // as settled
  RunInfo info;
  RunResult result;
  std::optional<std::string> cudnn_version;      // "9.19.0" where cuDNN computed
  OutsideMemory outside = {};                    // at the end of the run
  std::optional<AutocastAccount> autocast = {};  // with --amp
};

// A run that ended because memory ran out.
struct FailedRun {
  TrainConfig config;
  RunInfo info;       // empty but for the device where the run did not begin
  int64_t steps = 0;  // done before
  // An OutOfMemory, or the host's std::bad_alloc, of which nothing but the message is known.
  const std::exception* error = nullptr;
};
// True of what a FailedRun may have.
bool is_out_of_memory(const std::exception& error);

// The tag's name for people: "saved activation".
std::string words_of(Tag tag);

// Accuracy, speed, and memory with the peak's parts, largest first; ends with a newline.
std::string to_table(const Report& report);

// One JSON object of one line. Sizes are bytes, accuracy is a fraction. What was not measured, and
// NaN and infinities, are null; so are loss, accuracy and speed of meta devices, which compute
// nothing.
std::string to_json(const Report& report);

// The same for a failed run: what was known of it, "steps" that were done, "config", and
//   "error" {"kind" "out of memory", "message", "device", "op", "path", "phase" of the request,
//     "requested_bytes", "rounded_bytes", "segment_bytes",
//     "allocated_bytes", "reserved_bytes", "limit_bytes" (null without one),
//     "device_free_bytes", "device_total_bytes",
//     "parts" {tag: bytes}  of what was allocated; they sum to it
//     "modules" [{"path", "bytes"}..]  the ten that held most, "" for what is in none}
// What is not known of a failure is null.
std::string to_json(const FailedRun& run);

}  // namespace headroom
