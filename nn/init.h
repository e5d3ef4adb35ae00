// Initialisation of parameters, from default_generator(): in place, outside the graph, any floating
// dtype. Draws follow the logical index, so a memory format changes nothing. All throw
// InvalidArgument for a weight of rank below 2 or of integers.
#pragma once

#include "core/tensor/tensor.h"

namespace headroom {

enum class FanMode : uint8_t { in, out };

// Fan of a weight [out, in, ...]: in (or out) times the receptive field, the product of the axes
// behind.
int64_t fan_of(const Tensor& weight, FanMode mode);

// He et al. 2015: uniform in +-sqrt(6 / ((1 + slope^2) * fan)), or normal with deviation
// sqrt(2 / ((1 + slope^2) * fan)). slope is that of the leaky ReLU that follows (0: ReLU).
void kaiming_uniform(Tensor& weight, double slope = 0, FanMode mode = FanMode::in);
void kaiming_normal(Tensor& weight, double slope = 0, FanMode mode = FanMode::in);
// Glorot & Bengio 2010: +-gain * sqrt(6 / (fan_in + fan_out)), or its normal counterpart.
void xavier_uniform(Tensor& weight, double gain = 1);
void xavier_normal(Tensor& weight, double gain = 1);
// PyTorch's default for convolutions and linear layers, for the weight and the bias (undefined:
// none): uniform in +-1/sqrt(fan_in), which is kaiming_uniform with slope sqrt(5).
void default_init(Tensor& weight, Tensor& bias);

}  // namespace headroom
