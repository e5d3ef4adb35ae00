// What a row's process is asked, and what it answers. Both travel as JSON over pipes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "train/trainer.h"

namespace headroom {

struct RowRequest {
  std::vector<std::string> arguments;  // of train
  // Whether there is a first step to compare with; if not, the row writes its own.
  bool has_reference = false;
  // Free on the device before the row's process had a context; -1: not known.
  int64_t device_free_bytes = -1;
  int64_t parent = 0;  // the process that asks; without it the row ends
};

// Optimizer steps done, of how many, and what runs after the last: for those who wait.
struct RowProgress {
  int64_t step = 0, steps = 0;
  bool evaluating = false;
};

// Losses are judged where momentum has had its say and what two runs round differently has not been
// magnified by many updates yet.
constexpr int64_t kEarlyStep = 3;

// What tells one training from another.
struct TrainingFacts {
  bool first_step_identical = false;  // gradients and running statistics have the reference's bits
  // Of the first step; nothing where there is no reference, where its parameters are others, or
  // where a value is not finite.
  std::optional<double> gradient_difference, batch_norm_difference;
  bool has_batch_norm = false;
  double loss = 0;          // of the last step
  double early_loss = 0;    // of step kEarlyStep, or the last of fewer
  std::string fingerprint;  // of weights and running statistics at the end
  int64_t skipped_steps = 0;
  int64_t step_images = 0, micro_batch = 0;
  int64_t depth = 0;         // layers with weights
  double unit_roundoff = 0;  // of the coarsest arithmetic in its products
  nlohmann::ordered_json config;
};

// The state of a step over time, thinned.
struct Timeline {
  std::vector<BytesByTag> by_tag;
  std::vector<std::string> phase;
};

enum class RowStatus : uint8_t { ok, out_of_memory, failed, left_out };
const char* name_of(RowStatus status);  // "ok", "out of memory", "failed", "left out"

struct RowMeasurement {
  RowStatus status = RowStatus::failed;
  std::string message;  // why not ok; on an ok row, what happened on the way
  // Of the run; where memory ran out, of what was done of it. parts are empty (all 0) where the
  // instant of the peak is not known.
  PhasePeak peak;
  int64_t first_step_peak = 0, evaluation_peak = 0;  // 0: not reached
  std::optional<int64_t> device_bytes;
  std::optional<double> step_ms, images_per_s;
  Timeline timeline;
  std::optional<TrainingFacts> facts;
};

nlohmann::ordered_json to_json(const RowRequest& request);
nlohmann::ordered_json to_json(const RowMeasurement& row);
// Throw nlohmann::json::exception for JSON that is not of the form.
RowRequest request_of(const nlohmann::ordered_json& json);
RowMeasurement measurement_of(const nlohmann::ordered_json& json);

}  // namespace headroom
