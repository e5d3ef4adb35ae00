// What the batch normalisation kernels share on the device: 16-byte chunks, per-channel constants,
// the one expression of the output, and sums over a block in a fixed order. Included by
// batch_norm_*.cu only.
#pragma once

#include <type_traits>

#include "core/ops/batch_norm_partition.h"
#include "kernels/cuda/batch_norm_plan.h"
#include "kernels/cuda/cuda_common.h"

namespace headroom::cuda::bn {

// ---- V neighbouring elements: 16 bytes, or a single one where addresses or channels forbid it
// ----

template <class T, int V>
using Chunk = std::conditional_t<V == 1, T, uint4>;

template <class T, int V>
__device__ __forceinline__ Chunk<T, V> load_chunk(const T* from) {
  static_assert(V == 1 || V * sizeof(T) == 16);
  return *reinterpret_cast<const Chunk<T, V>*>(from);
}

// For data that is not read again soon: it leaves the L2 cache first.
template <class T, int V>
__device__ __forceinline__ Chunk<T, V> load_chunk_once(const T* from) {
  return __ldcs(reinterpret_cast<const Chunk<T, V>*>(from));
}

template <class T, int V>
__device__ __forceinline__ void store_chunk(T* to, const Chunk<T, V>& chunk) {
  *reinterpret_cast<Chunk<T, V>*>(to) = chunk;
}

__device__ __forceinline__ void unpack_pair(uint32_t bits, __half, float& low, float& high) {
  const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&bits));
  low = pair.x;
  high = pair.y;
}
__device__ __forceinline__ void unpack_pair(uint32_t bits, __nv_bfloat16, float& low, float& high) {
  low = __uint_as_float(bits << 16);
  high = __uint_as_float(bits & 0xffff0000u);
}
__device__ __forceinline__ uint32_t pack_pair(__half, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t pack_pair(__nv_bfloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <class T, int V>
__device__ __forceinline__ void unpack(const Chunk<T, V>& chunk, float (&value)[V]) {
  if constexpr (V == 1) {
    value[0] = to_float(chunk);
  } else if constexpr (std::is_same_v<T, float>) {
    value[0] = __uint_as_float(chunk.x);
    value[1] = __uint_as_float(chunk.y);
    value[2] = __uint_as_float(chunk.z);
    value[3] = __uint_as_float(chunk.w);
  } else {
    unpack_pair(chunk.x, T{}, value[0], value[1]);
    unpack_pair(chunk.y, T{}, value[2], value[3]);
    unpack_pair(chunk.z, T{}, value[4], value[5]);
    unpack_pair(chunk.w, T{}, value[6], value[7]);
  }
}

template <class T, int V>
__device__ __forceinline__ Chunk<T, V> pack(const float (&value)[V]) {
  if constexpr (V == 1) {
    return from_float<T>(value[0]);
  } else if constexpr (std::is_same_v<T, float>) {
    return make_uint4(__float_as_uint(value[0]), __float_as_uint(value[1]),
                      __float_as_uint(value[2]), __float_as_uint(value[3]));
  } else {
    return make_uint4(pack_pair(T{}, value[0], value[1]), pack_pair(T{}, value[2], value[3]),
                      pack_pair(T{}, value[4], value[5]), pack_pair(T{}, value[6], value[7]));
  }
}

// ---- per-channel constants ----

// Any of them may be null: gamma then counts as 1, beta as 0.
struct ChannelViews {
  const float* gamma = nullptr;
  const float* beta = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
};

// Which channels the elements of a vector belong to: neighbours (rows) or one (planes).
enum class Across { channels, plane };

// V values from `channel` on, which is then a multiple of V; or V times that channel's.
template <int V, Across kAcross = Across::channels>
__device__ __forceinline__ void load_channels(const float* from, int64_t channel, float absent,
                                              float (&value)[V]) {
  if (from == nullptr || kAcross == Across::plane) {
    const float same = from == nullptr ? absent : from[channel];
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = same;
    return;
  }
  from += channel;
  if constexpr (V % 4 == 0) {
    if (reinterpret_cast<uintptr_t>(from) % 16 == 0) {
#pragma unroll
      for (int v = 0; v < V; v += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + v);
        value[v] = four.x;
        value[v + 1] = four.y;
        value[v + 2] = four.z;
        value[v + 3] = four.w;
      }
      return;
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) value[v] = from[v];
}

// ---- the output, written once: the forward pass, its recomputation and the sign that backward
// needs agree to the bit. x - mean comes first because it is exact where a large mean would
// otherwise swallow the spread. Intrinsics keep the compiler from fusing differently here and
// there.

__device__ __forceinline__ float scale_of(float gamma, float rstd) {
  return __fmul_rn(gamma, rstd);
}

__device__ __forceinline__ float normalized(float x, float mean, float scale, float beta) {
  return __fmaf_rn(__fsub_rn(x, mean), scale, beta);
}

// NaN stays NaN.
__device__ __forceinline__ float relu(float value) { return value < 0.0f ? 0.0f : value; }

// A value above this is still positive after rounding to T (to nearest even): half the smallest
// subnormal, which itself rounds to 0.
template <class T>
__device__ __forceinline__ float rounds_to_zero() {
  if constexpr (std::is_same_v<T, __half>) return 0x1p-25f;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return 0x1p-134f;
  return 0.0f;
}

// How backward knows where the output was positive.
enum class MaskFrom { nothing, output, input };

// ---- statistics of one channel ----

struct StatisticsOut {
  double eps = 0;
  double momentum = 0;
  float* mean = nullptr;
  float* rstd = nullptr;
  float* running_mean = nullptr;  // null: not kept
  float* running_var = nullptr;
};

struct MeanRstd {
  float mean;
  float rstd;
};

// From the mean and the sum of squares about it. f64: a few thousand values at most, and rstd is
// then the correctly rounded one.
__device__ __forceinline__ MeanRstd statistics_of(double mean, double squares, double count,
                                                  double eps) {
  const double variance = squares < 0 ? 0 : squares / count;
  return {static_cast<float>(mean), static_cast<float>(1.0 / sqrt(variance + eps))};
}

__device__ inline void write_statistics(const StatisticsOut& out, int64_t channel, double mean,
                                        double squares, double count) {
  const MeanRstd result = statistics_of(mean, squares, count, out.eps);
  out.mean[channel] = result.mean;
  out.rstd[channel] = result.rstd;
  const double variance = (squares < 0 ? 0 : squares) / (count - 1);  // unbiased
  // A batch that overflowed must not leave NaN in the running averages for ever.
  if (!isfinite(result.mean) || !isfinite(static_cast<float>(variance))) return;
  const double keep = 1.0 - out.momentum;
  if (out.running_mean != nullptr) {
    out.running_mean[channel] =
        static_cast<float>(keep * out.running_mean[channel] + out.momentum * mean);
  }
  if (out.running_var != nullptr) {
    out.running_var[channel] =
        static_cast<float>(keep * out.running_var[channel] + out.momentum * variance);
  }
}

// ---- backward ----

// The constants of V channels in backward's passes. xhat = (x - mean) * rstd is never formed: sums
// run over dy' * (x - mean), and dx = gamma * rstd * (dy' - m1 - (x - mean) * m2) with
// m1 = mean(dy') and m2 = rstd * mean(dy' * xhat).
template <class T, int V, MaskFrom kMask, Across kAcross = Across::channels>
struct BackwardChannels {
  float mean[V];
  float scale[V];
  float beta[V];    // only to recompute the output's sign
  float offset[V];  // -scale * m1
  float slope[V];   // -scale * m2

  __device__ __forceinline__ BackwardChannels(const ChannelViews& views, int64_t channel) {
    float gamma[V];
    load_channels<V, kAcross>(views.mean, channel, 0.0f, mean);
    load_channels<V, kAcross>(views.rstd, channel, 1.0f, scale);
    load_channels<V, kAcross>(views.gamma, channel, 1.0f, gamma);
#pragma unroll
    for (int v = 0; v < V; ++v) scale[v] = scale_of(gamma[v], scale[v]);
    if constexpr (kMask == MaskFrom::input)
      load_channels<V, kAcross>(views.beta, channel, 0.0f, beta);
  }

  // means: [2][channels], m1 then m2.
  template <bool kStatistics>
  __device__ __forceinline__ void load_means(const float* means, int64_t channel,
                                             int64_t channels) {
    if constexpr (kStatistics) {
      load_channels<V, kAcross>(means, channel, 0.0f, offset);
      load_channels<V, kAcross>(means + channels, channel, 0.0f, slope);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        offset[v] *= -scale[v];
        slope[v] *= -scale[v];
      }
    }
  }

  // gradient = 0 where the output was not positive.
  __device__ __forceinline__ void mask(const float (&x)[V], const Chunk<T, V>& y,
                                       float (&gradient)[V]) const {
    if constexpr (kMask == MaskFrom::output) {
      float output[V];
      unpack<T, V>(y, output);
#pragma unroll
      for (int v = 0; v < V; ++v) gradient[v] = output[v] > 0.0f ? gradient[v] : 0.0f;
    }
    if constexpr (kMask == MaskFrom::input) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float output = normalized(x[v], mean[v], scale[v], beta[v]);
        gradient[v] = output > rounds_to_zero<T>() ? gradient[v] : 0.0f;
      }
    }
  }

  __device__ __forceinline__ void add(const float (&x)[V], const float (&gradient)[V],
                                      float (&sum)[V], float (&product)[V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      sum[v] += gradient[v];
      product[v] = fmaf(gradient[v], x[v] - mean[v], product[v]);
    }
  }

  // gradient: dy' in, dx out.
  template <bool kStatistics>
  __device__ __forceinline__ void input_gradient(const float (&x)[V], float (&gradient)[V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if constexpr (kStatistics) {
        gradient[v] = fmaf(gradient[v], scale[v], fmaf(x[v] - mean[v], slope[v], offset[v]));
      } else {
        gradient[v] *= scale[v];
      }
    }
  }
};

// sum: of dy'; product: of dy' * (x - mean). Each destination may be null.
__device__ __forceinline__ void write_backward_sums(int64_t channel, float sum, float product,
                                                    float count, int64_t channels, float rstd,
                                                    float* means, float* dgamma, float* dbeta) {
  if (dbeta != nullptr) dbeta[channel] = sum;
  if (dgamma != nullptr) dgamma[channel] = product * rstd;
  if (means != nullptr) {
    means[channel] = sum / count;
    means[channels + channel] = product * rstd * rstd / count;
  }
}

// ---- sums over a block ----

// Adds a and b over all threads of one lane, lane = threadIdx.x % lanes. Thread t < lanes * V
// receives the sums of the group's channel t. scratch: 2 * (kThreads / 32) * lanes * V floats; it
// may be used again after the next barrier.
template <int V, int kThreads>
__device__ __forceinline__ void sum_over_slots(float (&a)[V], float (&b)[V], int lanes,
                                               float* scratch, float& sum_a, float& sum_b) {
  constexpr int kWarps = kThreads / 32;
  const int width = lanes * V;
  for (int offset = lanes; offset < 32; offset *= 2) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      a[v] += __shfl_xor_sync(0xffffffffu, a[v], offset);
      b[v] += __shfl_xor_sync(0xffffffffu, b[v], offset);
    }
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32;
  float* second = scratch + kWarps * width;
  if (lane < lanes) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
      scratch[warp * width + lane * V + v] = a[v];
      second[warp * width + lane * V + v] = b[v];
    }
  }
  __syncthreads();
  sum_a = 0;
  sum_b = 0;
  if (thread < width) {
#pragma unroll 8
    for (int w = 0; w < kWarps; ++w) {
      sum_a += scratch[w * width + thread];
      sum_b += second[w * width + thread];
    }
  }
}

// True in every thread of the last of `blocks` blocks to come here; what the others wrote before is
// then visible (read it past the L1 cache). The counter starts at 0 and is 0 again afterwards.
__device__ inline bool last_to_arrive(unsigned* counter, int blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned final_place = static_cast<unsigned>(blocks - 1);
    last = atomicInc(counter, final_place) == final_place;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

}  // namespace headroom::cuda::bn
