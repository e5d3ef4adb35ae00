// The CUDA context of the process: streams, device facts, scratch, launch trail and fault record.
#include "kernels/cuda/cuda_common.h"

#include <algorithm>
#include <array>
#include <atomic>

namespace headroom::cuda {
namespace {

struct Context {
  cudaStream_t compute = nullptr;
  cudaStream_t copy = nullptr;
  int sm_count = 0;
  void* reduction_scratch = nullptr;
  FaultRecord* fault_host = nullptr;
  FaultRecord* fault_device = nullptr;
};

// Lives until the process ends, like the runtime that uses it: tensors with static lifetime give
// their memory back after main().
Context& context() {
  static auto* instance = new Context;
  return *instance;
}

// Names are string literals, so the ring can be read at any time.
struct Trail {
  std::array<std::atomic<const char*>, kTrailLength> names{};
  std::atomic<uint64_t> count{0};
};
Trail trail;

// Whether a status can stem from a kernel that ran earlier than the failing call.
bool may_be_late(cudaError_t status) {
  return status != cudaErrorMemoryAllocation && status != cudaErrorInvalidValue &&
         status != cudaErrorInvalidConfiguration && status != cudaErrorNoDevice &&
         status != cudaErrorInsufficientDriver;
}

}  // namespace

void throw_cuda_error(cudaError_t status, const char* call) {
  std::string message =
      detail::concat(call, ": ", cudaGetErrorName(status), ", ", cudaGetErrorString(status));
  if (may_be_late(status) && trail.count.load() > 0) {
    message += detail::concat("; last kernels, newest last: ", recent_kernels(8));
  }
  throw DeviceError(message);
}

void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) {
    throw_cuda_error(status, detail::concat("launch of ", kernel).c_str());
  }
}

void create_context() {
  Context& made = context();
  int device = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&made.sm_count, cudaDevAttrMultiProcessorCount, device));
  CUDA_CHECK(cudaStreamCreateWithFlags(&made.compute, cudaStreamNonBlocking));
  CUDA_CHECK(cudaStreamCreateWithFlags(&made.copy, cudaStreamNonBlocking));
  CUDA_CHECK(cudaMalloc(&made.reduction_scratch, kReductionScratchBytes));
  void* record = nullptr;
  CUDA_CHECK(cudaHostAlloc(&record, sizeof(FaultRecord), cudaHostAllocMapped));
  made.fault_host = new (record) FaultRecord{};
  void* mapped = nullptr;
  CUDA_CHECK(cudaHostGetDevicePointer(&mapped, record, 0));
  made.fault_device = static_cast<FaultRecord*>(mapped);
}

cudaStream_t compute_stream() { return context().compute; }
cudaStream_t copy_stream() { return context().copy; }
int sm_count() { return context().sm_count; }
void* reduction_scratch() { return context().reduction_scratch; }
FaultRecord* fault_record() { return context().fault_device; }

void leave_trail(const char* kernel) {
  const uint64_t place = trail.count.fetch_add(1, std::memory_order_relaxed);
  trail.names[place % kTrailLength].store(kernel, std::memory_order_relaxed);
}

std::string recent_kernels(int count) {
  const uint64_t end = trail.count.load(std::memory_order_relaxed);
  const uint64_t kept = std::min<uint64_t>(
      {end, static_cast<uint64_t>(std::max(count, 0)), static_cast<uint64_t>(kTrailLength)});
  std::string out;
  for (uint64_t place = end - kept; place < end; ++place) {
    const char* name = trail.names[place % kTrailLength].load(std::memory_order_relaxed);
    if (!out.empty()) out += ", ";
    out += name ? name : "?";
  }
  return out;
}

void throw_recorded_fault() {
  FaultRecord* record = context().fault_host;
  if (record == nullptr) return;
  // The device writes `fault` last and the host frees `claimed` last, so a kernel that runs
  // meanwhile cannot mix its fault with this one.
  std::atomic_ref<DeviceFault> fault_word(record->fault);
  const DeviceFault fault = fault_word.load(std::memory_order_acquire);
  if (fault == DeviceFault::none) return;
  const int64_t value = record->value, row = record->row, limit = record->limit;
  fault_word.store(DeviceFault::none, std::memory_order_relaxed);
  std::atomic_ref<int32_t>(record->claimed).store(0, std::memory_order_release);
  // The CPU's kernels say the same.
  if (fault == DeviceFault::label_out_of_range) {
    throw InvalidArgument(detail::concat("cross_entropy: needs labels in [0, ", limit, ") for ",
                                         limit, " classes but row ", row, " has label ", value));
  }
  throw InvalidArgument(detail::concat("gather_rows: needs indices in [0, ", limit, ") but entry ",
                                       row, " is ", value));
}

}  // namespace headroom::cuda
