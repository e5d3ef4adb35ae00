// Versions, registering.
#include "train/main_support.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/base/error.h"
#include "kernels/register.h"

#ifdef HEADROOM_WITH_CUDA
#include "kernels/cuda/library_versions.h"
#endif

namespace headroom {
namespace {

// Why this process has no GPU; empty if it has one.
std::string why_no_gpu() {
#ifdef HEADROOM_WITH_CUDA
  const char* reason = "";
  register_cuda_kernels(&reason);
  return reason;
#else
  return "this program was built without CUDA";
#endif
}

}  // namespace

std::string version_text() {
#ifdef HEADROOM_WITH_CUDA
  constexpr const char* kBackends = "cpu, cuda";
#else
  constexpr const char* kBackends = "cpu";
#endif
  return fmt::format("headroom {} (backends: {})\n", HEADROOM_VERSION, kBackends);
}

std::optional<std::string> cudnn_version_of([[maybe_unused]] const TrainConfig& config,
                                            [[maybe_unused]] Device device) {
#ifdef HEADROOM_WITH_CUDA
  if (device.is_cuda() && config.cudnn) return cuda::cudnn_version_text();
#endif
  return std::nullopt;
}

void open_devices(const char* program, const TrainConfig& config) {
  register_kernels();
  const std::string reason = why_no_gpu();
  CHECK_ARG(config.device != "cuda" || reason.empty(),
            "--device cuda: no usable NVIDIA GPU: ", reason,
            "; allowed here are cpu, meta:cpu, meta:cuda");
  if (config.device == "auto" && !reason.empty()) {
    std::fputs(fmt::format("{}: note: {}\n", program, one_line(reason)).c_str(), stderr);
  }
}

}  // namespace headroom
