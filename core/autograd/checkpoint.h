// Activation checkpointing (Chen et al. 2016, "Training deep nets with sublinear memory cost").
#pragma once

#include <functional>

#include "core/tensor/tensor.h"

namespace headroom {

// y = fn(x), keeping nothing of what fn computes but x; backward runs fn again. The second run sees
// the random state, the autocast state and the modes (training or evaluation) of the first: the
// same dropout masks, the same dtypes, and no second update of running averages. fn may use any
// tensors besides x: parameters mostly, or others of the graph, such as a skip connection; y
// requires a gradient if x or any of them does. Without gradients, or under NoGrad, it is fn(x) and
// nothing else. Throws what fn throws; InvalidArgument for an undefined x or result, if fn wrote x,
// or another tensor that requires a gradient, in place and backward would need it, and in backward
// if the second run gives another shape; Error in backward if one of them was written in place
// after the call.
Tensor checkpoint(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x);

// Whether a checkpoint's second forward is running on this thread: layers with state must not
// update it again.
bool in_recomputation();

namespace detail {

// The mode in which an op that differs between training and evaluation has to run: `training`, or
// in a checkpoint's second forward the mode that it had in the first, whatever was set since.
bool mode_of_first_run(bool training);

}  // namespace detail

}  // namespace headroom
