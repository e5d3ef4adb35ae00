// Elementwise kernels over one or two inputs: packs of 16 bytes where the views are dense or have
// dense rows, one element at a time over any strides otherwise.
#pragma once

#include <algorithm>
#include <array>

#include "kernels/cuda/cuda_common.h"
#include "kernels/cuda/strided_loop.h"

namespace headroom::cuda {

constexpr int kMapThreads = 256;
// Packs per thread, all loaded before the first is used: with full occupancy that keeps 64 KiB per
// multiprocessor and input in flight, twice what hides the latency of HBM3e.
constexpr int kMapUnroll = 2;
constexpr int kMapBlocksPerSm = 16;  // grid-stride kernels: two waves of 8 resident blocks

// Elements per pack when types of these sizes move together: the smallest fills 16 bytes.
template <class... T>
constexpr int kPackWidth = kVectorBytes / static_cast<int>(std::min({sizeof(T)...}));

template <int V, class T>
bool pack_aligned(const T* pointer) {
  return is_aligned(pointer, alignof(Pack<T, V>));
}

// Blocks of a grid-stride kernel with one element per thread and pass.
inline unsigned grid_stride_blocks(int64_t elements) {
  return static_cast<unsigned>(std::clamp<int64_t>(ceil_div(elements, kMapThreads), 1,
                                                   int64_t{sm_count()} * kMapBlocksPerSm));
}
// Blocks of a kernel that covers its packs in one pass.
inline unsigned flat_blocks(int64_t packs) {
  return static_cast<unsigned>(std::max<int64_t>(ceil_div(packs, kMapThreads * kMapUnroll), 1));
}

// y[i] = fn(x[i]); x and y may be one array.
template <int V, class X, class Y, class Fn>
__global__ void __launch_bounds__(kMapThreads)
    flat_map1_kernel(const X* x, Y* y, int64_t numel, Fn fn) {
  const int64_t packs = numel / V;
  const int64_t first = int64_t{blockIdx.x} * (kMapThreads * kMapUnroll) + threadIdx.x;
  Pack<X, V> in[kMapUnroll];
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const int64_t p = first + u * kMapThreads;
    if (p < packs) in[u] = load_pack<X, V>(x + p * V);
  }
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const int64_t p = first + u * kMapThreads;
    if (p >= packs) break;
    Pack<Y, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.value[v] = fn(in[u].value[v]);
    store_pack(y + p * V, out);
  }
  const int64_t tail = packs * V + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && tail < numel) y[tail] = fn(x[tail]);
}

// y[i] = fn(a[i], b[i]); y may be a or b.
template <int V, class A, class B, class Y, class Fn>
__global__ void __launch_bounds__(kMapThreads)
    flat_map2_kernel(const A* a, const B* b, Y* y, int64_t numel, Fn fn) {
  const int64_t packs = numel / V;
  const int64_t first = int64_t{blockIdx.x} * (kMapThreads * kMapUnroll) + threadIdx.x;
  Pack<A, V> in_a[kMapUnroll];
  Pack<B, V> in_b[kMapUnroll];
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const int64_t p = first + u * kMapThreads;
    if (p < packs) {
      in_a[u] = load_pack<A, V>(a + p * V);
      in_b[u] = load_pack<B, V>(b + p * V);
    }
  }
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const int64_t p = first + u * kMapThreads;
    if (p >= packs) break;
    Pack<Y, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.value[v] = fn(in_a[u].value[v], in_b[u].value[v]);
    store_pack(y + p * V, out);
  }
  const int64_t tail = packs * V + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && tail < numel) y[tail] = fn(a[tail], b[tail]);
}

// A pack at `from`, or one value repeated where the view does not move along the row.
template <int V, class T>
__device__ __forceinline__ Pack<T, V> load_row_pack(const T* from, bool repeats) {
  if (!repeats) return load_pack<T, V>(from);
  Pack<T, V> out;
  const T value = *from;
#pragma unroll
  for (int v = 0; v < V; ++v) out.value[v] = value;
  return out;
}

// The same over rows of packs: operand 0 of the loop is y, then a and b.
template <int V, class A, class B, class Y, class Fn>
__global__ void __launch_bounds__(kMapThreads)
    row_map2_kernel(const A* a, const B* b, Y* y, StridedLoop<3> packs, Fn fn) {
  const bool a_repeats = packs.stride[1][0] == 0, b_repeats = packs.stride[2][0] == 0;
  for (int64_t p = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; p < packs.numel;
       p += int64_t{gridDim.x} * kMapThreads) {
    int64_t at[3];
    packs.offsets<false>(p, at);
    const Pack<A, V> in_a = load_row_pack<V>(a + at[1], a_repeats);
    const Pack<B, V> in_b = load_row_pack<V>(b + at[2], b_repeats);
    Pack<Y, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.value[v] = fn(in_a.value[v], in_b.value[v]);
    store_pack(y + at[0], out);
  }
}

template <int V, class X, class Y, class Fn>
__global__ void __launch_bounds__(kMapThreads)
    row_map1_kernel(const X* x, Y* y, StridedLoop<2> packs, Fn fn) {
  const bool repeats = packs.stride[1][0] == 0;
  for (int64_t p = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; p < packs.numel;
       p += int64_t{gridDim.x} * kMapThreads) {
    int64_t at[2];
    packs.offsets<false>(p, at);
    const Pack<X, V> in = load_row_pack<V>(x + at[1], repeats);
    Pack<Y, V> out;
#pragma unroll
    for (int v = 0; v < V; ++v) out.value[v] = fn(in.value[v]);
    store_pack(y + at[0], out);
  }
}

// body(index, offsets) for every element of a loop.
template <bool kWide, int kOperands, class Body>
__global__ void __launch_bounds__(kMapThreads)
    strided_kernel(StridedLoop<kOperands> loop, Body body) {
  for (int64_t i = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; i < loop.numel;
       i += int64_t{gridDim.x} * kMapThreads) {
    int64_t at[kOperands];
    loop.template offsets<kWide>(i, at);
    body(at);
  }
}

template <int kOperands, class Body>
void launch_strided(const char* name, const StridedLoop<kOperands>& loop, const Body& body) {
  if (loop.numel == 0) return;
  auto* kernel = loop.wide() ? &strided_kernel<true, kOperands, Body>
                             : &strided_kernel<false, kOperands, Body>;
  launch(name, kernel, grid_stride_blocks(loop.numel), kMapThreads, 0, loop, body);
}

// An array whose element type (f16, bf16 or f32) is known only when running: for paths where the
// access pattern and not the switch sets the speed.
struct AnyArray {
  void* data;
  DType dtype;

  __device__ float load(int64_t i) const {
    switch (dtype) {
      case DType::f16:
        return to_float(static_cast<const __half*>(data)[i]);
      case DType::bf16:
        return to_float(static_cast<const __nv_bfloat16*>(data)[i]);
      default:
        return static_cast<const float*>(data)[i];
    }
  }
  __device__ void store(int64_t i, float value) const {
    switch (dtype) {
      case DType::f16:
        static_cast<__half*>(data)[i] = from_float<__half>(value);
        break;
      case DType::bf16:
        static_cast<__nv_bfloat16*>(data)[i] = from_float<__nv_bfloat16>(value);
        break;
      default:
        static_cast<float*>(data)[i] = value;
    }
  }
};

// Throws InvalidArgument unless CUDA computes in the view's dtype.
inline AnyArray any_array(const View& view, const char* op) {
  dispatch_cuda_floating(view.dtype, op, [](auto) {});
  return {view.data, view.dtype};
}

}  // namespace headroom::cuda
