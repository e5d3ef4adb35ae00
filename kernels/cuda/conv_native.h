// The convolution kernels that need no library: used when cuDNN is off, and where it has no plan
// that fits. x [n,c,h,w], w [k,c/groups,r,s], y [n,k,p,q] as in slots::conv2d, but channels_last
// only; x, w, dx, dy and y of one dtype (f16, bf16 or f32), summed in f32. f32 goes through TF32
// tensor cores unless settings().tf32 is off. Everything is a launch on `stream`; results have the
// same bits every time.
#pragma once

#include <cuda_runtime.h>

#include "core/ops/params.h"
#include "core/tensor/view.h"

namespace headroom {

// y = conv(x, w) + bias; bias [k] is optional and of any floating dtype.
void native_conv2d(const View& x, const View& w, const View& bias, const Conv2dParams& params,
                   const View& y, cudaStream_t stream);

// dx = the gradient of x; every element of dx is written.
void native_conv2d_backward_input(const View& dy, const View& w, const Conv2dParams& params,
                                  const View& dx, cudaStream_t stream);

// dw = the gradient of w; dw may be f32 while x and dy are half. The sum over images and places may
// be split: each part is an f32 copy of dw in `workspace` (u8), and the parts are added in a fixed
// order. There are min(rules::cuda_native_weight_parts(), workspace.numel() / (4 * dw.numel()))
// parts; below two, or without a workspace, the sum is not split.
void native_conv2d_backward_weight(const View& x, const View& dy, const Conv2dParams& params,
                                   const View& workspace, const View& dw, cudaStream_t stream);

}  // namespace headroom
