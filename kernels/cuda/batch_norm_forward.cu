// Batch normalisation forward over rows (NHWC and [n,c]): one pass that sums, one that writes.
#include "kernels/cuda/batch_norm_internal.h"

namespace headroom::cuda::bn {
namespace {

using headroom::bn::kMaxCounters;
using headroom::bn::kReduceThreads;
using headroom::bn::row_partition;
using headroom::bn::RowPartition;

constexpr int kMaxWidth = 128;  // channels of a group: 16 lanes of 8
constexpr int kUnroll = 4;      // independent loads of a thread in flight
constexpr int kApplyThreads = 512;
constexpr int kApplyBlocks = 2 * kReduceBlocks;

__device__ unsigned arrivals[kMaxCounters];

template <class T>
struct StatisticsKernelArgs {
  RowPartition cut;
  const T* x;
  float2* partials;
  StatisticsOut out;
};

// Combines the (mean, squares about it) of a group's blocks. Sums run about the first block's mean,
// which lies within the spread of the others, so nothing cancels.
template <int V>
__device__ void finish_statistics(const RowPartition& cut, int64_t group, const float2* partials,
                                  const StatisticsOut& out, float* scratch) {
  const int width = cut.width(), slices = kReduceThreads / width;
  const int thread = static_cast<int>(threadIdx.x);
  const int channel = thread % width, slice = thread / width;
  const float2* mine = partials + group * cut.blocks * width + channel;
  const float origin = __ldcg(mine).x;
  float sum = 0, squares = 0;
#pragma unroll 4
  for (int block = slice; block < cut.blocks; block += slices) {
    const float2 part = __ldcg(mine + static_cast<int64_t>(block) * width);
    const float count = static_cast<float>(cut.rows_of_block(block));
    const float away = part.x - origin;
    sum += count * away;
    squares += part.y + count * away * away;
  }
  float* second = scratch + kReduceThreads;
  scratch[thread] = sum;
  second[thread] = squares;
  __syncthreads();
  if (thread >= width || group * width + channel >= cut.channels) return;
  double total = 0, total_squares = 0;
  for (int s = 0; s < slices; ++s) {
    total += scratch[s * width + channel];
    total_squares += second[s * width + channel];
  }
  const double count = static_cast<double>(cut.rows);
  write_statistics(out, group * width + channel, origin + total / count,
                   total_squares - total * total / count, count);
}

template <class T, int V>
__global__ __launch_bounds__(kReduceThreads,
                             1) void statistics_kernel(StatisticsKernelArgs<T> args) {
  constexpr int kWarps = kReduceThreads / 32;
  __shared__ float scratch[2 * kWarps * kMaxWidth];
  static_assert(2 * kWarps * kMaxWidth >= 2 * kReduceThreads);
  const RowPartition& cut = args.cut;
  const int64_t group = blockIdx.x / cut.blocks;
  const int block = static_cast<int>(blockIdx.x % cut.blocks);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % cut.lanes, slot = thread / cut.lanes;
  const int64_t vector = group * cut.lanes + lane;

  // Sums about a value of the block's own data, so that a large mean does not swallow the spread.
  float pivot[V] = {}, sum[V] = {}, squares[V] = {};
  if (vector < cut.vectors) {
    const int64_t first = cut.first_row(block);
    const T* from = args.x + first * cut.channels + vector * V;
    unpack<T, V>(load_chunk<T, V>(from), pivot);
    from += slot * cut.channels;
    const int64_t stride = cut.step() * cut.channels;
    const int count = static_cast<int>(walk_length(first + slot, cut.step(), cut.rows));
    for (int i = 0; i < count; i += kUnroll) {
      Chunk<T, V> chunk[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u < count) chunk[u] = load_chunk<T, V>(from + u * stride);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u >= count) continue;
        float value[V];
        unpack<T, V>(chunk[u], value);
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const float away = value[v] - pivot[v];
          sum[v] += away;
          squares[v] = fmaf(away, away, squares[v]);
        }
      }
      from += kUnroll * stride;
    }
  }

  float block_sum, block_squares;
  sum_over_slots<V, kReduceThreads>(sum, squares, cut.lanes, scratch, block_sum, block_squares);
  __syncthreads();
  if (thread < cut.lanes) {
#pragma unroll
    for (int v = 0; v < V; ++v) scratch[thread * V + v] = pivot[v];
  }
  __syncthreads();
  const int width = cut.width();
  if (thread < width) {
    const float count = static_cast<float>(cut.rows_of_block(block));
    const float shift = block_sum / count;
    args.partials[(group * cut.blocks + block) * width + thread] =
        make_float2(scratch[thread] + shift, block_squares - block_sum * shift);
  }
  if (cut.blocks == 1) {
    __syncthreads();  // the partials of this block, read back below by the same block
  } else if (!last_to_arrive(&arrivals[group], cut.blocks)) {
    return;
  }
  finish_statistics<V>(cut, group, args.partials, args.out, scratch);
}

template <class T>
struct ApplyKernelArgs {
  RowSweep sweep;
  bool relu;
  const T* x;
  const T* residual;
  ChannelViews channels;
  T* y;
};

template <class T, int V, bool kResidual>
__global__ __launch_bounds__(kApplyThreads, 2) void apply_kernel(ApplyKernelArgs<T> args) {
  const RowSweep& sweep = args.sweep;
  const int64_t group = blockIdx.x / sweep.blocks;
  const int64_t block = blockIdx.x % sweep.blocks;
  const int lane = static_cast<int>(threadIdx.x) % sweep.lanes;
  const int slot = static_cast<int>(threadIdx.x) / sweep.lanes;
  const int64_t vector = group * sweep.lanes + lane;
  if (slot >= sweep.slots || vector >= sweep.vectors) return;
  const int64_t before = block * sweep.slots + slot;  // rows from the end
  const int count = static_cast<int>(walk_length(before, sweep.step(), sweep.rows));
  if (count == 0) return;

  float mean[V], scale[V], beta[V];
  load_channels<V>(args.channels.mean, vector * V, 0.0f, mean);
  load_channels<V>(args.channels.rstd, vector * V, 1.0f, scale);
  load_channels<V>(args.channels.gamma, vector * V, 1.0f, beta);
#pragma unroll
  for (int v = 0; v < V; ++v) scale[v] = scale_of(beta[v], scale[v]);
  load_channels<V>(args.channels.beta, vector * V, 0.0f, beta);

  constexpr int kLoads = kResidual ? kUnroll / 2 : kUnroll;  // two tensors: as many in all
  int64_t at = (sweep.rows - 1 - before) * sweep.channels + vector * V;
  const int64_t stride = sweep.step() * sweep.channels;
  for (int i = 0; i < count; i += kLoads) {
    Chunk<T, V> chunk[kLoads];
    Chunk<T, V> added[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      if (i + u >= count) continue;
      chunk[u] = load_chunk_once<T, V>(args.x + (at - u * stride));
      if constexpr (kResidual) {
        added[u] = load_chunk_once<T, V>(args.residual + (at - u * stride));
      }
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      if (i + u >= count) continue;
      float value[V];
      unpack<T, V>(chunk[u], value);
#pragma unroll
      for (int v = 0; v < V; ++v) value[v] = normalized(value[v], mean[v], scale[v], beta[v]);
      if constexpr (kResidual) {
        float other[V];
        unpack<T, V>(added[u], other);
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = __fadd_rn(value[v], other[v]);
      }
      if (args.relu) {
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = relu(value[v]);
      }
      store_chunk<T, V>(args.y + (at - u * stride), pack<T, V>(value));
    }
    at -= kLoads * stride;
  }
}

}  // namespace

void rows_statistics(const StatisticsArgs& args) {
  dispatch_vector(args.dtype, args.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    const RowPartition cut = row_partition(args.extent.outer, args.extent.channels, kVector);
    launch("batch_norm_statistics", &statistics_kernel<T, kVector>,
           dim3(static_cast<unsigned>(cut.groups * cut.blocks)), dim3(kReduceThreads), 0,
           StatisticsKernelArgs<T>{cut, static_cast<const T*>(args.x), args.partials, args.out});
  });
}

void rows_apply(const ApplyArgs& args) {
  dispatch_vector(args.dtype, args.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    const RowSweep sweep =
        row_sweep(args.extent.outer, args.extent.channels, kVector, kApplyThreads, kApplyBlocks);
    const ApplyKernelArgs<T> kernel_args{sweep,
                                         args.relu,
                                         static_cast<const T*>(args.x),
                                         static_cast<const T*>(args.residual),
                                         args.channels,
                                         static_cast<T*>(args.y)};
    const dim3 grid(static_cast<unsigned>(sweep.groups * sweep.blocks));
    const auto kernel = args.residual != nullptr ? &apply_kernel<T, kVector, true>
                                                 : &apply_kernel<T, kVector, false>;
    launch("batch_norm_apply", kernel, grid, dim3(kApplyThreads), 0, kernel_args);
  });
}

}  // namespace headroom::cuda::bn
