// Ops that move axes about. reshape, flatten, permute, slice and expand give views where strides
// allow (reshape copies otherwise); views share storage and are not to be written in place while
// gradients are recorded.
#pragma once

#include <vector>

#include "core/tensor/tensor.h"

namespace headroom {

// Elements in logical order; one extent may be -1. Throws InvalidArgument when counts differ.
Tensor reshape(const Tensor& x, const std::vector<int64_t>& shape);
// Joins axes first..last into one. A channels_last image is brought to logical order first.
Tensor flatten(const Tensor& x, int first_axis = 0, int last_axis = -1);
Tensor permute(const Tensor& x, const std::vector<int>& axes);
Tensor transpose(const Tensor& x, int axis_a, int axis_b);
// x[..., begin:end, ...] along axis; negative positions count from the end; 0 <= begin <= end <=
// size.
Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end);
// Repeats axes of extent 1 without copying (stride 0).
Tensor expand(const Tensor& x, const std::vector<int64_t>& shape);
// Joins along an axis; parts of several floating dtypes are joined in the one that holds them all.
// Throws InvalidArgument where other extents or devices differ.
Tensor concat(const std::vector<Tensor>& parts, int axis);

}  // namespace headroom
