// Whether a remedy changed the training, told from what was measured and from what is known of it.
//
// What rounding alone can do. Each layer rounds its input, weights and output: after l layers
// values are off by about u * sqrt(2 l), relative, where u is the unit roundoff of the coarser of
// the two runs (2^-24 in f32, 2^-11 in f16 and TF32, 2^-8 in bf16). Values themselves would differ
// by little more. But a ReLU, or the maximum of a pool, that lies this close to its threshold
// switches, and then its whole part of a gradient comes or goes: among units of unit scale, whose
// density at the threshold is about 0.4, a share p of 0.8 u * sqrt(2 l) does. A gradient is a sum
// of many such parts with no common sign, so a share p of them moves it by sqrt(p), and over the L
// layers that a backward pass goes through these add as squares: sum of p = 0.8 u * sqrt(2) * (2/3)
// * L^1.5, so the gradient is off by sqrt(0.75 u L^1.5) = 0.87 * sqrt(u) * L^0.75.
// This is the typical element. The largest of a tensor, over all tensors, was off by up to
// 3.3 sqrt(u) L^0.75 on the models here (lenet, vgg16, resnet18; f32 in two layouts, f16, bf16), so
// 6 is taken:
//
//   gradient_bound = min(1, 6 sqrt(u) L^0.75)
//
// For lenet (L = 4) 4.1e-3 in f32 and 0.38 in f16, for resnet18 (L = 21) 1.4e-2 in f32. At 1 a
// tensor is off by its own largest element, and nothing can be told any more: there it is what is
// known of the flags, and the other two measures, that decide.
//
// Running statistics are smooth in the values, so only the first estimate counts: 2 u to 16 u was
// measured on resnet18, and batch_norm_bound = 16 u sqrt(2 L) allowed. The loss after a few steps
// has moved by at most about itself along gradients that are off by the first bound; what moves it
// by a quarter is no rounding that a person would accept: loss_bound = min(0.25, gradient_bound).
// It is that of step 3: from there on training magnifies any difference. Runs of vgg16 on random
// labels whose gradients agreed to 6e-7 had losses that differed by a third after 20 steps.
#pragma once

#include <optional>
#include <string>

#include "train/compare/measurement.h"

namespace headroom {

enum class FidelityLabel : uint8_t {
  bit_identical,     // first gradients, running statistics, loss and weights at the end: all bits
  rounding,          // all differences are within their bounds, and nothing below applies
  changes_training,  // beyond them, or by definition: see what_differs
};
const char* name_of(FidelityLabel label);  // "bit-identical", "rounding", "changes training"

struct Fidelity {
  FidelityLabel label = FidelityLabel::changes_training;
  std::optional<double> gradient_difference;  // as in TrainingFacts
  double loss = 0;
  std::optional<double> loss_difference;        // |a - b| / |b|; nothing if not finite
  std::optional<double> batch_norm_difference;  // as in TrainingFacts
  std::optional<double> early_loss_difference;  // of step kEarlyStep; this one is judged
  // With changes_training: what_differs, or which measure is beyond its bound.
  std::string reason = {};
};

double gradient_bound(double unit_roundoff, int64_t depth);
double batch_norm_bound(double unit_roundoff, int64_t depth);
double loss_bound(double unit_roundoff, int64_t depth);

// Why two runs are other trainings by definition, whatever their first numbers say: "optimizer";
// empty if they are not. Flags that define the training, images per step, the micro-batch where
// batch norm sees it, steps that the loss scaler skipped.
std::string what_differs(const TrainingFacts& row, const TrainingFacts& first);

Fidelity fidelity_of(const TrainingFacts& row, const TrainingFacts& first);

}  // namespace headroom
