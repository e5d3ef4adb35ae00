// How much scratch memory an op asks for: a function of shapes, types, direction, device and cap,
// and of nothing that is only known while running. So a CPU-only build predicts CUDA's peak, and a
// plan has to fit into what was decided here.
#pragma once

#include <cstdint>

#include "core/base/device.h"
#include "core/ops/params.h"
#include "core/tensor/view.h"

namespace headroom {

enum class ConvDirection : uint8_t { forward, backward_input, backward_weight };

// Bytes for one convolution call; x, w, y as in slots::conv2d (backward calls pass the shapes of
// the gradients in their places). `limit_bytes` is the cap (Settings::workspace_limit_bytes, or
// less on the out-of-memory ladder); 0 asks for the least: CUDA's native kernels then run without
// any.
int64_t conv2d_workspace_bytes(Device device, ConvDirection direction, const View& x, const View& w,
                               const View& y, const Conv2dParams& params, int64_t limit_bytes);

// Bytes for y[m,n] = a[m,k] * b[k,n] of the dtype.
int64_t matmul_workspace_bytes(Device device, int64_t m, int64_t n, int64_t k, DType dtype);

// Partial sums of the statistics of x [n,c,h,w] or [n,c], forward or backward.
int64_t batch_norm_workspace_bytes(Device device, const View& x);

}  // namespace headroom
