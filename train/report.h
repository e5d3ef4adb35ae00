// What a run comes to: the table for people and the object for programs.
#pragma once

#include <optional>
#include <string>

#include "train/memory_guard.h"
#include "train/trainer.h"

namespace headroom {

struct Report {
  TrainConfig config;  // as settled
  RunInfo info;
  RunResult result;
  std::optional<std::string> cudnn_version;  // "9.19.0" where cuDNN computed
  OutsideMemory outside = {};                // at the end of the run
};

// The tag's name for people: "saved activation".
std::string words_of(Tag tag);

// Accuracy, speed, and memory with the peak's parts, largest first; ends with a newline.
std::string to_table(const Report& report);

// One JSON object of one line. Sizes are bytes, accuracy is a fraction. What was not measured, and
// NaN and infinities, are null; so are loss, accuracy and speed of meta devices, which compute
// nothing.
std::string to_json(const Report& report);

}  // namespace headroom
