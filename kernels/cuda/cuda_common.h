// What every CUDA source shares: checked calls and launches, the process's streams and device
// facts, element types on the device, 16-byte packs, and the record through which a kernel reports
// an error that only it can see. CUDA headers stay below kernels/cuda.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/tensor/view.h"

namespace headroom::cuda {

// ---- errors ----

// Throws DeviceError "call: error name, description", and if the error may come from an earlier
// kernel, which ones were launched since the device was last known to be well.
[[noreturn]] void throw_cuda_error(cudaError_t status, const char* call);

#define CUDA_CHECK(call)                                            \
  do {                                                              \
    const cudaError_t cuda_check_status = (call);                   \
    if (cuda_check_status != cudaSuccess) {                         \
      ::headroom::cuda::throw_cuda_error(cuda_check_status, #call); \
    }                                                               \
  } while (false)

// Throws DeviceError naming the kernel if its launch was refused or an earlier kernel has failed.
void check_launch(const char* kernel);

// ---- the process's device context, made once by register_cuda_kernels() ----

// Makes the current device's streams, scratch and error record. Throws DeviceError.
void create_context();
cudaStream_t compute_stream();  // every kernel, in program order
cudaStream_t copy_stream();     // input batches, saved tensors to the host and back
int sm_count();

// Device memory for the partial results of two-stage reductions: part of the library's context, not
// of any tensor. One buffer is enough because kernels of the one compute stream run in order; what
// lies in it is meaningless between two slot calls.
constexpr int64_t kReductionScratchBytes = int64_t{1} << 20;
void* reduction_scratch();

// ---- launch trail: the last kernels, for messages ----

constexpr int kTrailLength = 64;
// Notes a kernel, with the module and phase of the calling thread's context.
void leave_trail(const char* kernel);
// All kernels so far have ended well.
void clear_trail();
// Kernels launched since then.
int64_t unfinished_kernels();
// The newest `count` of them, newest last: "relu of conv1 (forward), matmul of fc (forward)".
std::string recent_kernels(int count);
// The op, module and phase that the calling thread is in: "op relu of conv1 (forward)".
std::string current_op();

// ---- errors that only a kernel can see ----

enum class DeviceFault : int32_t { none, label_out_of_range, index_out_of_range };

// Host memory mapped into the device. A kernel that finds bad data fills it in and treats the datum
// as absent, so the context stays usable; the next wait of the host throws what it says. The first
// fault wins until it is read.
struct FaultRecord {
  int32_t claimed;    // set by the thread that may fill in the rest
  DeviceFault fault;  // written last
  int64_t value;      // the bad label or index
  int64_t row;        // where it stood
  int64_t limit;      // it had to lie in [0, limit)
};
FaultRecord* fault_record();  // the device's address
// Throws InvalidArgument for a recorded fault and clears the record. Does not wait.
void throw_recorded_fault();

// ---- element types ----

// Calls fn with a value of the device type of a dtype that CUDA computes in: f16, bf16 or f32.
// Throws InvalidArgument naming the op for any other.
template <class Fn>
decltype(auto) dispatch_cuda_floating(DType dtype, std::string_view op, Fn&& fn) {
  switch (dtype) {
    case DType::f16:
      return fn(__half{});
    case DType::bf16:
      return fn(__nv_bfloat16{});
    case DType::f32:
      return fn(float{});
    default:
      throw InvalidArgument(headroom::detail::concat(
          op, ": computes in f16, bf16 or f32 on cuda but got ", name_of(dtype)));
  }
}

// The same for every dtype that can be stored.
template <class Fn>
decltype(auto) dispatch_cuda_all(DType dtype, std::string_view op, Fn&& fn) {
  switch (dtype) {
    case DType::f64:
      return fn(double{});
    case DType::i64:
      return fn(int64_t{});
    case DType::u8:
      return fn(uint8_t{});
    default:
      return dispatch_cuda_floating(dtype, op, std::forward<Fn>(fn));
  }
}

HEADROOM_HOST_DEVICE inline float to_float(float value) { return value; }
HEADROOM_HOST_DEVICE inline float to_float(__half value) { return __half2float(value); }
HEADROOM_HOST_DEVICE inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
HEADROOM_HOST_DEVICE inline float to_float(double value) { return static_cast<float>(value); }
HEADROOM_HOST_DEVICE inline float to_float(int64_t value) { return static_cast<float>(value); }
HEADROOM_HOST_DEVICE inline float to_float(uint8_t value) { return static_cast<float>(value); }

// Rounds to nearest even; overflow becomes infinity.
template <class T>
HEADROOM_HOST_DEVICE inline T from_float(float value) {
  return static_cast<T>(value);
}
template <>
HEADROOM_HOST_DEVICE inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
HEADROOM_HOST_DEVICE inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

// ---- vector access ----

constexpr int kVectorBytes = 16;  // the widest access of one thread

// N elements moved at once, in accesses of up to 16 bytes. The address must be aligned to
// alignof(Pack).
template <class T, int N>
struct alignas(sizeof(T) * N < kVectorBytes ? sizeof(T) * N : kVectorBytes) Pack {
  T value[N];
};

// Elements of T in one 16-byte access.
template <class T>
constexpr int kVectorElements = kVectorBytes / static_cast<int>(sizeof(T));

inline bool is_aligned(const void* pointer, size_t bytes = kVectorBytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- launches and device-only helpers ----

#ifdef __CUDACC__

// Launches a kernel on the compute stream and checks that it was accepted. `name` appears in
// messages. Call with at least one block and one thread.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            size_t shared_bytes, Arguments&&... arguments) {
  kernel<<<grid, block, shared_bytes, compute_stream()>>>(std::forward<Arguments>(arguments)...);
  check_launch(name);
}

template <class T, int N>
__device__ __forceinline__ Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <class T, int N>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

__device__ inline void record_fault(FaultRecord* record, DeviceFault fault, int64_t value,
                                    int64_t row, int64_t limit) {
  if (atomicCAS_system(&record->claimed, 0, 1) != 0) return;
  record->value = value;
  record->row = row;
  record->limit = limit;
  __threadfence_system();
  *static_cast<volatile DeviceFault*>(&record->fault) = fault;
}

// Reductions in a fixed order: the same bits whatever the schedule. Op is associative enough; every
// lane receives the result of its warp.
template <class T, class Op>
__device__ __forceinline__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// All threads of a block of kThreads (a multiple of 32) take part; every thread receives the
// result. `slots` is shared memory for kThreads / 32 values; it may be used again after the next
// barrier.
template <int kThreads, class T, class Op>
__device__ __forceinline__ T block_reduce(T value, Op op, T* slots) {
  static_assert(kThreads % 32 == 0 && kThreads <= 1024);
  constexpr int kWarps = kThreads / 32;
  value = warp_reduce(value, op);
  if constexpr (kWarps == 1) return value;
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  T total = slots[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) total = op(total, slots[warp]);
  return total;
}

struct AddOp {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
// NaN wins, as in PyTorch.
struct MaxOp {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return (a > b || a != a) ? a : b;
  }
};

#endif  // __CUDACC__

}  // namespace headroom::cuda
