// Two-dimensional convolution.
#pragma once

#include <array>

#include "core/tensor/tensor.h"

namespace headroom {

// Pairs are {vertical, horizontal}.
struct Conv2dOptions {
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};
  int64_t groups = 1;
};

// Cross-correlation, as everywhere in deep learning:
//   y[n,k,p,q] = bias[k] + sum over c,r,s of x[n, c, p*stride - padding + r*dilation, ...] *
//   w[k,c,r,s]
// x [n,c,h,w], w [k,c/groups,r,s], bias [k] or undefined; y [n,k,p,q] in x's memory format with
// p = floor((h + 2*padding - dilation*(r-1) - 1) / stride) + 1, and q likewise. Half precision
// under autocast; outside of it x and w must have one floating dtype, which is y's. bias may be of
// any floating dtype. Runs in cuDNN on CUDA unless settings().cudnn is off or x or y has more
// than 2^31 - 1 elements; f32 is rounded to TF32 on CUDA unless settings().tf32 is off. When no
// memory is left for the workspace, smaller ones are tried, then the kernels that need none;
// OutOfMemory if there is none for the result. Throws InvalidArgument for x or w of another rank
// than 4, dtypes that differ, groups that do not divide the channels c and k, a weight for other
// channels than c / groups, a bias that does not have k elements in one axis, a stride or dilation
// below 1, a negative padding, an empty kernel, and a kernel that reaches beyond the padded input.
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias = {},
              const Conv2dOptions& options = {});

// Times that a convolution had to take a step down for want of workspace memory, since the start.
int64_t conv2d_workspace_fallbacks();

}  // namespace headroom
