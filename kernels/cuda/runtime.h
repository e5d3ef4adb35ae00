// The CUDA implementation of DeviceRuntime, and the test whether a GPU can run this build.
#pragma once

#include <memory>

#include "core/base/device.h"

namespace headroom::cuda {

// Uses the context that create_context() made.
std::unique_ptr<DeviceRuntime> make_cuda_runtime();

// Whether the current device can run the kernels of this build: machine code for its architecture,
// or PTX that its driver can translate, is in the program. `why` then stays as it is; otherwise it
// names the error.
bool has_kernel_image(const char*& why);

}  // namespace headroom::cuda
