// The native gradient of a convolution's input, as a gather over output positions: no element of dx
// is written twice, so nothing depends on the schedule.
#include "kernels/cuda/conv_native_gather.h"

namespace headroom::cuda {

void gemm_backward_input(const NativeConv& conv, bool wide, void* dx) {
  launch_gather<true>("native_conv2d_backward_input", conv, {}, wide, conv.y, dx);
}

}  // namespace headroom::cuda
