// Batch normalisation over planes (NCHW, or a single channel): a channel's values lie in long runs,
// so a block sums one channel, and the elementwise passes take a few planes each.
#include "kernels/cuda/batch_norm_internal.h"

namespace headroom::cuda::bn {
namespace {

using headroom::bn::kMaxCounters;
using headroom::bn::kReduceThreads;
using headroom::bn::plane_partition;
using headroom::bn::PlanePartition;
using headroom::bn::power_of_two_above;

constexpr int kSweepThreads = 256;
constexpr int kSweepBlocks = 8 * kReduceBlocks;
constexpr int kUnroll = 2;  // vectors of a thread in flight

__device__ unsigned arrivals[kMaxCounters];

// Adds a and b over the block; every thread receives both. slots: kReduceThreads / 16 floats.
__device__ void sum_over_block(float& a, float& b, float* slots) {
  constexpr int kWarps = kReduceThreads / 32;
  a = warp_reduce(a, AddOp{});
  b = warp_reduce(b, AddOp{});
  if (threadIdx.x % 32 == 0) {
    slots[threadIdx.x / 32] = a;
    slots[kWarps + threadIdx.x / 32] = b;
  }
  __syncthreads();
  a = 0;
  b = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    a += slots[warp];
    b += slots[kWarps + warp];
  }
}

template <int V>
__device__ __forceinline__ void add_up(const float (&a)[V], const float (&b)[V], float& sum_a,
                                       float& sum_b) {
  sum_a = 0;
  sum_b = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    sum_a += a[v];
    sum_b += b[v];
  }
}

template <class T>
struct StatisticsKernelArgs {
  PlanePartition cut;
  const T* x;
  float2* partials;
  StatisticsOut out;
};

template <class T, int V>
__global__ __launch_bounds__(kReduceThreads,
                             1) void plane_statistics_kernel(StatisticsKernelArgs<T> args) {
  __shared__ float slots[kReduceThreads / 16];
  const PlanePartition& cut = args.cut;
  const int64_t channel = blockIdx.x / cut.blocks;
  const int block = static_cast<int>(blockIdx.x % cut.blocks);
  const int thread = static_cast<int>(threadIdx.x);
  const float pivot =
      to_float(args.x[PlaneWalk(cut, channel, block, 0).offset(V)]);  // the block's first value
  float sum[V] = {}, squares[V] = {};
  PlaneWalk walk(cut, channel, block, thread);
  for (int i = 0; i < walk.count; i += kUnroll) {
    Chunk<T, V> chunk[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u >= walk.count) continue;
      chunk[u] = load_chunk<T, V>(args.x + walk.offset(V));
      walk.advance();
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u >= walk.count) continue;
      float value[V];
      unpack<T, V>(chunk[u], value);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float away = value[v] - pivot;
        sum[v] += away;
        squares[v] = fmaf(away, away, squares[v]);
      }
    }
  }
  float total, total_squares;
  add_up<V>(sum, squares, total, total_squares);
  sum_over_block(total, total_squares, slots);
  if (thread == 0) {
    const float count = static_cast<float>(cut.count_of_block(block));
    const float shift = total / count;
    args.partials[channel * cut.blocks + block] =
        make_float2(pivot + shift, total_squares - total * shift);
  }
  if (cut.blocks == 1) {
    __syncthreads();
  } else if (!last_to_arrive(&arrivals[channel], cut.blocks)) {
    return;
  }
  // A thread per block's part; sums run about the first block's mean.
  const float2* parts = args.partials + channel * cut.blocks;
  const float origin = __ldcg(parts).x;
  total = 0;
  total_squares = 0;
  if (thread < cut.blocks) {
    const float2 part = __ldcg(parts + thread);
    const float count = static_cast<float>(cut.count_of_block(thread));
    const float away = part.x - origin;
    total = count * away;
    total_squares = part.y + count * away * away;
  }
  sum_over_block(total, total_squares, slots);
  if (thread != 0) return;
  const double count = static_cast<double>(cut.extent.count()), sum_away = total;
  write_statistics(args.out, channel, origin + sum_away / count,
                   total_squares - sum_away * sum_away / count, count);
}

template <class T>
struct SumsKernelArgs {
  PlanePartition cut;
  const T* x;
  const T* y;
  const T* dy;
  ChannelViews channels;
  float2* partials;
  float* means;
  T* dresidual;
  float* dgamma;
  float* dbeta;
};

template <class T, int V, MaskFrom kMask>
__global__ __launch_bounds__(kReduceThreads, 1) void plane_sums_kernel(SumsKernelArgs<T> args) {
  __shared__ float slots[kReduceThreads / 16];
  const PlanePartition& cut = args.cut;
  const int64_t channel = blockIdx.x / cut.blocks;
  const int block = static_cast<int>(blockIdx.x % cut.blocks);
  const int thread = static_cast<int>(threadIdx.x);
  const BackwardChannels<T, V, kMask, Across::plane> constants(args.channels, channel);
  float sum[V] = {}, product[V] = {};
  PlaneWalk walk(cut, channel, block, thread);
  for (int i = 0; i < walk.count; i += kUnroll) {
    Chunk<T, V> x[kUnroll], y[kUnroll], dy[kUnroll];
    int64_t at[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u >= walk.count) continue;
      at[u] = walk.offset(V);
      walk.advance();
      dy[u] = load_chunk<T, V>(args.dy + at[u]);
      x[u] = load_chunk<T, V>(args.x + at[u]);
      if constexpr (kMask == MaskFrom::output) y[u] = load_chunk_once<T, V>(args.y + at[u]);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u >= walk.count) continue;
      float input[V], gradient[V];
      unpack<T, V>(x[u], input);
      unpack<T, V>(dy[u], gradient);
      constants.mask(input, y[u], gradient);
      constants.add(input, gradient, sum, product);
      if (args.dresidual != nullptr) {
        store_chunk<T, V>(args.dresidual + at[u], pack<T, V>(gradient));
      }
    }
  }
  float total, total_product;
  add_up<V>(sum, product, total, total_product);
  sum_over_block(total, total_product, slots);
  if (thread == 0) {
    args.partials[channel * cut.blocks + block] = make_float2(total, total_product);
  }
  if (cut.blocks == 1) {
    __syncthreads();
  } else if (!last_to_arrive(&arrivals[channel], cut.blocks)) {
    return;
  }
  const float2* parts = args.partials + channel * cut.blocks;
  const float2 part = thread < cut.blocks ? __ldcg(parts + thread) : make_float2(0, 0);
  total = part.x;
  total_product = part.y;
  sum_over_block(total, total_product, slots);
  if (thread != 0) return;
  write_backward_sums(channel, total, total_product, static_cast<float>(cut.extent.count()),
                      cut.extent.channels, args.channels.rstd[channel], args.means, args.dgamma,
                      args.dbeta);
}

// ---- elementwise passes ----

// Planes cut into segments that a line of `lanes` threads walks along; lines and blocks walk over
// the segments, the last one first.
struct PlaneSweep {
  Extent extent;
  int lanes;
  int64_t pieces;    // vectors of a plane
  int64_t segments;  // per plane
  int64_t items() const { return extent.outer * extent.channels * segments; }
};
constexpr int kSegmentSteps = 16;  // vectors of one thread in a segment

PlaneSweep plane_sweep(const Extent& extent, int vector) {
  PlaneSweep sweep;
  sweep.extent = extent;
  sweep.pieces = extent.inner / vector;
  sweep.lanes = power_of_two_above(sweep.pieces < kSweepThreads ? sweep.pieces : kSweepThreads);
  sweep.segments = divide_up(sweep.pieces, sweep.lanes * kSegmentSteps);
  return sweep;
}

// Calls fn(channel, first element of the plane, first and last piece) for every segment.
template <class PerSegment>
__device__ __forceinline__ void for_each_segment(const PlaneSweep& sweep, PerSegment&& fn) {
  const Extent& extent = sweep.extent;
  const int64_t items = extent.outer * extent.channels * sweep.segments;
  const int lines = kSweepThreads / sweep.lanes;
  const int lane = static_cast<int>(threadIdx.x) % sweep.lanes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * lines;
  const int64_t length = static_cast<int64_t>(sweep.lanes) * kSegmentSteps;
  for (int64_t before = static_cast<int64_t>(blockIdx.x) * lines + threadIdx.x / sweep.lanes;
       before < items; before += step) {
    const int64_t item = items - 1 - before;
    const int64_t plane = item / sweep.segments, first = item % sweep.segments * length;
    const int64_t end = first + length < sweep.pieces ? first + length : sweep.pieces;
    fn(plane % extent.channels, plane * extent.inner, first + lane, end);
  }
}

template <class T>
struct PlaneApplyKernelArgs {
  PlaneSweep sweep;
  bool relu;
  const T* x;
  const T* residual;
  ChannelViews channels;
  T* y;
};

template <class T, int V>
__global__ __launch_bounds__(kSweepThreads) void plane_apply_kernel(PlaneApplyKernelArgs<T> args) {
  for_each_segment(args.sweep, [&](int64_t channel, int64_t base, int64_t begin, int64_t end) {
    float mean[1], rstd[1], gamma[1], beta[1];
    load_channels<1>(args.channels.mean, channel, 0.0f, mean);
    load_channels<1>(args.channels.rstd, channel, 1.0f, rstd);
    load_channels<1>(args.channels.gamma, channel, 1.0f, gamma);
    load_channels<1>(args.channels.beta, channel, 0.0f, beta);
    const float scale = scale_of(gamma[0], rstd[0]);
    for (int64_t piece = begin; piece < end; piece += args.sweep.lanes) {
      const int64_t at = base + piece * V;
      float value[V], other[V];
      unpack<T, V>(load_chunk_once<T, V>(args.x + at), value);
#pragma unroll
      for (int v = 0; v < V; ++v) value[v] = normalized(value[v], mean[0], scale, beta[0]);
      if (args.residual != nullptr) {
        unpack<T, V>(load_chunk_once<T, V>(args.residual + at), other);
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = __fadd_rn(value[v], other[v]);
      }
      if (args.relu) {
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = relu(value[v]);
      }
      store_chunk<T, V>(args.y + at, pack<T, V>(value));
    }
  });
}

template <class T>
struct PlaneBackwardKernelArgs {
  PlaneSweep sweep;
  const T* x;
  const T* y;
  const T* dy;
  ChannelViews channels;
  const float* means;
  T* dx;
  T* dresidual;
};

template <class T, int V, MaskFrom kMask, bool kStatistics>
__global__ __launch_bounds__(kSweepThreads) void plane_backward_kernel(
    PlaneBackwardKernelArgs<T> args) {
  constexpr bool kNeedsInput = kStatistics || kMask == MaskFrom::input;
  for_each_segment(args.sweep, [&](int64_t channel, int64_t base, int64_t begin, int64_t end) {
    BackwardChannels<T, V, kMask, Across::plane> constants(args.channels, channel);
    constants.template load_means<kStatistics>(args.means, channel, args.sweep.extent.channels);
    for (int64_t piece = begin; piece < end; piece += args.sweep.lanes) {
      const int64_t at = base + piece * V;
      float input[V] = {}, gradient[V];
      Chunk<T, V> y;
      unpack<T, V>(load_chunk_once<T, V>(args.dy + at), gradient);
      if constexpr (kNeedsInput) unpack<T, V>(load_chunk_once<T, V>(args.x + at), input);
      if constexpr (kMask == MaskFrom::output) y = load_chunk_once<T, V>(args.y + at);
      constants.mask(input, y, gradient);
      if (args.dresidual != nullptr) {
        store_chunk<T, V>(args.dresidual + at, pack<T, V>(gradient));
      }
      if (args.dx != nullptr) {
        constants.template input_gradient<kStatistics>(input, gradient);
        store_chunk<T, V>(args.dx + at, pack<T, V>(gradient));
      }
    }
  });
}

dim3 sweep_grid(const PlaneSweep& sweep) {
  const int64_t needed = divide_up(sweep.items(), kSweepThreads / sweep.lanes);
  return dim3(static_cast<unsigned>(needed < kSweepBlocks ? needed : kSweepBlocks));
}

}  // namespace

void planes_statistics(const StatisticsArgs& args) {
  dispatch_vector(args.dtype, args.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    const PlanePartition cut = plane_partition(args.extent, kVector);
    launch("batch_norm_plane_statistics", &plane_statistics_kernel<T, kVector>,
           dim3(static_cast<unsigned>(cut.partials())), dim3(kReduceThreads), 0,
           StatisticsKernelArgs<T>{cut, static_cast<const T*>(args.x), args.partials, args.out});
  });
}

void planes_apply(const ApplyArgs& args) {
  dispatch_vector(args.dtype, args.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    const PlaneSweep sweep = plane_sweep(args.extent, kVector);
    launch("batch_norm_plane_apply", &plane_apply_kernel<T, kVector>, sweep_grid(sweep),
           dim3(kSweepThreads), 0,
           PlaneApplyKernelArgs<T>{sweep, args.relu, static_cast<const T*>(args.x),
                                   static_cast<const T*>(args.residual), args.channels,
                                   static_cast<T*>(args.y)});
  });
}

void planes_backward_sums(const BackwardArgs& args) {
  dispatch_vector(args.dtype, args.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    dispatch_mask(args.mask, [&](auto mask) {
      const PlanePartition cut = plane_partition(args.extent, kVector);
      launch(
          "batch_norm_plane_backward_sums", &plane_sums_kernel<T, kVector, decltype(mask)::value>,
          dim3(static_cast<unsigned>(cut.partials())), dim3(kReduceThreads), 0,
          SumsKernelArgs<T>{cut, static_cast<const T*>(args.x), static_cast<const T*>(args.y),
                            static_cast<const T*>(args.dy), args.channels, args.partials,
                            args.means, static_cast<T*>(args.dresidual), args.dgamma, args.dbeta});
    });
  });
}

void planes_backward_apply(const BackwardArgs& args) {
  dispatch_vector(args.dtype, args.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    dispatch_mask(args.mask, [&](auto mask) {
      constexpr MaskFrom kMask = decltype(mask)::value;
      const PlaneSweep sweep = plane_sweep(args.extent, kVector);
      const auto kernel = args.means != nullptr ? &plane_backward_kernel<T, kVector, kMask, true>
                                                : &plane_backward_kernel<T, kVector, kMask, false>;
      launch("batch_norm_plane_backward_apply", kernel, sweep_grid(sweep), dim3(kSweepThreads), 0,
             PlaneBackwardKernelArgs<T>{sweep, static_cast<const T*>(args.x),
                                        static_cast<const T*>(args.y),
                                        static_cast<const T*>(args.dy), args.channels, args.means,
                                        static_cast<T*>(args.dx), static_cast<T*>(args.dresidual)});
    });
  });
}

}  // namespace headroom::cuda::bn
