// What several op families need: dense gradients, gradients of broadcasts, and the rules of
// in-place ops.
#pragma once

#include "core/autograd/node.h"
#include "core/ops/contract.h"
#include "core/tensor/tensor.h"

namespace headroom::detail {

// Of two floating dtypes the one that holds both; f16 with bf16 gives f32. Integers give way to
// floats.
DType promote(DType a, DType b);

// Throws InvalidArgument unless all operands that are given are floating.
void check_floating(const char* op, std::initializer_list<const Tensor*> operands);

// dy itself if nobody else holds it and it is dense, else a new tensor like it (dense in `format`):
// where a backward may put a result of dy's shape and dtype.
Tensor reuse_or_empty(const Tensor& dy, bool unique, MemoryFormat format);

// The sum of dy over the axes along which `shape` was broadcast, in `dtype`.
Tensor sum_to(const Tensor& dy, const Shape& shape, DType dtype);

// x with strides of 0 where shape repeats it.
View broadcast_view(const Tensor& x, const Shape& shape);

// Refuses what an in-place op must not touch while gradients are recorded: leaves that require a
// gradient, views, and tensors that have views.
void check_in_place(const char* op, const Tensor& x, bool records);

// Refuses an operand whose elements lie among those of x but not in the same places: x is written
// while it is read.
void check_overlap(const char* op, const Tensor& x, const Tensor& from);

// Hangs x, which was just written, on its new node: version up, recipe gone.
void finish_in_place(Tensor& x, const std::shared_ptr<Node>& node);

}  // namespace headroom::detail
