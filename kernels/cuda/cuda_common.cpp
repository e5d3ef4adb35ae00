// The CUDA context of the process: streams, device facts, scratch, launch trail and fault record.
#include "kernels/cuda/cuda_common.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "core/memory/scopes.h"
#include "kernels/cuda/gpu_users.h"

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

// Names are string literals and paths live as long as the process, so the ring can be read at any
// time.
struct Launch {
  std::atomic<const char*> kernel{nullptr};
  std::atomic<PathId> path{0};
  std::atomic<Phase> phase{Phase::none};
};
struct Trail {
  std::array<Launch, kTrailLength> launches{};
  std::atomic<uint64_t> count{0};
  std::atomic<uint64_t> ended{0};  // of them, known to have ended well
};
Trail trail;

std::string described(const char* what, PathId path, Phase phase) {
  std::string out = what;
  if (path != 0) out += " of " + path_name(path);
  if (phase != Phase::none) out += detail::concat(" (", name_of(phase), ")");
  return out;
}

// Whether a status can stem from a kernel that ran earlier than the failing call.
bool may_be_late(cudaError_t status) {
  return status != cudaErrorMemoryAllocation && status != cudaErrorInvalidValue &&
         status != cudaErrorInvalidConfiguration && status != cudaErrorNoDevice &&
         status != cudaErrorInsufficientDriver;
}

// Whether others on the GPU can be the reason: they hold its memory, or have it to themselves.
bool may_be_others(cudaError_t status) {
  return status == cudaErrorMemoryAllocation || status == cudaErrorDevicesUnavailable;
}

}  // namespace

void throw_cuda_error(cudaError_t status, const char* call) {
  std::string message =
      detail::concat(call, ": ", cudaGetErrorName(status), ", ", cudaGetErrorString(status));
  if (may_be_others(status)) message += memory_note();
  constexpr int kListed = 8;
  const int64_t suspects = unfinished_kernels();
  if (may_be_late(status) && suspects > 0) {
    message += detail::concat(
        "; kernels run later than they are launched, so it may stem from any of the ", suspects,
        " launched since the device was last waited for, the last of them, newest last: ",
        recent_kernels(kListed),
        "; HEADROOM_LAUNCH_BLOCKING=1 (train --launch-blocking) names the one that fails");
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
  const MemoryContext& context = memory_context();
  const uint64_t place = trail.count.fetch_add(1, std::memory_order_relaxed);
  Launch& launch = trail.launches[place % kTrailLength];
  launch.kernel.store(kernel, std::memory_order_relaxed);
  launch.path.store(context.path, std::memory_order_relaxed);
  launch.phase.store(context.phase, std::memory_order_relaxed);
}

void clear_trail() {
  trail.ended.store(trail.count.load(std::memory_order_relaxed), std::memory_order_relaxed);
}

int64_t unfinished_kernels() {
  const uint64_t ended = trail.ended.load(std::memory_order_relaxed);
  return static_cast<int64_t>(trail.count.load(std::memory_order_relaxed) - ended);
}

std::string recent_kernels(int count) {
  const uint64_t end = trail.count.load(std::memory_order_relaxed);
  const uint64_t kept = std::min<uint64_t>({static_cast<uint64_t>(unfinished_kernels()),
                                            static_cast<uint64_t>(std::max(count, 0)),
                                            static_cast<uint64_t>(kTrailLength)});
  std::string out;
  for (uint64_t place = end - kept; place < end; ++place) {
    const Launch& launch = trail.launches[place % kTrailLength];
    const char* kernel = launch.kernel.load(std::memory_order_relaxed);
    if (!out.empty()) out += ", ";
    out += described(kernel ? kernel : "?", launch.path.load(std::memory_order_relaxed),
                     launch.phase.load(std::memory_order_relaxed));
  }
  return out;
}

std::string current_op() {
  const MemoryContext& context = memory_context();
  return described(*context.op ? detail::concat("op ", context.op).c_str() : "no op", context.path,
                   context.phase);
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
