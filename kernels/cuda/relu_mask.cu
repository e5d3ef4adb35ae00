// ReLU masks of one bit per element: a thread packs or unpacks one byte, that is, eight elements.
#include "core/ops/contract.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/map.cuh"
#include "kernels/scalar_ops.h"

namespace headroom {
namespace {

using namespace cuda;

constexpr int kBits = 8;

// Eight consecutive elements; those from numel on are zeros. Packs of 16 bytes where they are
// whole and aligned.
template <class T>
__device__ __forceinline__ void load_eight(const T* from, int64_t first, int64_t numel,
                                           bool aligned, T (&out)[kBits]) {
  constexpr int kWidth = kPackWidth<T> < kBits ? kPackWidth<T> : kBits;
  if (aligned && first + kBits <= numel) {
#pragma unroll
    for (int p = 0; p < kBits / kWidth; ++p) {
      const Pack<T, kWidth> pack = load_pack<T, kWidth>(from + first + p * kWidth);
#pragma unroll
      for (int v = 0; v < kWidth; ++v) out[p * kWidth + v] = pack.value[v];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kBits; ++i) out[i] = first + i < numel ? from[first + i] : T(0.0f);
}

template <class T>
__global__ void __launch_bounds__(kMapThreads)
    relu_mask_kernel(const T* y, uint8_t* mask, int64_t numel, int64_t bytes, bool aligned) {
  const int64_t stride = int64_t{gridDim.x} * kMapThreads;
  for (int64_t byte = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; byte < bytes;
       byte += stride) {
    T value[kBits];
    load_eight(y, byte * kBits, numel, aligned, value);
    unsigned packed = 0;
#pragma unroll
    for (int i = 0; i < kBits; ++i) {
      const bool passes = unary_gradient<UnaryOp::relu>(to_float(value[i]), 0.0f, 1.0f) != 0.0f;
      packed |= static_cast<unsigned>(passes) << i;
    }
    mask[byte] = static_cast<uint8_t>(packed);
  }
}

template <class T>
__global__ void __launch_bounds__(kMapThreads)
    relu_mask_backward_kernel(const uint8_t* mask, const T* dy, T* dx, int64_t numel, int64_t bytes,
                              bool aligned) {
  constexpr int kWidth = kPackWidth<T> < kBits ? kPackWidth<T> : kBits;
  const int64_t stride = int64_t{gridDim.x} * kMapThreads;
  for (int64_t byte = int64_t{blockIdx.x} * kMapThreads + threadIdx.x; byte < bytes;
       byte += stride) {
    const int64_t first = byte * kBits;
    T value[kBits];
    load_eight(dy, first, numel, aligned, value);
    const unsigned packed = mask[byte];
#pragma unroll
    for (int i = 0; i < kBits; ++i) {
      if (!(packed >> i & 1)) value[i] = T(0.0f);
    }
    if (aligned && first + kBits <= numel) {
#pragma unroll
      for (int p = 0; p < kBits / kWidth; ++p) {
        Pack<T, kWidth> pack;
#pragma unroll
        for (int v = 0; v < kWidth; ++v) pack.value[v] = value[p * kWidth + v];
        store_pack(dx + first + p * kWidth, pack);
      }
    } else {
      for (int i = 0; i < kBits && first + i < numel; ++i) dx[first + i] = value[i];
    }
  }
}

template <class T>
bool eight_aligned(const T* pointer) {
  return pack_aligned<(kPackWidth<T> < kBits ? kPackWidth<T> : kBits)>(pointer);
}

void relu_mask(const View& y, const View& mask) {
  const int64_t bytes = mask.numel();
  if (bytes == 0) return;
  dispatch_cuda_floating(y.dtype, "relu_mask", [&](auto element) {
    using T = decltype(element);
    launch("relu_mask", &relu_mask_kernel<T>, grid_stride_blocks(bytes), kMapThreads, 0, y.as<T>(),
           mask.as<uint8_t>(), y.numel(), bytes, eight_aligned(y.as<T>()));
  });
}

void relu_mask_backward(const View& mask, const View& dy, const View& dx) {
  const int64_t bytes = mask.numel();
  if (bytes == 0) return;
  dispatch_cuda_floating(dy.dtype, "relu_mask_backward", [&](auto element) {
    using T = decltype(element);
    launch("relu_mask_backward", &relu_mask_backward_kernel<T>, grid_stride_blocks(bytes),
           kMapThreads, 0, mask.as<uint8_t>(), dy.as<T>(), dx.as<T>(), dy.numel(), bytes,
           eight_aligned(dy.as<T>()) && eight_aligned(dx.as<T>()));
  });
}

}  // namespace

void register_cuda_relu_mask_kernels() {
  slots::relu_mask.set(DeviceType::cuda, &relu_mask);
  slots::relu_mask_backward.set(DeviceType::cuda, &relu_mask_backward);
}

}  // namespace headroom
