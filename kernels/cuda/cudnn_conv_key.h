// What tells one convolution call from another when plans are chosen, and how messages name it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kernels/cuda/cudnn_conv.h"

namespace headroom::cuda {

using PlanKey = std::array<int64_t, 30>;

// Everything that the choice of a plan may depend on, the switches of settings() included.
PlanKey key_of(const ConvCall& call);

// The alignment of a view's address as cuDNN is told it: a power of two up to 16 bytes.
int64_t conv_alignment(const View& view);

// "conv2d (x f16[8,64,32,32] nhwc, w ..., y ..., stride 1x1, ..., workspace 0 B)"
std::string describe(const ConvCall& call);

}  // namespace headroom::cuda
