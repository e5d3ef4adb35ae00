// The native convolution's forward pass as one product: y[pixel, k] = x[pixel's taps] * w^T + bias.
#include "kernels/cuda/conv_native_gather.h"

namespace headroom::cuda {

void gemm_forward(const NativeConv& conv, const ConvBias& bias, bool wide, void* y) {
  launch_gather<false>("native_conv2d", conv, bias, wide, conv.x, y);
}

}  // namespace headroom::cuda
