// Softmax and losses.
#pragma once

#include "core/ops/params.h"
#include "core/tensor/tensor.h"

namespace headroom {

// Along one axis; f32 under autocast.
Tensor softmax(const Tensor& x, int axis = -1);
Tensor log_softmax(const Tensor& x, int axis = -1);

struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;  // mean over counted rows, or sum
  double label_smoothing = 0;
  int64_t ignored_label = -100;
};
// logits [n,c] of any floating dtype, labels i64 [n]; an f32 scalar (f64 for f64). Row loss =
// (1 - s) * -log p[label] + s * mean over classes of -log p. The mean over no counted rows is NaN,
// as in PyTorch; the sum is 0. Throws InvalidArgument for a label outside [0, c): at once on the
// CPU, at the next wait for the device on CUDA.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options = {});

// mean or sum of (x - target)^2; f32 under autocast.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

// count (i64 scalar tensor) += rows whose first maximum is the label. No gradient.
void count_correct(const Tensor& logits, const Tensor& labels, Tensor& count,
                   int64_t ignored_label = -100);

}  // namespace headroom
