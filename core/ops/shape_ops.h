// Ops that move axes about, for any dtype. permute, transpose, slice and expand give views, reshape
// and flatten where the strides allow, else a copy; views share storage and are not to be written
// in place while gradients are recorded. Extents and positions count elements, negative axes from
// the end. All throw InvalidArgument for an axis out of range and for more than six axes.
#pragma once

#include <vector>

#include "core/tensor/tensor.h"

namespace headroom {

// Elements in logical order, tagged contiguous unless the shape stays; one extent may be -1. Throws
// InvalidArgument when counts differ or do not divide, for a second -1, and for other negatives.
Tensor reshape(const Tensor& x, const std::vector<int64_t>& shape);
// Joins axes first..last into one; a scalar becomes [1]. A channels_last image is brought to
// logical order first. Throws InvalidArgument if first lies after last.
Tensor flatten(const Tensor& x, int first_axis = 0, int last_axis = -1);
// Axis i of the result is x's axis axes[i]; tagged contiguous, with x's strides in the new order.
// Throws InvalidArgument unless every axis of x appears once.
Tensor permute(const Tensor& x, const std::vector<int>& axes);
// Two axes change places; otherwise as permute.
Tensor transpose(const Tensor& x, int axis_a, int axis_b);
// x[..., begin:end, ...] along axis, in x's format; negative positions count from the end. Throws
// InvalidArgument unless 0 <= begin <= end <= size after that: nothing is clamped.
Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end);
// Repeats axes of extent 1, and adds axes in front, without copying (stride 0); -1 keeps an axis as
// it is. A gradient is summed back. Throws InvalidArgument for a shape that x does not broadcast
// to, and for other negatives.
Tensor expand(const Tensor& x, const std::vector<int64_t>& shape);
// Joins along an axis, into a new tensor in the first part's format; parts of several floating
// dtypes are joined in the one that holds them all. Throws InvalidArgument for no parts, for
// integers with other dtypes, and where other extents or devices differ.
Tensor concat(const std::vector<Tensor>& parts, int axis);

}  // namespace headroom
