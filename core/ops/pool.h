// Pooling over [n,c,h,w] images of any floating dtype; y [n,c,p,q] keeps x's memory format and
// dtype.
#pragma once

#include <array>

#include "core/tensor/tensor.h"

namespace headroom {

// Pairs are {vertical, horizontal}.
struct Pool2dOptions {
  std::array<int64_t, 2> kernel = {2, 2};
  std::array<int64_t, 2> stride = {0, 0};    // 0 means the kernel's size
  std::array<int64_t, 2> padding = {0, 0};   // at most half of what a window reaches over
  std::array<int64_t, 2> dilation = {1, 1};  // max pooling only
  // Output sizes round up instead of down (see below).
  bool ceil_mode = false;
  bool count_padding = true;  // average pooling only: padding counts in the divisor
};
// Both: p = floor((h + 2*padding - dilation*(kernel-1) - 1) / stride) + 1, and q likewise;
// with ceil_mode the quotient is rounded up, and p is one less again if the last window would start
// beyond the input and its left padding, at (p - 1) * stride >= h + padding (PyTorch's rule).
// Both throw InvalidArgument for an x of another rank than 4, a kernel, stride or dilation below 1
// (a stride of 0 means the kernel's), a padding below 0 or over half of what a window reaches over
// (dilation*(kernel-1) + 1), and a window that does not fit the padded input.

// y[n,c,p,q] = max over r,s of x[n, c, p*stride - padding + r*dilation, ...]. Padding never wins;
// of equals the first in row-major order gets the gradient; NaN wins. Keeps one byte per output for
// backward (eight for windows over 255 elements), and nothing of x or y.
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
// y[n,c,p,q] = sum over r,s of x[n, c, p*stride - padding + r, ...] / count, summed in f32 (f64 for
// f64). count is the window's size less what overhangs the padded input in ceil mode, and less the
// padding if count_padding is false. Keeps nothing. Throws InvalidArgument for a dilation too.
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});
// [n,c,h,w] to [n,c,1,1]: the mean over h and w. Throws InvalidArgument if h or w is 0.
Tensor global_avg_pool2d(const Tensor& x);

}  // namespace headroom
