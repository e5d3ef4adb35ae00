// The CUDA DeviceRuntime: memory segments and pages, pinned host memory, copies, events, and the
// places where the host waits, which are also where errors of the device come to light.
#include "kernels/cuda/runtime.h"

#include <fstream>
#include <string>

#include "core/base/settings.h"
#include "kernels/cuda/cuda_common.h"
#include "kernels/cuda/gpu_users.h"
#include "kernels/cuda/library_versions.h"
#include "kernels/cuda/virtual_memory.h"

namespace headroom::cuda {
namespace {

cudaStream_t stream_of(Stream stream) {
  return stream == Stream::compute ? compute_stream() : copy_stream();
}

size_t byte_count(int64_t bytes) {
  CHECK(bytes >= 0, "negative byte count ", bytes);
  return static_cast<size_t>(bytes);
}

// "13.0" from CUDA's 1000 * major + 10 * minor.
std::string cuda_version_text(int version) {
  return detail::concat(version / 1000, ".", version % 1000 / 10);
}

// The kernel module's version, "580.65.06"; empty where the file is not there.
std::string driver_module_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    const bool numeric = word.find_first_not_of("0123456789.") == std::string::npos;
    if (numeric && word.find('.') != std::string::npos) return word;
  }
  return {};
}

// Whether the compute stream records a graph; then nothing may wait for it.
bool capturing() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUDA_CHECK(cudaStreamIsCapturing(compute_stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

class CudaRuntime final : public DeviceRuntime {
 public:
  std::string description() const override {
    cudaDeviceProp properties{};
    CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    int driver = 0, runtime = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
    const std::string module = driver_module_version();
    return detail::concat(properties.name, ", driver ", module.empty() ? "" : module + " ",
                          "(CUDA ", cuda_version_text(driver), "), CUDA runtime ",
                          cuda_version_text(runtime), ", cuDNN ", cudnn_version_text());
  }

  void* acquire(int64_t bytes) override {
    void* segment = nullptr;
    const cudaError_t status = cudaMalloc(&segment, byte_count(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not sticky: the caller frees something and asks again
      return nullptr;
    }
    CUDA_CHECK(status);
    return segment;
  }
  // cudaFree waits for the device by itself. A failure here is a failure of earlier work, or the
  // driver is already gone at the end of the process: nothing that a caller could act on.
  void release(void* segment, int64_t) noexcept override {
    if (cudaFree(segment) == cudaErrorCudartUnloading) cudaGetLastError();
  }

  int64_t page_granularity() override { return virtual_memory_.page_granularity(); }
  void* reserve_range(int64_t bytes) override { return virtual_memory_.reserve_range(bytes); }
  void release_range(void* range, int64_t bytes) noexcept override {
    virtual_memory_.release_range(range, bytes);
  }
  bool map_page(void* address, int64_t bytes) override {
    return virtual_memory_.map_page(address, bytes);
  }
  void unmap_page(void* address, int64_t bytes) noexcept override {
    virtual_memory_.unmap_page(address, bytes);
  }

  MemoryInfo memory_info() override {
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
  }
  std::optional<int64_t> process_bytes() override { return bytes_of_this_process(); }
  std::string describe_other_users() override { return other_users(); }

  void* host_acquire(int64_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status =
        cudaHostAlloc(&memory, byte_count(bytes > 0 ? bytes : 1), cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // not sticky
      throw OutOfMemory(detail::concat("pinned host memory: ", bytes, " bytes not available"),
                        {.requested_bytes = bytes});
    }
    CUDA_CHECK(status);
    return memory;
  }
  void host_release(void* memory) noexcept override { cudaFreeHost(memory); }

  void copy_to_device(void* to, const void* from, int64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    CUDA_CHECK(
        cudaMemcpyAsync(to, from, byte_count(bytes), cudaMemcpyHostToDevice, stream_of(stream)));
  }
  void copy_to_host(void* to, const void* from, int64_t bytes) override {
    if (bytes != 0) {
      CUDA_CHECK(
          cudaMemcpyAsync(to, from, byte_count(bytes), cudaMemcpyDeviceToHost, compute_stream()));
    }
    CUDA_CHECK(cudaStreamSynchronize(compute_stream()));
    clear_trail();
    throw_recorded_fault();
  }
  void queue_copy_to_host(void* to, const void* from, int64_t bytes, Stream stream) override {
    if (bytes == 0) return;
    CUDA_CHECK(
        cudaMemcpyAsync(to, from, byte_count(bytes), cudaMemcpyDeviceToHost, stream_of(stream)));
  }
  void copy_within(void* to, const void* from, int64_t bytes) override {
    if (bytes == 0) return;
    CUDA_CHECK(
        cudaMemcpyAsync(to, from, byte_count(bytes), cudaMemcpyDeviceToDevice, compute_stream()));
  }
  void fill_bytes(void* to, uint8_t value, int64_t bytes) override {
    if (bytes == 0) return;
    CUDA_CHECK(cudaMemsetAsync(to, value, byte_count(bytes), compute_stream()));
  }

  void synchronize() override {
    CUDA_CHECK(cudaDeviceSynchronize());
    clear_trail();
    throw_recorded_fault();
  }
  void check_async_error() override {
    CUDA_CHECK(cudaPeekAtLastError());
    if (!capturing()) {
      const cudaError_t status = cudaStreamQuery(compute_stream());
      if (status == cudaErrorNotReady) {
        cudaGetLastError();  // work is under way: an answer, not an error
      } else {
        CUDA_CHECK(status);
        clear_trail();
      }
    }
    throw_recorded_fault();
  }

  EventHandle create_event() override {
    cudaEvent_t event = nullptr;
    CUDA_CHECK(cudaEventCreate(&event));
    return event;
  }
  void destroy_event(EventHandle event) noexcept override {
    cudaEventDestroy(static_cast<cudaEvent_t>(event));
  }
  void record_event(EventHandle event, Stream stream) override {
    CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(event), stream_of(stream)));
  }
  void wait_event(EventHandle event, Stream stream) override {
    CUDA_CHECK(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event), 0));
  }
  void synchronize_event(EventHandle event) override {
    CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
    throw_recorded_fault();
  }
  float elapsed_ms(EventHandle begin, EventHandle end) override {
    float ms = 0;
    CUDA_CHECK(
        cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(begin), static_cast<cudaEvent_t>(end)));
    return ms;
  }

  void begin_kernel(const char* name) override { leave_trail(name); }
  void end_kernel(const char* name) override {
    if (!settings().launch_blocking || capturing()) return;
    const cudaError_t status = cudaStreamSynchronize(compute_stream());
    if (status != cudaSuccess) {
      throw DeviceError(detail::concat(name, ": the kernel failed: ", cudaGetErrorName(status),
                                       ", ", cudaGetErrorString(status), "; ", current_op()));
    }
    throw_recorded_fault();
  }

 private:
  VirtualMemory virtual_memory_;
};

}  // namespace

std::unique_ptr<DeviceRuntime> make_cuda_runtime() { return std::make_unique<CudaRuntime>(); }

}  // namespace headroom::cuda
