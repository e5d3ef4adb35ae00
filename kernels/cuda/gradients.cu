// Passes over all gradients before a step on CUDA: the overflow check and the clipping of their
// norm. Each is one launch per dtype, whatever the number of tensors.
#include <algorithm>
#include <vector>

#include "core/ops/contract.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/tensor_list.cuh"
#include "kernels/update_rules.h"

namespace headroom {
namespace {

using namespace cuda;

constexpr int kUnroll = 4;           // packs in flight per thread
constexpr int64_t kMinChunk = 8192;  // elements per block: two rounds of kUnroll packs of f32
constexpr int64_t kMaxPartials = kReductionScratchBytes / static_cast<int64_t>(sizeof(double));

using GradientEntry = ListEntry<1>;

// Calls fn(value as float) for every element of the block's chunk.
template <class T, class List, class Fn>
__device__ __forceinline__ void for_each_in_chunk(const List& list, Fn&& fn) {
  const int block = static_cast<int>(blockIdx.x);
  const GradientEntry& entry = list.entry[list.find(block)];
  const T* data = static_cast<const T*>(entry.data[0]);
  const int64_t begin = int64_t{block - entry.first_block} * list.chunk;
  const int64_t end = min(entry.numel, begin + list.chunk);
  constexpr int kWidth = kVectorElements<T>;
  const int64_t packed_end = entry.aligned ? end - (end - begin) % kWidth : begin;
#pragma unroll kUnroll
  for (int64_t i = begin + threadIdx.x * kWidth; i < packed_end; i += kListThreads * kWidth) {
    const Pack<T, kWidth> pack = load_pack<T, kWidth>(data + i);
#pragma unroll
    for (int v = 0; v < kWidth; ++v) fn(to_float(pack.value[v]));
  }
  for (int64_t i = packed_end + threadIdx.x; i < end; i += kListThreads) fn(to_float(data[i]));
}

template <class T, class List>
__global__ void __launch_bounds__(kListThreads)
    check_finite_kernel(const __grid_constant__ List list, float* control) {
  bool finite = true;
  for_each_in_chunk<T>(list, [&](float value) { finite = finite && isfinite(value); });
  if (!finite) control[kFoundInf] = 1.0f;  // every writer writes the same
}

// Squares in f64: those of scaled f32 gradients may exceed f32. partials[block] = sum of its chunk.
template <class T, class List>
__global__ void __launch_bounds__(kListThreads)
    square_sum_kernel(const __grid_constant__ List list, double* partials) {
  __shared__ double slots[kListThreads / 32];
  double sum = 0.0;
  for_each_in_chunk<T>(
      list, [&](float value) { sum += static_cast<double>(value) * static_cast<double>(value); });
  sum = block_reduce<kListThreads>(sum, AddOp{}, slots);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

constexpr int kFinishThreads = 1024;

__global__ void __launch_bounds__(kFinishThreads)
    clip_norm_kernel(const double* partials, int64_t count, double max_norm, float* control) {
  __shared__ double slots[kFinishThreads / 32];
  double sum = 0.0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < count; i += kFinishThreads) sum += partials[i];
  sum = block_reduce<kFinishThreads>(sum, AddOp{}, slots);
  if (threadIdx.x != 0) return;
  const double norm = sqrt(sum) * static_cast<double>(control[kInvScale]);
  control[kGradNorm] = static_cast<float>(norm);
  if (max_norm > 0) control[kClip] = clip_factor(norm, max_norm);
}

// Calls fn(element, entries) for each dtype that occurs. Gradients may lie in any dense order.
template <class Fn>
void for_each_dtype(const ViewList& gradients, const char* op, Fn&& fn) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    std::vector<GradientEntry> entries;
    for (const View& gradient : gradients) {
      if (!gradient.defined || gradient.dtype != dtype || gradient.numel() == 0) continue;
      CHECK(gradient.is_dense(), op, ": needs dense gradients, got ", describe(gradient));
      entries.push_back({{gradient.data}, gradient.numel(), 0, is_aligned(gradient.data)});
    }
    if (entries.empty()) continue;
    dispatch_cuda_floating(dtype, op, [&](auto element) { fn(element, entries); });
  }
}

void check_dtypes(const ViewList& gradients, const char* op) {
  for (const View& gradient : gradients) {
    if (gradient.defined) dispatch_cuda_floating(gradient.dtype, op, [](auto) {});
  }
}

void check_finite(const ViewList& gradients, const View& control) {
  check_dtypes(gradients, "check_finite");
  for_each_dtype(gradients, "check_finite", [&](auto element, const auto& entries) {
    using T = decltype(element);
    for_each_list(entries, kMinChunk, [&]<class List>(const List& list, unsigned blocks) {
      launch("check_finite", &check_finite_kernel<T, List>, blocks, kListThreads, 0, list,
             control.as<float>());
    });
  });
}

// Partial sums go to the reduction scratch.
void clip_norm(const ViewList& gradients, double max_norm, const View& control) {
  check_dtypes(gradients, "clip_norm");
  int64_t total = 0, tensors = 0;
  for (const View& gradient : gradients) {
    if (!gradient.defined) continue;
    total += gradient.numel();
    ++tensors;
  }
  CHECK(tensors <= kMaxPartials / 2, "clip_norm: ", tensors, " gradients");
  // At most total / chunk + tensors blocks.
  const int64_t chunk = std::max(kMinChunk, ceil_div(ceil_div(total, kMaxPartials / 2), 8) * 8);
  double* const partials = static_cast<double*>(reduction_scratch());
  int64_t filled = 0;
  for_each_dtype(gradients, "clip_norm", [&](auto element, const auto& entries) {
    using T = decltype(element);
    for_each_list(entries, chunk, [&]<class List>(const List& list, unsigned blocks) {
      launch("clip_norm", &square_sum_kernel<T, List>, blocks, kListThreads, 0, list,
             partials + filled);
      filled += blocks;
    });
  });
  launch("clip_norm", &clip_norm_kernel, 1, kFinishThreads, 0, partials, filled, max_norm,
         control.as<float>());
}

}  // namespace

void register_cuda_gradient_kernels() {
  slots::check_finite.set(DeviceType::cuda, &check_finite);
  slots::clip_norm.set(DeviceType::cuda, &clip_norm);
}

}  // namespace headroom
