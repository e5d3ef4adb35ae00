// Softmax and losses.
#pragma once

#include "core/ops/params.h"
#include "core/tensor/tensor.h"

namespace headroom {

// y = exp(x - max x) / sum exp(x - max x), and its logarithm x - max x - log sum exp(x - max x),
// along one axis of a floating x of any shape (a scalar is one class). f32 under autocast, else x's
// dtype. Keeps y. The result is tagged contiguous whatever x's format, and dense along the last
// axis; along another it is a transposed view of a dense tensor, so bring a channels_last image
// back with contiguous() where that matters. Throws InvalidArgument for an axis out of range.
Tensor softmax(const Tensor& x, int axis = -1);
Tensor log_softmax(const Tensor& x, int axis = -1);

struct CrossEntropyOptions {
  Reduction reduction = Reduction::mean;  // mean over counted rows, or sum
  double label_smoothing = 0;
  int64_t ignored_label = -100;
};
// logits [n,c] of any floating dtype, labels i64 [n]; an f32 scalar (f64 for f64). Row loss =
// (1 - s) * -log p[label] + s * mean over classes of -log p, with p = softmax(logits) and s the
// label smoothing. The mean over no counted rows is NaN, as in PyTorch; the sum is 0. Keeps the
// logits, not p. Throws InvalidArgument for other shapes or dtypes, for no classes, for a smoothing
// outside [0, 1], and for a label outside [0, c) that is not the ignored one: at once on the CPU,
// at the next wait for the device on CUDA, never on meta.
Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options = {});

// mean or sum of (x - target)^2, a scalar; shapes must be equal, floating dtypes may differ. f32
// under autocast, else the wider dtype. Throws InvalidArgument for shapes or devices that differ.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

// count (i64, one element, on the logits' device) += rows whose first maximum is the label, rows of
// the ignored label left out; logits [n,c], labels i64 [n]. No gradient, and no wait. Throws
// InvalidArgument for other shapes or dtypes and for no classes.
void count_correct(const Tensor& logits, const Tensor& labels, Tensor& count,
                   int64_t ignored_label = -100);

}  // namespace headroom
