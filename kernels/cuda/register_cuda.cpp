// Registers the CUDA runtime and every family of kernels, when a GPU answers that can run them.
#include <string>

#include "core/base/settings.h"
#include "kernels/cuda/cuda_common.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/nvtx_ranges.h"
#include "kernels/cuda/runtime.h"
#include "kernels/register.h"

namespace headroom {
namespace {

// Ampere: the native convolutions use its asynchronous copies and its bf16 and TF32 products.
constexpr int kOldestMajor = 8;

// Empty when all is well, otherwise why there is no usable GPU.
std::string try_register() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    return "no NVIDIA driver is installed";
  }
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    cudaGetLastError();
    return cudaGetErrorString(status);
  }
  if (count == 0) return "no CUDA device is visible";

  int major = 0, minor = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0));
  if (major < kOldestMajor) {
    return detail::concat("the GPU has compute capability ", major, ".", minor, ", needed is ",
                          kOldestMajor, ".0 or later");
  }
  const char* why = nullptr;
  if (!cuda::has_kernel_image(why)) {
    return detail::concat("the GPU has compute capability ", major, ".", minor,
                          ", for which this build has no code (", why,
                          "): build with -DCMAKE_CUDA_ARCHITECTURES=", major, minor);
  }

  cuda::create_context();
  register_runtime(Device::cuda(), cuda::make_cuda_runtime());
  register_cuda_elementwise_kernels();
  register_cuda_relu_mask_kernels();
  register_cuda_reduce_kernels();
  register_cuda_matmul_kernels();
  register_cuda_conv_kernels();
  register_cuda_pool_kernels();
  register_cuda_batch_norm_kernels();
  register_cuda_loss_kernels();
  register_cuda_input_kernels();
  register_cuda_optimizer_kernels();
  if (is_switched_on("HEADROOM_NVTX")) set_range_listener(&cuda::nvtx_ranges());
  return {};
}

}  // namespace

bool register_cuda_kernels(const char** reason) {
  // Once per process; later calls repeat the answer. The text lives as long as the process.
  static const auto* failure = new std::string([] {
    try {
      return try_register();
    } catch (const DeviceError& error) {  // a GPU that is there but in use, or broken
      return std::string(error.what());
    }
  }());
  if (reason != nullptr && !failure->empty()) *reason = failure->c_str();
  return failure->empty();
}

}  // namespace headroom
