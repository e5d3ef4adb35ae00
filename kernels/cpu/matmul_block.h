// The one matrix product that matmul and the convolutions share: a block, on one thread.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/tensor/view.h"

namespace headroom::cpu {

// A block of a row-major matrix, or with `transposed` the transpose of the block that lies in
// memory. row_stride is in elements.
template <class T>
struct Block {
  T* data = nullptr;
  int64_t row_stride = 0;
  bool transposed = false;
};

// y[m,n] += a[m,k] * b[k,n] with Eigen, on the calling thread. y is not transposed. T is float or
// double.
template <class T>
void add_product(int64_t m, int64_t n, int64_t k, Block<const T> a, Block<const T> b, Block<T> y);

extern template void add_product<float>(int64_t, int64_t, int64_t, Block<const float>,
                                        Block<const float>, Block<float>);
extern template void add_product<double>(int64_t, int64_t, int64_t, Block<const double>,
                                         Block<const double>, Block<double>);

// Element i of a dense operand of any floating dtype; for small ones, such as a bias.
template <class Compute>
Compute element_of(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::f16:
      return static_cast<float>(view.as<Half>()[i]);
    case DType::bf16:
      return static_cast<float>(view.as<BFloat16>()[i]);
    case DType::f32:
      return static_cast<Compute>(view.as<float>()[i]);
    default:
      return static_cast<Compute>(view.as<double>()[i]);
  }
}

}  // namespace headroom::cpu
