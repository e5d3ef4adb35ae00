// Max and average pooling on CUDA. One thread owns a pack of channels of one output (forward) or
// input (backward) pixel; NCHW is the same loop with one channel per plane. Backward gathers from
// the windows that cover a pixel, so that nothing is added by two threads.
#include <algorithm>

#include "core/ops/contract.h"
#include "kernels/cuda/cuda_common.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/pixel_index.h"
#include "kernels/cuda/reduce.h"
#include "kernels/pool_window.h"
#include "kernels/scalar_ops.h"

namespace headroom {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

struct PoolPlan {
  PoolAxis vertical, horizontal;
  int64_t planes;    // images (NHWC), or images times channels (NCHW)
  int64_t channels;  // per pixel of a plane: all (NHWC) or 1
  PixelIndex index;  // of the pixels that threads own, in groups of channels
  bool count_padding;
};

PoolPlan plan_pool(const View& x, const View& y, const Pool2dParams& params, const char* op) {
  CHECK(x.rank() == 4 && y.rank() == 4 && x.format == y.format && x.is_dense() && y.is_dense(), op,
        ": needs dense images of one format, got ", describe(x), " and ", describe(y));
  CHECK(x.dtype == y.dtype, op, ": dtypes ", x.dtype, " and ", y.dtype, " differ");
  CHECK(x.shape[0] == y.shape[0] && x.shape[1] == y.shape[1], op, ": shapes ", x.shape, " and ",
        y.shape, " differ in images or channels");
  PoolPlan plan{};
  const auto axis = [&](int i) {
    return PoolAxis{x.shape[2 + i],   y.shape[2 + i],    params.kernel[i],
                    params.stride[i], params.padding[i], params.dilation[i]};
  };
  plan.vertical = axis(0);
  plan.horizontal = axis(1);
  const bool channels_last = x.format == MemoryFormat::channels_last;
  plan.planes = channels_last ? x.shape[0] : x.shape[0] * x.shape[1];
  plan.channels = channels_last ? x.shape[1] : 1;
  plan.count_padding = params.count_padding;
  return plan;
}

// The axis with what is known when compiling put in its place, so that divisions vanish. 0: only
// known when running.
template <int kKernel, int kStride>
__device__ __forceinline__ PoolAxis known(PoolAxis axis) {
  if constexpr (kKernel > 0) {
    axis.kernel = kKernel;
    axis.stride = kStride;
    axis.dilation = 1;
  }
  return axis;
}

// The number of the thread's piece of work; pieces beyond the plan's are left to no one.
__device__ __forceinline__ int64_t work_number() {
  return int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

unsigned work_blocks(const PoolPlan& plan) {
  const int64_t blocks = ceil_div(plan.index.count(), kThreads);
  CHECK(blocks <= 0x7fffffff, "pool: ", blocks, " blocks");
  return static_cast<unsigned>(blocks);
}

// Window offsets of either type; both null when none are wanted.
struct OffsetArray {
  uint8_t* narrow;
  int64_t* wide;
};

OffsetArray offset_array(const View& offsets) {
  if (!offsets.defined) return {nullptr, nullptr};
  if (offsets.dtype == DType::u8) return {offsets.as<uint8_t>(), nullptr};
  CHECK(offsets.dtype == DType::i64, "max_pool2d: offsets of dtype ", offsets.dtype);
  return {nullptr, offsets.as<int64_t>()};
}

template <int V, int kKernel, int kStride, class T>
__global__ void __launch_bounds__(kThreads)
    max_pool_kernel(const T* x, T* y, OffsetArray offsets, PoolPlan plan) {
  const int64_t number = work_number();
  if (number >= plan.index.count()) return;
  const Pixel out = plan.index.at(number);
  const PoolAxis vertical = known<kKernel, kStride>(plan.vertical);
  const PoolAxis horizontal = known<kKernel, kStride>(plan.horizontal);
  const int64_t top = window_start(vertical, out.row), left = window_start(horizontal, out.column);
  const T* plane =
      x + out.plane * vertical.input * horizontal.input * plan.channels + out.group * V;

  float best[V];
  int winner[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    best[v] = -INFINITY;
    winner[v] = -1;
  }
  const int rows = static_cast<int>(vertical.kernel), columns = static_cast<int>(horizontal.kernel);
#pragma unroll(kKernel > 0 ? kKernel : 1)
  for (int r = 0; r < rows; ++r) {
    const int64_t h = top + r * vertical.dilation;
    if (h < 0 || h >= vertical.input) continue;
#pragma unroll(kKernel > 0 ? kKernel : 1)
    for (int s = 0; s < columns; ++s) {
      const int64_t w = left + s * horizontal.dilation;
      if (w < 0 || w >= horizontal.input) continue;
      const Pack<T, V> in = load_pack<T, V>(plane + (h * horizontal.input + w) * plan.channels);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float value = to_float(in.value[v]);
        if (winner[v] < 0 || beats(value, best[v])) {
          best[v] = value;
          winner[v] = r * columns + s;
        }
      }
    }
  }
  const int64_t at =
      ((out.plane * vertical.output + out.row) * horizontal.output + out.column) * plan.channels +
      out.group * V;
  Pack<T, V> result;
  Pack<uint8_t, V> narrow;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    result.value[v] = from_float<T>(best[v]);
    winner[v] = max(winner[v], 0);  // a window without a real element
    narrow.value[v] = static_cast<uint8_t>(winner[v]);
  }
  store_pack(y + at, result);
  if (offsets.narrow != nullptr) store_pack(offsets.narrow + at, narrow);
  if (offsets.wide != nullptr) {
#pragma unroll
    for (int v = 0; v < V; ++v) offsets.wide[at + v] = winner[v];
  }
}

template <int V, int kKernel, int kStride, class T>
__global__ void __launch_bounds__(kThreads)
    max_pool_backward_kernel(const T* dy, OffsetArray offsets, T* dx, PoolPlan plan) {
  const int64_t number = work_number();
  if (number >= plan.index.count()) return;
  const Pixel in = plan.index.at(number);
  const PoolAxis vertical = known<kKernel, kStride>(plan.vertical);
  const PoolAxis horizontal = known<kKernel, kStride>(plan.horizontal);
  const PoolRange rows = windows_over(vertical, in.row);
  const PoolRange columns = windows_over(horizontal, in.column);
  // The most windows that can cover an element, where it is known.
  constexpr int kCover = kKernel > 0 ? (kKernel + kStride - 1) / kStride : 1;
  float sum[V] = {};
#pragma unroll(kCover)
  for (int64_t p = rows.begin; p < rows.end; ++p) {
    const int64_t r = tap_at(vertical, in.row, p);
    if (r < 0) continue;
#pragma unroll(kCover)
    for (int64_t q = columns.begin; q < columns.end; ++q) {
      const int64_t s = tap_at(horizontal, in.column, q);
      if (s < 0) continue;
      const int tap = static_cast<int>(r * horizontal.kernel + s);
      const int64_t at =
          ((in.plane * vertical.output + p) * horizontal.output + q) * plan.channels + in.group * V;
      const Pack<T, V> gradient = load_pack<T, V>(dy + at);
      if (offsets.wide == nullptr) {
        const Pack<uint8_t, V> winner = load_pack<uint8_t, V>(offsets.narrow + at);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          if (winner.value[v] == tap) sum[v] += to_float(gradient.value[v]);
        }
      } else {
#pragma unroll
        for (int v = 0; v < V; ++v) {
          if (offsets.wide[at + v] == tap) sum[v] += to_float(gradient.value[v]);
        }
      }
    }
  }
  Pack<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.value[v] = from_float<T>(sum[v]);
  store_pack(
      dx + ((in.plane * vertical.input + in.row) * horizontal.input + in.column) * plan.channels +
          in.group * V,
      result);
}

// Elements that the average of window (p, q) is divided by; at least 1.
__device__ __forceinline__ float divisor_of(const PoolAxis& vertical, const PoolAxis& horizontal,
                                            int64_t p, int64_t q, bool count_padding) {
  int64_t count;
  if (count_padding) {
    count = padded_extent(vertical, p) * padded_extent(horizontal, q);
  } else {
    const PoolRange rows = window_taps(vertical, p), columns = window_taps(horizontal, q);
    count = (rows.end - rows.begin) * (columns.end - columns.begin);
  }
  return static_cast<float>(max(count, int64_t{1}));
}

template <int V, class T>
__global__ void __launch_bounds__(kThreads) avg_pool_kernel(const T* x, T* y, PoolPlan plan) {
  const int64_t number = work_number();
  if (number >= plan.index.count()) return;
  const Pixel out = plan.index.at(number);
  PoolAxis vertical = plan.vertical, horizontal = plan.horizontal;
  vertical.dilation = horizontal.dilation = 1;
  const PoolRange rows = window_taps(vertical, out.row);
  const PoolRange columns = window_taps(horizontal, out.column);
  const int64_t top = window_start(vertical, out.row), left = window_start(horizontal, out.column);
  const T* plane =
      x + out.plane * vertical.input * horizontal.input * plan.channels + out.group * V;
  float sum[V] = {};
  for (int64_t r = rows.begin; r < rows.end; ++r) {
#pragma unroll 2
    for (int64_t s = columns.begin; s < columns.end; ++s) {
      const Pack<T, V> in =
          load_pack<T, V>(plane + ((top + r) * horizontal.input + left + s) * plan.channels);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += to_float(in.value[v]);
    }
  }
  const float divisor = divisor_of(vertical, horizontal, out.row, out.column, plan.count_padding);
  Pack<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.value[v] = from_float<T>(sum[v] / divisor);
  store_pack(y +
                 ((out.plane * vertical.output + out.row) * horizontal.output + out.column) *
                     plan.channels +
                 out.group * V,
             result);
}

template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    avg_pool_backward_kernel(const T* dy, T* dx, PoolPlan plan) {
  const int64_t number = work_number();
  if (number >= plan.index.count()) return;
  const Pixel in = plan.index.at(number);
  PoolAxis vertical = plan.vertical, horizontal = plan.horizontal;
  vertical.dilation = horizontal.dilation = 1;
  const PoolRange rows = windows_over(vertical, in.row);
  const PoolRange columns = windows_over(horizontal, in.column);
  float sum[V] = {};
  for (int64_t p = rows.begin; p < rows.end; ++p) {
    for (int64_t q = columns.begin; q < columns.end; ++q) {
      const Pack<T, V> gradient = load_pack<T, V>(
          dy + ((in.plane * vertical.output + p) * horizontal.output + q) * plan.channels +
          in.group * V);
      const float divisor = divisor_of(vertical, horizontal, p, q, plan.count_padding);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += to_float(gradient.value[v]) / divisor;
    }
  }
  Pack<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.value[v] = from_float<T>(sum[v]);
  store_pack(
      dx + ((in.plane * vertical.input + in.row) * horizontal.input + in.column) * plan.channels +
          in.group * V,
      result);
}

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

// Calls fn(element, width) with a pack of channels that fits every operand: 16 bytes of T or one
// element. `owned` is the extent of the pixels that threads own, vertical and horizontal.
template <class Fn>
void with_packs(PoolPlan& plan, int64_t rows, int64_t columns, const View& x, const View& y,
                const View& offsets, const char* op, Fn&& fn) {
  dispatch_cuda_floating(x.dtype, op, [&](auto element) {
    using T = decltype(element);
    constexpr int kWidth = kVectorElements<T>;
    // An offset pack has one byte, or eight, per channel; whole tensors start on such bounds.
    const bool packs = plan.channels % kWidth == 0 && is_aligned(x.data) && is_aligned(y.data) &&
                       (!offsets.defined || is_aligned(offsets.data, kWidth));
    plan.index = PixelIndex::of(plan.planes, rows, columns, plan.channels / (packs ? kWidth : 1));
    if (plan.index.count() == 0) return;
    if (packs) {
      fn(element, Constant<kWidth>{});
    } else {
      fn(element, Constant<1>{});
    }
  });
}

// Calls fn(kernel, stride) with the square window's extent and stride where a kernel was compiled
// for them (2x2 by 2: VGG, LeNet; 3x3 by 2: ResNet's stem), else with 0, 0.
template <class Fn>
void with_window(const Pool2dParams& params, Fn&& fn) {
  const auto is = [&](int64_t kernel, int64_t stride) {
    return params.kernel[0] == kernel && params.kernel[1] == kernel && params.stride[0] == stride &&
           params.stride[1] == stride && params.dilation[0] == 1 && params.dilation[1] == 1;
  };
  if (is(2, 2)) {
    fn(Constant<2>{}, Constant<2>{});
  } else if (is(3, 2)) {
    fn(Constant<3>{}, Constant<2>{});
  } else {
    fn(Constant<0>{}, Constant<0>{});
  }
}

void max_pool2d(const View& x, const Pool2dParams& params, const View& y, const View& offsets) {
  PoolPlan plan = plan_pool(x, y, params, "max_pool2d");
  const OffsetArray places = offset_array(offsets);
  with_packs(plan, y.shape[2], y.shape[3], x, y, offsets, "max_pool2d",
             [&](auto element, auto width) {
               using T = decltype(element);
               with_window(params, [&](auto kernel, auto stride) {
                 launch("max_pool2d",
                        &max_pool_kernel<decltype(width)::value, decltype(kernel)::value,
                                         decltype(stride)::value, T>,
                        work_blocks(plan), kThreads, 0, x.as<T>(), y.as<T>(), places, plan);
               });
             });
}

void max_pool2d_backward(const View& dy, const View& offsets, const Pool2dParams& params,
                         const View& dx) {
  PoolPlan plan = plan_pool(dx, dy, params, "max_pool2d_backward");
  CHECK(offsets.defined && offsets.shape == dy.shape, "max_pool2d_backward: offsets ",
        offsets.shape, " for dy ", dy.shape);
  const OffsetArray places = offset_array(offsets);
  with_packs(plan, dx.shape[2], dx.shape[3], dy, dx, offsets, "max_pool2d_backward",
             [&](auto element, auto width) {
               using T = decltype(element);
               with_window(params, [&](auto kernel, auto stride) {
                 launch("max_pool2d_backward",
                        &max_pool_backward_kernel<decltype(width)::value, decltype(kernel)::value,
                                                  decltype(stride)::value, T>,
                        work_blocks(plan), kThreads, 0, dy.as<T>(), places, dx.as<T>(), plan);
               });
             });
}

// Whether one window covers the whole image and nothing else.
bool is_global(const PoolPlan& plan) {
  const auto whole = [](const PoolAxis& axis) {
    return axis.output == 1 && axis.padding == 0 && axis.kernel == axis.input;
  };
  return whole(plan.vertical) && whole(plan.horizontal);
}

void avg_pool2d(const View& x, const Pool2dParams& params, const View& y) {
  PoolPlan plan = plan_pool(x, y, params, "avg_pool2d");
  if (is_global(plan)) {  // few outputs with much work each: several threads share an output
    cuda::reduce(ReduceOp::mean, x, y);
    return;
  }
  with_packs(plan, y.shape[2], y.shape[3], x, y, View{}, "avg_pool2d",
             [&](auto element, auto width) {
               using T = decltype(element);
               launch("avg_pool2d", &avg_pool_kernel<decltype(width)::value, T>, work_blocks(plan),
                      kThreads, 0, x.as<T>(), y.as<T>(), plan);
             });
}

void avg_pool2d_backward(const View& dy, const Pool2dParams& params, const View& dx) {
  PoolPlan plan = plan_pool(dx, dy, params, "avg_pool2d_backward");
  with_packs(plan, dx.shape[2], dx.shape[3], dy, dx, View{}, "avg_pool2d_backward",
             [&](auto element, auto width) {
               using T = decltype(element);
               launch("avg_pool2d_backward", &avg_pool_backward_kernel<decltype(width)::value, T>,
                      work_blocks(plan), kThreads, 0, dy.as<T>(), dx.as<T>(), plan);
             });
}

}  // namespace

void register_cuda_pool_kernels() {
  slots::max_pool2d.set(DeviceType::cuda, &max_pool2d);
  slots::max_pool2d_backward.set(DeviceType::cuda, &max_pool2d_backward);
  slots::avg_pool2d.set(DeviceType::cuda, &avg_pool2d);
  slots::avg_pool2d_backward.set(DeviceType::cuda, &avg_pool2d_backward);
}

}  // namespace headroom
