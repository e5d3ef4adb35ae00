// Asks the driver whether it can load code of this build. An empty kernel stands for all of them:
// they are compiled for the same architectures.
#include "kernels/cuda/cuda_common.h"
#include "kernels/cuda/runtime.h"

namespace headroom::cuda {
namespace {

__global__ void probe_kernel() {}

}  // namespace

bool has_kernel_image(const char*& why) {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, &probe_kernel);
  if (status == cudaSuccess) return true;
  cudaGetLastError();
  why = cudaGetErrorString(status);
  return false;
}

}  // namespace headroom::cuda
