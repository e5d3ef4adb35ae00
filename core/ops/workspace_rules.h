// The parts of the workspace rule, one per kind of device; workspace.cpp chooses. The kernels of
// the device include this too, to assert that what they need is what was promised.
#pragma once

#include "core/ops/workspace.h"

namespace headroom::rules {

int64_t cpu_conv2d_workspace_bytes(ConvDirection direction, const View& x, const View& w,
                                   const View& y, const Conv2dParams& params);
int64_t cpu_matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, DType dtype);
int64_t cpu_batch_norm_workspace_bytes(const View& x);

int64_t cuda_conv2d_workspace_bytes(ConvDirection direction, const View& x, const View& w,
                                    const View& y, const Conv2dParams& params, int64_t limit_bytes);
int64_t cuda_matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, DType dtype);
int64_t cuda_batch_norm_workspace_bytes(const View& x);

// Parts into which the native kernel for the weight gradient splits its sum if it is given room:
// dw.numel() f32 of workspace for each part when there are two or more.
int64_t cuda_native_weight_parts(const View& dw, const View& dy, const Conv2dParams& params);
// Room at the end of a workspace for a copy of a bias or a gradient in another dtype.
int64_t cuda_side_copy_bytes(int64_t numel, DType dtype);

}  // namespace headroom::rules
