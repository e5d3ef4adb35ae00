// Matrix products.
#pragma once

#include "core/tensor/tensor.h"

namespace headroom {

// y[m,n] = a[m,k] * b[k,n] + bias[n]; bias optional. Half precision under autocast.
Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& bias = {});

// y[n,out] = x[n,in] * weight[out,in]^T + bias[out]; bias optional. Half precision under autocast;
// the bias gradient is summed in f32.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace headroom
