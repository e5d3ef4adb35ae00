// What the programs that train share: what they know of the GPU and its libraries.
#pragma once

#include <optional>
#include <string>

#include "train/config.h"
#include "train/program.h"

namespace headroom {

// "headroom 0.1.0 (backends: cpu, cuda)" and a newline.
std::string version_text();

// Empty where cuDNN computes nothing.
std::optional<std::string> cudnn_version_of(const TrainConfig& config, Device device);

// Registers kernels. Throws InvalidArgument if the device is named and not there; notes on standard
// error why `auto` finds no GPU.
void open_devices(const char* program, const TrainConfig& config);

}  // namespace headroom
