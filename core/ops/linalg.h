// Matrix products: rank 2 alone, any strides; results are dense, of the operands' dtype.
#pragma once

#include "core/tensor/tensor.h"

namespace headroom {

// y[m,n] = a[m,k] * b[k,n] + bias[n]; bias optional. Half precision under autocast; outside of it a
// and b must have one floating dtype. bias may be of any floating dtype, and its gradient, in that
// dtype, is summed in f32 (f64 for f64). k may be 0: y is then the bias, or zeros. On CUDA f32
// products are rounded to TF32 if settings().tf32 is all. Throws InvalidArgument for operands that
// are no matrices, inner sizes or dtypes that differ, and a bias that does not have n elements in
// one axis.
Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& bias = {});

// y[n,out] = x[n,in] * weight[out,in]^T + bias[out]; otherwise as matmul. An x of more axes is to
// be flattened first.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace headroom
