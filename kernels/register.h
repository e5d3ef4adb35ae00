// Registration of the kernels. Only main() functions call it: a static library's self-registering
// objects would be dropped by the linker.
#pragma once

namespace headroom {

// Registers the CPU kernels, and the CUDA runtime and kernels when they were built and a GPU
// answers. With HEADROOM_NVTX=1 in the environment the calling thread's ranges (core/base/ranges.h)
// then go to NVTX, for NVIDIA's profilers. Throws Error when the processor lacks the instructions
// that the CPU kernels were compiled for.
void register_kernels();

// The parts. register_cuda_kernels() returns false, registering nothing, without a usable GPU;
// `reason` (optional) then says why.
void register_cpu_kernels();
bool register_cuda_kernels(const char** reason = nullptr);

}  // namespace headroom
