// Batch normalisation backward over rows (NHWC and [n,c]): one pass that sums dy' and dy' * xhat,
// one that writes dx. The masked gradient is formed as it is read; where the caller wants it as the
// residual's gradient, the first pass writes it and the second reads it instead of dy.
#include "kernels/cuda/batch_norm_internal.h"

namespace headroom::cuda::bn {
namespace {

using headroom::bn::kMaxCounters;
using headroom::bn::kReduceThreads;
using headroom::bn::row_partition;
using headroom::bn::RowPartition;

constexpr int kMaxWidth = 128;  // channels of a group: 16 lanes of 8
constexpr int kUnroll = 2;      // rows of a thread in flight, two or three tensors each
constexpr int kApplyThreads = 256;

// Blocks of the second pass per multiprocessor, and rows of a thread in flight. Recomputing the
// sign takes five constants per channel: fewer threads then, with more loads each.
template <int V, MaskFrom kMask, bool kStatistics>
constexpr int kApplyResident = V == 8 && kMask == MaskFrom::input&& kStatistics ? 2 : 3;
template <int V, MaskFrom kMask, bool kStatistics>
constexpr int kApplyUnroll = kApplyResident<V, kMask, kStatistics> == 2 ? 3 : 2;

__device__ unsigned arrivals[kMaxCounters];

template <class T>
struct SumsKernelArgs {
  RowPartition cut;
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

// Adds the blocks' (sum dy', sum dy' * (x - mean)) of one group.
template <class T>
__device__ void finish_sums(const SumsKernelArgs<T>& args, int64_t group, float* scratch) {
  const RowPartition& cut = args.cut;
  const int width = cut.width(), slices = kReduceThreads / width;
  const int thread = static_cast<int>(threadIdx.x);
  const int channel_in_group = thread % width, slice = thread / width;
  const float2* mine = args.partials + group * cut.blocks * width + channel_in_group;
  float sum = 0, product = 0;
#pragma unroll 4
  for (int block = slice; block < cut.blocks; block += slices) {
    const float2 part = __ldcg(mine + static_cast<int64_t>(block) * width);
    sum += part.x;
    product += part.y;
  }
  float* second = scratch + kReduceThreads;
  scratch[thread] = sum;
  second[thread] = product;
  __syncthreads();
  const int64_t channel = group * width + channel_in_group;
  if (thread >= width || channel >= cut.channels) return;
  sum = 0;
  product = 0;
  for (int s = 0; s < slices; ++s) {
    sum += scratch[s * width + channel_in_group];
    product += second[s * width + channel_in_group];
  }
  write_backward_sums(channel, sum, product, static_cast<float>(cut.rows), cut.channels,
                      args.channels.rstd[channel], args.means, args.dgamma, args.dbeta);
}

template <class T, int V, MaskFrom kMask>
__global__ __launch_bounds__(kReduceThreads, 1) void sums_kernel(SumsKernelArgs<T> args) {
  constexpr int kWarps = kReduceThreads / 32;
  __shared__ float scratch[2 * kWarps * kMaxWidth];
  const RowPartition& cut = args.cut;
  const int64_t group = blockIdx.x / cut.blocks;
  const int block = static_cast<int>(blockIdx.x % cut.blocks);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % cut.lanes, slot = thread / cut.lanes;
  const int64_t vector = group * cut.lanes + lane;

  float sum[V] = {}, product[V] = {};
  if (vector < cut.vectors) {
    const BackwardChannels<T, V, kMask> channels(args.channels, vector * V);
    const int64_t first = cut.first_row(block) + slot;
    int64_t at = first * cut.channels + vector * V;
    const int64_t stride = cut.step() * cut.channels;
    const int count = static_cast<int>(walk_length(first, cut.step(), cut.rows));
    for (int i = 0; i < count; i += kUnroll) {
      Chunk<T, V> x[kUnroll], y[kUnroll], dy[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u >= count) continue;
        dy[u] = load_chunk<T, V>(args.dy + at + u * stride);
        x[u] = load_chunk<T, V>(args.x + at + u * stride);
        if constexpr (kMask == MaskFrom::output) {
          y[u] = load_chunk_once<T, V>(args.y + at + u * stride);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u >= count) continue;
        float input[V], gradient[V];
        unpack<T, V>(x[u], input);
        unpack<T, V>(dy[u], gradient);
        channels.mask(input, y[u], gradient);
        channels.add(input, gradient, sum, product);
        if (args.dresidual != nullptr) {
          store_chunk<T, V>(args.dresidual + at + u * stride, pack<T, V>(gradient));
        }
      }
      at += kUnroll * stride;
    }
  }

  float block_sum, block_product;
  sum_over_slots<V, kReduceThreads>(sum, product, cut.lanes, scratch, block_sum, block_product);
  const int width = cut.width();
  if (thread < width) {
    args.partials[(group * cut.blocks + block) * width + thread] =
        make_float2(block_sum, block_product);
  }
  if (cut.blocks == 1) {
    __syncthreads();
  } else if (!last_to_arrive(&arrivals[group], cut.blocks)) {
    return;
  }
  finish_sums(args, group, scratch);
}

template <class T>
struct BackwardApplyKernelArgs {
  RowSweep sweep;
  const T* x;
  const T* y;
  const T* dy;
  ChannelViews channels;
  const float* means;
  T* dx;
  T* dresidual;
};

// kStatistics: the statistics moved with x, so dx has the two correcting terms.
template <class T, int V, MaskFrom kMask, bool kStatistics>
__global__
__launch_bounds__(kApplyThreads, kApplyResident<V, kMask, kStatistics>) void backward_apply_kernel(
    BackwardApplyKernelArgs<T> args) {
  constexpr int kLoads = kApplyUnroll<V, kMask, kStatistics>;
  constexpr bool kNeedsInput = kStatistics || kMask == MaskFrom::input;
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

  BackwardChannels<T, V, kMask> channels(args.channels, vector * V);
  channels.template load_means<kStatistics>(args.means, vector * V, sweep.channels);
  int64_t at = (sweep.rows - 1 - before) * sweep.channels + vector * V;
  const int64_t stride = sweep.step() * sweep.channels;
  for (int i = 0; i < count; i += kLoads) {
    Chunk<T, V> x[kLoads], y[kLoads], dy[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      if (i + u >= count) continue;
      dy[u] = load_chunk_once<T, V>(args.dy + (at - u * stride));
      if constexpr (kNeedsInput) x[u] = load_chunk_once<T, V>(args.x + (at - u * stride));
      if constexpr (kMask == MaskFrom::output) {
        y[u] = load_chunk_once<T, V>(args.y + (at - u * stride));
      }
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      if (i + u >= count) continue;
      float input[V] = {}, gradient[V];
      if constexpr (kNeedsInput) unpack<T, V>(x[u], input);
      unpack<T, V>(dy[u], gradient);
      channels.mask(input, y[u], gradient);
      if (args.dresidual != nullptr) {
        store_chunk<T, V>(args.dresidual + (at - u * stride), pack<T, V>(gradient));
      }
      if (args.dx != nullptr) {
        channels.template input_gradient<kStatistics>(input, gradient);
        store_chunk<T, V>(args.dx + (at - u * stride), pack<T, V>(gradient));
      }
    }
    at -= kLoads * stride;
  }
}

}  // namespace

void rows_backward_sums(const BackwardArgs& args) {
  dispatch_vector(args.dtype, args.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    dispatch_mask(args.mask, [&](auto mask) {
      const RowPartition cut = row_partition(args.extent.outer, args.extent.channels, kVector);
      launch(
          "batch_norm_backward_sums", &sums_kernel<T, kVector, decltype(mask)::value>,
          dim3(static_cast<unsigned>(cut.groups * cut.blocks)), dim3(kReduceThreads), 0,
          SumsKernelArgs<T>{cut, static_cast<const T*>(args.x), static_cast<const T*>(args.y),
                            static_cast<const T*>(args.dy), args.channels, args.partials,
                            args.means, static_cast<T*>(args.dresidual), args.dgamma, args.dbeta});
    });
  });
}

void rows_backward_apply(const BackwardArgs& args) {
  dispatch_vector(args.dtype, args.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    dispatch_mask(args.mask, [&](auto mask) {
      const auto run = [&](auto statistics) {
        constexpr MaskFrom kMask = decltype(mask)::value;
        constexpr bool kStatistics = decltype(statistics)::value;
        const RowSweep sweep =
            row_sweep(args.extent.outer, args.extent.channels, kVector, kApplyThreads,
                      kApplyResident<kVector, kMask, kStatistics> * kReduceBlocks);
        launch("batch_norm_backward_apply", &backward_apply_kernel<T, kVector, kMask, kStatistics>,
               dim3(static_cast<unsigned>(sweep.groups * sweep.blocks)), dim3(kApplyThreads), 0,
               BackwardApplyKernelArgs<T>{
                   sweep, static_cast<const T*>(args.x), static_cast<const T*>(args.y),
                   static_cast<const T*>(args.dy), args.channels, args.means,
                   static_cast<T*>(args.dx), static_cast<T*>(args.dresidual)});
      };
      if (args.means != nullptr) {
        run(std::true_type{});
      } else {
        run(std::false_type{});
      }
    });
  });
}

}  // namespace headroom::cuda::bn
