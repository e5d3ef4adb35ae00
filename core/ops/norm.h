// Batch normalisation (Ioffe & Szegedy 2015), alone and fused with a residual add and ReLU.
#pragma once

#include "core/tensor/tensor.h"

namespace headroom {

struct BatchNormOptions {
  double eps = 1e-5;      // added to the variance; at least 0
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
// x [n,c,h,w] or [n,c], any floating dtype; residual undefined or of x's shape, floating; y dense,
// of x's format and dtype. With a residual of another dtype the ops run one by one and y is of the
// wider dtype. Statistics in f32 (f64 for f64). Normalises with the biased variance; the running
// variance takes the unbiased one. Running averages move only if the batch's statistics are finite,
// and not in a checkpoint's second forward. Keeps x and two numbers per channel, and y only if
// there is a residual and relu. Without a residual the output carries a recipe, in training and in
// evaluation: who saves it keeps nothing, and it is computed again, bit for bit, from x. In
// evaluation backward reads the running mean, so a training pass in between raises the error of a
// saved tensor that was written. Throws InvalidArgument for an x of another rank; a gamma, beta or
// running average that is not dense and [c] of the statistics' dtype on x's device; a residual of
// another shape or of integers; an eps that is negative or NaN; in training, one value per channel;
// in evaluation, no running averages.
Tensor batch_norm(const Tensor& x, const BatchNormState& state,
                  const BatchNormOptions& options = {}, const Tensor& residual = {});

}  // namespace headroom
