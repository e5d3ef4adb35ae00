// Asking NVML about the GPU that CUDA calls the current one.
#include "kernels/cuda/gpu_users.h"

#include <cuda_runtime.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "core/base/error.h"
#include "core/base/nvml.h"
#include "core/base/process.h"
#include "core/memory/caching_allocator.h"
#include "core/memory/other_users.h"

namespace headroom::cuda {
namespace {

// As NVML writes it after "GPU-" or "MIG-": groups of 4, 2, 2, 2 and 6 bytes.
std::string digits_of(const cudaUUID_t& uuid) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

// The current GPU, by the name that both libraries have for it; their numbers differ.
std::string current_uuid() {
  int device = 0;
  cudaDeviceProp properties{};
  // No CUDA_CHECK: its message may come here.
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    cudaGetLastError();
    throw DeviceError("CUDA does not say which GPU it uses");
  }
  return digits_of(properties.uuid);
}

using Clock = std::chrono::steady_clock;

// A convolution that looks for a workspace that fits may run out of memory many times in a step,
// and asking takes milliseconds: an answer is given again for so long.
constexpr auto kAnswerHolds = std::chrono::seconds(1);

struct Asked {
  std::mutex mutex;
  std::unique_ptr<Nvml> nvml;
  std::string users;  // of others, when last asked
  std::optional<Clock::time_point> when;
};
// Lives until the process ends, like the context.
Asked& asked() {
  static auto* instance = new Asked;
  return *instance;
}

// Called with the mutex held. Throws DeviceError saying why it cannot be read.
GpuReading read_gpu() {
  std::unique_ptr<Nvml>& nvml = asked().nvml;
  if (!nvml) nvml = std::make_unique<Nvml>();
  const std::string uuid = current_uuid();
  std::optional<GpuReading> gpu = nvml->read_uuid(uuid);
  if (!gpu) throw DeviceError("NVML knows no GPU " + uuid);
  return std::move(*gpu);
}

}  // namespace

std::optional<int64_t> bytes_of_this_process() {
  const std::lock_guard lock(asked().mutex);
  try {
    return bytes_of_process(read_gpu(), own_pid());
  } catch (const DeviceError&) {
    return std::nullopt;
  }
}

std::string other_users() {
  Asked& last = asked();
  const std::lock_guard lock(last.mutex);
  if (last.when && Clock::now() - *last.when < kAnswerHolds) return last.users;
  try {
    last.users = other_users_text(read_gpu(), own_pid());
  } catch (const DeviceError& error) {
    last.users = detail::concat("what others hold is not known (", error.what(), ")");
  }
  last.when = Clock::now();
  return last.users;
}

std::string memory_note() {
  std::string out = "; ";
  size_t free_bytes = 0, total_bytes = 0;
  // Refused where there is no context, and after an error that ended it.
  if (cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess) {
    out += detail::concat("device has ", format_bytes(static_cast<int64_t>(free_bytes)),
                          " free of ", format_bytes(static_cast<int64_t>(total_bytes)), ", ");
  } else {
    cudaGetLastError();
  }
  return out + other_users();
}

}  // namespace headroom::cuda
