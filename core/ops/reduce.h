// Reductions of floating tensors of any shape and strides; results are dense and contiguous. Sums
// are made in f32 or wider (f64 for f64); sum and mean of half tensors return f32 under autocast,
// the input's dtype otherwise. Throw InvalidArgument for an axis out of range.
#pragma once

#include <vector>

#include "core/tensor/tensor.h"

namespace headroom {

struct ReduceOptions {
  std::vector<int> axes = {};  // empty: all axes; negative axes count from the end
  bool keep_dims = false;      // keep the reduced axes, with extent 1
};
// The sum of no elements is 0. The gradient is dy repeated, a view: nothing is kept or written.
Tensor sum(const Tensor& x, const ReduceOptions& options = {});
// The mean of no elements is NaN.
Tensor mean(const Tensor& x, const ReduceOptions& options = {});

// The largest element of all (a scalar), or along one axis, in x's dtype; NaN counts as largest,
// the first of equals gets the gradient. Throws InvalidArgument for an empty axis or no elements.
Tensor max(const Tensor& x);
struct MaxResult {
  Tensor values;
  Tensor indices;  // i64, along the axis; no gradient
};
MaxResult max(const Tensor& x, int axis, bool keep_dims = false);
Tensor argmax(const Tensor& x, int axis, bool keep_dims = false);  // i64, no gradient

}  // namespace headroom
