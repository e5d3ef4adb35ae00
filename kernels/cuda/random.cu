// Random fills and dropout on CUDA. Element i in logical row-major order takes Philox word i of the
// draw, so that a mask does not depend on layout, device or launch shape.
#include <array>

#include "core/ops/contract.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/map.cuh"
#include "kernels/scalar_ops.h"

namespace headroom {
namespace {

using namespace cuda;

// Strides that turn coordinates into the logical element number.
Strides logical_strides(const Shape& shape) {
  return dense_strides(shape, MemoryFormat::contiguous);
}

template <class T>
__device__ T round_to(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(static_cast<float>(value));
  }
}

template <class T>
__device__ double widen(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<double>(to_float(value));
  }
}

template <class T>
struct UniformBody {  // offsets: y, logical number
  T* y;
  uint64_t seed, offset;
  double low, high;
  __device__ void operator()(const int64_t (&at)[2]) const {
    const auto index = static_cast<uint64_t>(at[1]);
    T value = round_to<T>(uniform_draw(philox_word(seed, offset, index), low, high));
    // Rounding may reach the excluded end.
    if (widen(value) >= high) value = round_to<T>(low);
    y[at[0]] = value;
  }
};

template <class T>
struct NormalBody {  // offsets: y, logical number
  T* y;
  uint64_t seed, offset;
  double mean, deviation;
  __device__ void operator()(const int64_t (&at)[2]) const {
    const auto index = static_cast<uint64_t>(at[1]);
    const PhiloxWords words = philox(seed, index / 4, offset);
    const bool upper = index % 4 >= 2;
    const NormalPair pair =
        normal_draw(upper ? words.word[2] : words.word[0], upper ? words.word[3] : words.word[1]);
    y[at[0]] = round_to<T>(mean + deviation * (index % 2 == 0 ? pair.cosine : pair.sine));
  }
};

template <class Fn>
void dispatch_random(DType dtype, const char* op, Fn&& fn) {
  if (dtype == DType::f64) {
    fn(double{});
  } else {
    dispatch_cuda_floating(dtype, op, fn);
  }
}

void fill_uniform(uint64_t seed, uint64_t offset, double low, double high, const View& y) {
  const auto loop = make_strided_loop<2>(y.shape, {y.strides, logical_strides(y.shape)});
  dispatch_random(y.dtype, "fill_uniform", [&](auto element) {
    using T = decltype(element);
    launch_strided("fill_uniform", loop, UniformBody<T>{y.as<T>(), seed, offset, low, high});
  });
}

void fill_normal(uint64_t seed, uint64_t offset, double mean, double deviation, const View& y) {
  const auto loop = make_strided_loop<2>(y.shape, {y.strides, logical_strides(y.shape)});
  dispatch_random(y.dtype, "fill_normal", [&](auto element) {
    using T = decltype(element);
    launch_strided("fill_normal", loop, NormalBody<T>{y.as<T>(), seed, offset, mean, deviation});
  });
}

struct DropoutDraw {
  uint64_t seed, offset;
  uint32_t threshold;
  float scale;
};

// Dense in logical order: four elements share one Philox call.
template <int V, class T>
__global__ void __launch_bounds__(kMapThreads)
    dropout_kernel(const T* x, T* y, int64_t numel, DropoutDraw draw) {
  static_assert(V % 4 == 0);
  for (int64_t first = (int64_t{blockIdx.x} * kMapThreads + threadIdx.x) * V; first < numel;
       first += int64_t{gridDim.x} * kMapThreads * V) {
    const bool whole = first + V <= numel;
    Pack<T, V> pack{};
    if (whole) {
      pack = load_pack<T, V>(x + first);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (first + v < numel) pack.value[v] = x[first + v];
      }
    }
#pragma unroll
    for (int group = 0; group < V / 4; ++group) {
      const PhiloxWords words =
          philox(draw.seed, static_cast<uint64_t>(first) / 4 + group, draw.offset);
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        T& value = pack.value[group * 4 + v];
        value = dropout_keeps(words.word[v], draw.threshold)
                    ? from_float<T>(to_float(value) * draw.scale)
                    : from_float<T>(0.0f);
      }
    }
    if (whole) {
      store_pack(y + first, pack);
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        if (first + v < numel) y[first + v] = pack.value[v];
      }
    }
  }
}

struct DropoutBody {  // offsets: y, x, logical number
  AnyArray y, x;
  DropoutDraw draw;
  __device__ void operator()(const int64_t (&at)[3]) const {
    const uint32_t bits = philox_word(draw.seed, draw.offset, static_cast<uint64_t>(at[2]));
    y.store(at[0], dropout_keeps(bits, draw.threshold) ? x.load(at[1]) * draw.scale : 0.0f);
  }
};

void dropout(double p, uint64_t seed, uint64_t offset, const View& x, const View& y) {
  const auto loop = make_strided_loop<3>(y.shape, {y.strides, x.strides, logical_strides(y.shape)});
  if (loop.numel == 0) return;
  const DropoutDraw draw{seed, offset, dropout_threshold(p), static_cast<float>(dropout_scale(p))};
  const bool done = dispatch_cuda_floating(y.dtype, "dropout", [&](auto element) {
    using T = decltype(element);
    constexpr int kWidth = kPackWidth<T>;
    if (!loop.flat() || x.dtype != y.dtype) return false;
    if (!pack_aligned<kWidth>(x.as<T>()) || !pack_aligned<kWidth>(y.as<T>())) return false;
    launch("dropout", &dropout_kernel<kWidth, T>, grid_stride_blocks(ceil_div(loop.numel, kWidth)),
           kMapThreads, 0, x.as<T>(), y.as<T>(), loop.numel, draw);
    return true;
  });
  if (done) return;
  launch_strided("dropout", loop,
                 DropoutBody{any_array(y, "dropout"), any_array(x, "dropout"), draw});
}

}  // namespace

void register_cuda_random_kernels() {
  slots::fill_uniform.set(DeviceType::cuda, &fill_uniform);
  slots::fill_normal.set(DeviceType::cuda, &fill_normal);
  slots::dropout.set(DeviceType::cuda, &dropout);
}

}  // namespace headroom
