// Pooling over [n,c,h,w] images; the result keeps x's memory format and dtype.
#pragma once

#include <array>

#include "core/tensor/tensor.h"

namespace headroom {

struct Pool2dOptions {
  std::array<int64_t, 2> kernel = {2, 2};
  std::array<int64_t, 2> stride = {0, 0};    // 0 means the kernel's size
  std::array<int64_t, 2> padding = {0, 0};   // at most half of what a window reaches over
  std::array<int64_t, 2> dilation = {1, 1};  // max pooling only
  // Output sizes round up instead of down; the last window must still start inside the input or its
  // left padding (PyTorch's rule).
  bool ceil_mode = false;
  bool count_padding = true;  // average pooling only: padding counts in the divisor
};
// Padding never wins; of equals the first in row-major order gets the gradient; NaN wins. Keeps one
// byte per output for backward (eight for windows over 255 elements).
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});
// [n,c,h,w] to [n,c,1,1], summed in f32.
Tensor global_avg_pool2d(const Tensor& x);

}  // namespace headroom
