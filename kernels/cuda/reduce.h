// The reduction slot's function on CUDA, for kernels whose work is a reduction.
#pragma once

#include "core/ops/params.h"
#include "core/tensor/view.h"

namespace headroom::cuda {

// As slots::reduce; x and y f16, bf16 or f32. Partial results go to reduction_scratch().
void reduce(ReduceOp op, const View& x, const View& y);

}  // namespace headroom::cuda
