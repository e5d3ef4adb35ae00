// Reductions. Half inputs are summed in f32; sum and mean of half tensors return f32 under
// autocast, the input's dtype otherwise.
#pragma once

#include <vector>

#include "core/tensor/tensor.h"

namespace headroom {

struct ReduceOptions {
  std::vector<int> axes = {};  // empty: all axes; negative axes count from the end
  bool keep_dims = false;
};
Tensor sum(const Tensor& x, const ReduceOptions& options = {});
// The mean of no elements is NaN.
Tensor mean(const Tensor& x, const ReduceOptions& options = {});

// The largest element of all, or along one axis; NaN counts as largest, the first of equals gets
// the gradient. Throws InvalidArgument for an empty axis.
Tensor max(const Tensor& x);
struct MaxResult {
  Tensor values;
  Tensor indices;  // i64
};
MaxResult max(const Tensor& x, int axis, bool keep_dims = false);
Tensor argmax(const Tensor& x, int axis, bool keep_dims = false);  // i64, no gradient

}  // namespace headroom
