// Labels.
#include "train/compare/fidelity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace headroom {
namespace {

// Keys of the configuration that say what is computed, not how.
constexpr const char* kDefining[] = {"model",        "classifier", "data",      "image_size",
                                     "augment",      "drop_last",  "optimizer", "lr",
                                     "momentum",     "nesterov",   "schedule",  "warmup",
                                     "weight_decay", "clip_norm",  "seed",      "label_smoothing"};

// From here on gradients tell nothing, see the header.
constexpr double kMostGradientBound = 1;

// Why a difference is more than rounding; empty if it is not.
std::string why_beyond(const char* what, const std::optional<double>& difference, double bound) {
  if (!difference) return fmt::format("{} cannot be compared: other shapes, or not finite", what);
  if (*difference <= bound) return {};
  return fmt::format("{} differ by {:.1e}, rounding explains {:.1e}", what, *difference, bound);
}

// The first measure that rounding does not explain.
std::string first_beyond(const Fidelity& measured, const TrainingFacts& row,
                         const TrainingFacts& first) {
  const double u = std::max(row.unit_roundoff, first.unit_roundoff);
  const int64_t depth = first.depth;
  const double allowed = gradient_bound(u, depth);
  std::string why =
      why_beyond("gradients", measured.gradient_difference,
                 allowed < kMostGradientBound ? allowed : std::numeric_limits<double>::infinity());
  if (why.empty()) {
    why = why_beyond("early losses", measured.early_loss_difference, loss_bound(u, depth));
  }
  if (why.empty() && first.has_batch_norm) {
    why = why_beyond("running statistics", measured.batch_norm_difference,
                     batch_norm_bound(u, depth));
  }
  return why;
}

std::optional<double> relative_difference(double a, double b) {
  const double difference = std::abs(a - b);
  if (!std::isfinite(difference)) return std::nullopt;
  if (difference == 0) return 0;
  return b != 0 ? std::optional<double>(difference / std::abs(b)) : std::nullopt;
}

}  // namespace

const char* name_of(FidelityLabel label) {
  switch (label) {
    case FidelityLabel::bit_identical:
      return "bit-identical";
    case FidelityLabel::rounding:
      return "rounding";
    case FidelityLabel::changes_training:
      break;
  }
  return "changes training";
}

double gradient_bound(double unit_roundoff, int64_t depth) {
  constexpr double kFactor = 6, kDepthPower = 0.75;
  return std::min(kMostGradientBound, kFactor * std::sqrt(unit_roundoff) *
                                          std::pow(static_cast<double>(depth), kDepthPower));
}

double batch_norm_bound(double unit_roundoff, int64_t depth) {
  constexpr double kFactor = 16;
  return kFactor * unit_roundoff * std::sqrt(2 * static_cast<double>(depth));
}

double loss_bound(double unit_roundoff, int64_t depth) {
  constexpr double kMost = 0.25;
  return std::min(kMost, gradient_bound(unit_roundoff, depth));
}

std::string what_differs(const TrainingFacts& row, const TrainingFacts& first) {
  for (const char* key : kDefining) {
    if (row.config.at(key) != first.config.at(key)) return key;
  }
  if (row.step_images != first.step_images) return "images per step";
  if (row.has_batch_norm && row.micro_batch != first.micro_batch) {
    return "batch norm sees micro-batches of another size";
  }
  if (row.skipped_steps != first.skipped_steps) {
    return fmt::format("the loss scaler skipped {} steps, in the first row {}", row.skipped_steps,
                       first.skipped_steps);
  }
  return {};
}

Fidelity fidelity_of(const TrainingFacts& row, const TrainingFacts& first) {
  Fidelity out;
  out.gradient_difference = row.gradient_difference;
  out.batch_norm_difference = row.batch_norm_difference;
  out.loss = row.loss;
  out.loss_difference = relative_difference(row.loss, first.loss);
  out.early_loss_difference = relative_difference(row.early_loss, first.early_loss);
  if (row.first_step_identical && row.fingerprint == first.fingerprint && row.loss == first.loss) {
    out.label = FidelityLabel::bit_identical;
    return out;
  }
  out.reason = what_differs(row, first);
  if (out.reason.empty()) out.reason = first_beyond(out, row, first);
  if (out.reason.empty()) out.label = FidelityLabel::rounding;
  return out;
}

}  // namespace headroom
