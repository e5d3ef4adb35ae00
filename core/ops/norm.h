// Batch normalisation (Ioffe & Szegedy 2015), alone and fused with a residual add and ReLU.
#pragma once

#include "core/tensor/tensor.h"

namespace headroom {

struct BatchNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;  // running = (1 - momentum) * running + momentum * batch
  bool training = true;   // false: normalise with the running averages
  bool relu = false;      // fused: y = max(0, ...)
};

// Parameters and running averages of one layer, [c] each, f32 (f64 for f64 input) whatever x is.
// gamma and beta may be undefined (1 and 0); the running averages may be undefined when training.
struct BatchNormState {
  Tensor gamma = {};
  Tensor beta = {};
  Tensor running_mean = {};
  Tensor running_var = {};
};

// y = relu?(gamma * (x - mean) / sqrt(var + eps) + beta + residual), per channel over n, h, w.
// x [n,c,h,w] or [n,c]; residual undefined or of x's shape. Normalises with the biased variance;
// the running variance takes the unbiased one. Running averages move only if the batch's statistics
// are finite, and not in a checkpoint's second forward. In training without a residual the output
// carries a recipe: who saves it keeps nothing, and it is computed again, bit for bit, from x.
// Throws InvalidArgument in training with one value per channel.
Tensor batch_norm(const Tensor& x, const BatchNormState& state,
                  const BatchNormOptions& options = {}, const Tensor& residual = {});

}  // namespace headroom
