// All rows of a comparison, run one after the other, and the files and the table they make.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "train/compare/configuration.h"
#include "train/compare/fidelity.h"
#include "train/compare/measurement.h"

namespace headroom {

struct ComparedRow {
  Configuration configuration;
  RowMeasurement measured;
  std::optional<double> saved;       // 1 - peak / peak of the reference; where the row is ok
  std::optional<Fidelity> fidelity;  // against the reference; where the row is ok and computes
};

struct Comparison {
  TrainConfig config;  // of the shared flags, settled: the steps of a row, the device's name
  std::string command;
  std::string device_description;
  std::optional<std::string> cudnn_version;
  std::vector<ComparedRow> rows;
  bool interrupted = false;  // rows after the last one here were not run
};

// The row that the others are compared with: the first that ran to its end. nullptr: none did.
const ComparedRow* reference_of(const std::vector<ComparedRow>& rows);

// Who is told how far it is.
class CompareObserver {
 public:
  virtual ~CompareObserver() = default;
  virtual void on_row_begin(size_t /*index*/, const Configuration&) {}
  // Several times a second.
  virtual void on_row_progress(const RowProgress&) {}
  virtual void on_row_end(const ComparedRow&) {}
};

// Runs the rows that are not left out, each in a process of its own, one after the other. A row
// that fails is a row with its message. Once `stop` says so the running row is killed and given up.
Comparison run_comparison(const CompareLine& line, Device device, CompareObserver& observer,
                          const std::function<bool()>& stop);

// What --json FILE holds:
//   "model", "batch", "accum"   of the shared flags
//   "device", "device_description", "cudnn_version" (null where cuDNN computes nothing)
//   "steps"                     of a row, 0 where epochs decide
//   "command"
//   "rows" [{"name", "flags" ["--amp"..], "status" ok | out of memory | failed | left out,
//     "message"             why not ok; on an ok row why it is another training, what happened
//     "peak_allocated", "peak_reserved"
//     "device_bytes"        null where a driver has nothing to say, as on a CPU
//     "parts" {tag: bytes}  of the peak; they sum to it
//     "first_step_peak", "evaluation_peak"
//     "host_peak"           of saved tensors in host memory; in no other number
//     "step_ms", "images_per_s"
//     "saved"               1 - peak / peak of the first row that is ok
//     "fidelity" {"label", "gradient_difference", "loss", "loss_difference",
//                 "early_loss_difference", "batch_norm_difference"} or null
//     "timeline" {"by_tag" {tag: [bytes..]}, "phase" [name..]} of the recorded step}..]
// Bytes everywhere; null for what was not measured or is not finite.
nlohmann::ordered_json comparison_json(const Comparison& comparison);

// One line per row, the same fields without the timeline; as RFC 4180 has it.
std::string comparison_csv(const Comparison& comparison);

// For people: the rows, the parts of their peaks, and remarks. Ends with a newline.
std::string comparison_table(const Comparison& comparison);

}  // namespace headroom
