// What the native convolution's sources offer each other, and the choice of a tile.
#pragma once

#include <cuda_runtime.h>

#include "core/base/dtype.h"
#include "kernels/cuda/conv_native_shape.h"
#include "kernels/cuda/conv_native_tile.h"

namespace headroom::cuda {

// Operands of one product; which of x, w, y is written depends on the direction. f32 uses TF32
// tensor cores only if `tf32` says so.
struct NativeConv {
  ConvShape shape;
  DType dtype = DType::f32;  // of x, w and y; the gradient of w may be f32
  bool tf32 = false;
  const void* x = nullptr;
  const void* w = nullptr;
  const void* y = nullptr;
  cudaStream_t stream = nullptr;
};

// Bias of any floating dtype; pointer null: none.
struct ConvBias {
  const void* data = nullptr;
  DType dtype = DType::f32;
};

// Where a weight gradient goes: dw itself (parts = 1), or `parts` f32 copies that are added after.
struct WeightTarget {
  void* data = nullptr;
  bool f32 = true;  // else the dtype of x
  int parts = 1;
};

// Implicit matrix products. wide: 16-byte access along the channels of all operands.
void gemm_forward(const NativeConv& conv, const ConvBias& bias, bool wide, void* y);
void gemm_backward_input(const NativeConv& conv, bool wide, void* dx);
void gemm_backward_weight(const NativeConv& conv, bool wide, const WeightTarget& target);

// One thread per output, for narrow groups.
void direct_forward(const NativeConv& conv, const ConvBias& bias, void* y);
void direct_backward_input(const NativeConv& conv, void* dx);
void direct_backward_weight(const NativeConv& conv, const WeightTarget& target);

__device__ __forceinline__ float load_bias(const ConvBias& bias, int64_t index) {
  switch (bias.dtype) {
    case DType::f16:
      return to_float(static_cast<const __half*>(bias.data)[index]);
    case DType::bf16:
      return to_float(static_cast<const __nv_bfloat16*>(bias.data)[index]);
    case DType::f64:
      return to_float(static_cast<const double*>(bias.data)[index]);
    default:
      return static_cast<const float*>(bias.data)[index];
  }
}

// Calls fn(TileConfig<...>{}) for the element type, the arithmetic and a tile that gives the device
// enough blocks. `rows` x `columns` is one result, of which there are `results`.
template <class Fn>
void dispatch_tile(const NativeConv& conv, bool wide, int64_t rows, int64_t columns,
                   int64_t results, Fn&& fn) {
  // A block of the large tiles fills half a multiprocessor; two thirds of the device are enough
  // because they need half the traffic of the small ones.
  constexpr int64_t kEnoughBlocks = 176;
  const auto blocks = [&](int64_t tile_rows, int64_t tile_columns) {
    return ceil_div(rows, tile_rows) * ceil_div(columns, tile_columns) * results;
  };
  const auto with_math = [&](auto tag, auto math) {
    using T = decltype(tag);
    constexpr ConvMath kMath = decltype(math)::value;
    if (!wide) return fn(TileConfig<T, kMath, 64, 64, 2, 2, false>{});
    if (columns > 64 && blocks(128, 128) >= kEnoughBlocks) {
      return fn(TileConfig<T, kMath, 128, 128, 2, 4, true>{});
    }
    if constexpr (kMath == ConvMath::tensor_half) {
      if (columns <= 64 && blocks(128, 64) >= 2 * kEnoughBlocks) {
        return fn(TileConfig<T, kMath, 128, 64, 2, 2, true>{});
      }
    }
    fn(TileConfig<T, kMath, 64, 64, 2, 2, true>{});
  };
  dispatch_cuda_floating(conv.dtype, "conv2d", [&](auto tag) {
    using T = decltype(tag);
    if constexpr (!std::is_same_v<T, float>) {
      with_math(tag, std::integral_constant<ConvMath, ConvMath::tensor_half>{});
    } else if (conv.tf32) {
      with_math(tag, std::integral_constant<ConvMath, ConvMath::tensor_tf32>{});
    } else {
      with_math(tag, std::integral_constant<ConvMath, ConvMath::fused_f32>{});
    }
  });
}

// Launches a kernel that keeps its stages in dynamic shared memory, beyond the 48 KiB that need no
// asking.
template <auto kKernel, class Args>
void launch_tiles(const char* name, dim3 grid, int threads, int shared_bytes, cudaStream_t stream,
                  const Args& args) {
  static const bool raised = [&] {  // once per kernel
    CUDA_CHECK(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    return true;
  }();
  static_cast<void>(raised);
  kKernel<<<grid, threads, static_cast<size_t>(shared_bytes), stream>>>(args);
  check_launch(name);
}

}  // namespace headroom::cuda
