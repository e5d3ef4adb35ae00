// Failing, printing, registering.
#include "train/main_support.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

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

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return text;
}

void hold_standard_streams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) {
      // The lowest free number is this one.
      if (open("/dev/null", O_RDONLY) != descriptor) return;
    }
  }
}

int fail(const char* program, const std::string& message, int code) {
  std::fputs(fmt::format("{}: error: {}\n", program, one_line(message)).c_str(), stderr);
  return code;
}

int guarded(const char* program, const std::function<int()>& run) {
  try {
    return run();
  } catch (const OutOfMemory& error) {
    return fail(program, error.what(), kOutOfMemory);
  } catch (const std::bad_alloc&) {
    return fail(program, "the host is out of memory", kOutOfMemory);
  } catch (const std::exception& error) {
    return fail(program, error.what(), kFailed);
  }
}

void print_result(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) {
    throw DataError(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
}

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
