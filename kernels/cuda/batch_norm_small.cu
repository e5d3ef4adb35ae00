// Batch normalisation in one launch, for rows that fit into shared memory: a cluster of blocks owns
// a group of channels, sums them, exchanges the sums through distributed shared memory, and writes
// the result from the copy it kept. Each tensor is read once.
#include <cooperative_groups.h>

#include "kernels/cuda/batch_norm_internal.h"

namespace headroom::cuda::bn {
namespace {

namespace cg = cooperative_groups;

constexpr int kMaxWidth = 64;  // channels of a group: 8 lanes of 8, or 32 lanes of 1
constexpr int kUnroll = 4;
constexpr int kBackwardUnroll = 2;

// Other blocks' shared memory. A cluster of one block is no cluster: any device runs it.
__device__ __forceinline__ int cluster_rank(int cluster) {
  return static_cast<int>(blockIdx.x % static_cast<unsigned>(cluster));
}
__device__ __forceinline__ void cluster_sync(int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) {
    cg::this_cluster().sync();
    return;
  }
#endif
  __syncthreads();
}
__device__ __forceinline__ const float2* shared_of_rank(const float2* mine, int rank, int cluster) {
#if __CUDA_ARCH__ >= 900
  if (cluster > 1) return cg::this_cluster().map_shared_rank(const_cast<float2*>(mine), rank);
#endif
  return mine;
}

struct Place {
  int64_t group;
  int64_t vector;  // of this thread's lane; may lie past the last one
  int64_t first_row;
  int rank, lane, slot, rows;
  int count;  // rows of this thread
  __device__ explicit Place(const SmallPlan& plan)
      : group(blockIdx.x / static_cast<unsigned>(plan.cluster)), rank(cluster_rank(plan.cluster)) {
    lane = static_cast<int>(threadIdx.x) % plan.lanes;
    slot = static_cast<int>(threadIdx.x) / plan.lanes;
    vector = group * plan.lanes + lane;
    first_row = static_cast<int64_t>(rank) * plan.chunk;
    rows = plan.rows_of_rank(rank);
    count = vector < plan.vectors ? static_cast<int>(walk_length(slot, plan.slots, rows)) : 0;
  }
};

template <class T>
struct ForwardKernelArgs {
  SmallPlan plan;
  bool relu;
  const T* x;
  const T* residual;
  ChannelViews channels;  // gamma and beta
  StatisticsOut out;
  T* y;
};

template <class T, int V>
__global__ __launch_bounds__(kSmallThreads) void small_forward_kernel(ForwardKernelArgs<T> args) {
  extern __shared__ uint4 kept_bytes[];
  Chunk<T, V>* kept = reinterpret_cast<Chunk<T, V>*>(kept_bytes);  // [row of the block][lane]
  __shared__ float scratch[2 * (kSmallThreads / 32) * kMaxWidth];
  __shared__ float pivots[kMaxWidth];
  __shared__ float2 parts[kMaxWidth];
  __shared__ MeanRstd results[kMaxWidth];
  const SmallPlan& plan = args.plan;
  const Place place(plan);
  const int thread = static_cast<int>(threadIdx.x), width = plan.width();
  const int64_t channel = place.vector * V;

  float pivot[V] = {}, sum[V] = {}, squares[V] = {};
  int64_t at = (place.first_row + place.slot) * plan.channels + channel;
  const int64_t stride = static_cast<int64_t>(plan.slots) * plan.channels;
  if (place.count > 0) {
    unpack<T, V>(load_chunk<T, V>(args.x + place.first_row * plan.channels + channel), pivot);
    const T* from = args.x + at;
    Chunk<T, V>* to = kept + place.slot * plan.lanes + place.lane;
    for (int i = 0; i < place.count; i += kUnroll) {
      Chunk<T, V> chunk[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u < place.count) chunk[u] = load_chunk<T, V>(from + u * stride);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u >= place.count) continue;
        to[(i + u) * plan.slots * plan.lanes] = chunk[u];
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
  if (thread < plan.lanes) {
#pragma unroll
    for (int v = 0; v < V; ++v) pivots[thread * V + v] = pivot[v];
  }
  float block_sum, block_squares;
  sum_over_slots<V, kSmallThreads>(sum, squares, plan.lanes, scratch, block_sum, block_squares);
  if (thread < width && place.rows > 0) {
    const float shift = block_sum / static_cast<float>(place.rows);
    parts[thread] = make_float2(pivots[thread] + shift, block_squares - block_sum * shift);
  }
  cluster_sync(plan.cluster);

  // Every block combines all parts in the same order; the first block writes what the caller keeps.
  if (thread < width && place.group * width + thread < plan.channels) {
    const double origin = shared_of_rank(parts, 0, plan.cluster)[thread].x;
    double total = 0, total_squares = 0;
    for (int rank = 0; rank < plan.cluster; ++rank) {
      const int rows = plan.rows_of_rank(rank);
      if (rows == 0) break;
      const float2 part = shared_of_rank(parts, rank, plan.cluster)[thread];
      const double away = part.x - origin;
      total += rows * away;
      total_squares += part.y + rows * away * away;
    }
    const double count = static_cast<double>(plan.rows);
    const double mean = origin + total / count;
    const double about_mean = total_squares - total * total / count;
    results[thread] = statistics_of(mean, about_mean, count, args.out.eps);
    if (place.rank == 0) {
      write_statistics(args.out, place.group * width + thread, mean, about_mean, count);
    }
  }
  // No block may leave, nor its shared memory with it, while another reads its parts.
  cluster_sync(plan.cluster);
  if (place.count == 0) return;

  float mean[V], scale[V], beta[V];
  load_channels<V>(args.channels.gamma, channel, 1.0f, scale);
  load_channels<V>(args.channels.beta, channel, 0.0f, beta);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const MeanRstd result = results[place.lane * V + v];
    mean[v] = result.mean;
    scale[v] = scale_of(scale[v], result.rstd);
  }
  const Chunk<T, V>* from = kept + place.slot * plan.lanes + place.lane;
  for (int i = 0; i < place.count; i += kUnroll) {
    Chunk<T, V> added[kUnroll];
    if (args.residual != nullptr) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u < place.count) added[u] = load_chunk<T, V>(args.residual + at + u * stride);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u >= place.count) continue;
      float value[V];
      unpack<T, V>(from[(i + u) * plan.slots * plan.lanes], value);
#pragma unroll
      for (int v = 0; v < V; ++v) value[v] = normalized(value[v], mean[v], scale[v], beta[v]);
      if (args.residual != nullptr) {
        float other[V];
        unpack<T, V>(added[u], other);
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = __fadd_rn(value[v], other[v]);
      }
      if (args.relu) {
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = relu(value[v]);
      }
      store_chunk<T, V>(args.y + at + u * stride, pack<T, V>(value));
    }
    at += kUnroll * stride;
  }
}

template <class T>
struct BackwardKernelArgs {
  SmallPlan plan;
  const T* x;
  const T* y;
  const T* dy;
  ChannelViews channels;
  T* dx;
  T* dresidual;
  float* dgamma;
  float* dbeta;
};

// Training only. dy is kept as it is after the mask, which every dtype holds exactly.
template <class T, int V, MaskFrom kMask>
__global__ __launch_bounds__(kSmallThreads) void small_backward_kernel(BackwardKernelArgs<T> args) {
  extern __shared__ uint4 kept_bytes[];
  __shared__ float scratch[2 * (kSmallThreads / 32) * kMaxWidth];
  __shared__ float2 parts[kMaxWidth];
  __shared__ float means[2 * kMaxWidth];
  const SmallPlan& plan = args.plan;
  const Place place(plan);
  const int thread = static_cast<int>(threadIdx.x), width = plan.width();
  const int64_t channel = place.vector * V;
  const int between = plan.slots * plan.lanes;  // chunks from one row of a thread to its next
  Chunk<T, V>* kept_x =
      reinterpret_cast<Chunk<T, V>*>(kept_bytes) + place.slot * plan.lanes + place.lane;
  Chunk<T, V>* kept_dy = kept_x + static_cast<int64_t>(plan.chunk) * plan.lanes;

  float sum[V] = {}, product[V] = {};
  const int64_t begin = (place.first_row + place.slot) * plan.channels + channel;
  const int64_t stride = static_cast<int64_t>(plan.slots) * plan.channels;
  if (place.count > 0) {
    const BackwardChannels<T, V, kMask> constants(args.channels, channel);
    int64_t at = begin;
    for (int i = 0; i < place.count; i += kBackwardUnroll) {
      Chunk<T, V> x[kBackwardUnroll], y[kBackwardUnroll], dy[kBackwardUnroll];
#pragma unroll
      for (int u = 0; u < kBackwardUnroll; ++u) {
        if (i + u >= place.count) continue;
        dy[u] = load_chunk<T, V>(args.dy + at + u * stride);
        x[u] = load_chunk<T, V>(args.x + at + u * stride);
        if constexpr (kMask == MaskFrom::output) y[u] = load_chunk<T, V>(args.y + at + u * stride);
      }
#pragma unroll
      for (int u = 0; u < kBackwardUnroll; ++u) {
        if (i + u >= place.count) continue;
        float input[V], gradient[V];
        unpack<T, V>(x[u], input);
        unpack<T, V>(dy[u], gradient);
        constants.mask(input, y[u], gradient);
        constants.add(input, gradient, sum, product);
        const Chunk<T, V> masked = pack<T, V>(gradient);
        kept_x[(i + u) * between] = x[u];
        kept_dy[(i + u) * between] = masked;
        if (args.dresidual != nullptr) {
          store_chunk<T, V>(args.dresidual + at + u * stride, masked);
        }
      }
      at += kBackwardUnroll * stride;
    }
  }
  float block_sum, block_product;
  sum_over_slots<V, kSmallThreads>(sum, product, plan.lanes, scratch, block_sum, block_product);
  if (thread < width) parts[thread] = make_float2(block_sum, block_product);
  cluster_sync(plan.cluster);

  const int64_t summed = place.group * width + thread;
  if (thread < width && summed < plan.channels) {
    float total = 0, total_product = 0;
    for (int rank = 0; rank < plan.cluster; ++rank) {
      const float2 part = shared_of_rank(parts, rank, plan.cluster)[thread];
      total += part.x;
      total_product += part.y;
    }
    const float rstd = args.channels.rstd[summed], count = static_cast<float>(plan.rows);
    const bool writes = place.rank == 0;
    write_backward_sums(thread, total, total_product, count, width, rstd, means, nullptr, nullptr);
    write_backward_sums(summed, total, total_product, count, plan.channels, rstd, nullptr,
                        writes ? args.dgamma : nullptr, writes ? args.dbeta : nullptr);
  }
  cluster_sync(plan.cluster);
  if (place.count == 0 || args.dx == nullptr) return;

  BackwardChannels<T, V, MaskFrom::nothing> constants(args.channels, channel);
  constants.template load_means<true>(means, place.lane * V, width);
  T* to = args.dx + begin;
  for (int i = 0; i < place.count; ++i) {
    float input[V], gradient[V];
    unpack<T, V>(kept_x[i * between], input);
    unpack<T, V>(kept_dy[i * between], gradient);
    constants.template input_gradient<true>(input, gradient);
    store_chunk<T, V>(to, pack<T, V>(gradient));
    to += stride;
  }
}

constexpr int kStaticSharedBytes = 12 * 1024;  // at most, of the kernels above

// Clusters came with compute capability 9.0.
const SmallLimits& device_limits() {
  static const SmallLimits limits = [] {
    int device = 0, major = 0, shared_bytes = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    CUDA_CHECK(
        cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    const int free_bytes = shared_bytes - kStaticSharedBytes;
    return SmallLimits{major >= 9 ? kMaxCluster : 1,
                       free_bytes < kWideSharedBytes ? free_bytes : kWideSharedBytes};
  }();
  return limits;
}

template <auto kKernel, class Args>
void launch_clusters(const char* name, const SmallPlan& plan, const Args& args) {
  static const bool raised = [] {  // once per kernel: beyond 48 KiB has to be asked for
    CUDA_CHECK(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    device_limits().shared_bytes));
    return true;
  }();
  static_cast<void>(raised);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.groups * plan.cluster));
  config.blockDim = dim3(kSmallThreads);
  config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
  config.stream = compute_stream();
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(plan.cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = plan.cluster > 1 ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kKernel, args));
  check_launch(name);
}

}  // namespace

bool small_forward(const StatisticsArgs& statistics, const ApplyArgs& apply) {
  bool launched = false;
  dispatch_vector(apply.dtype, apply.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    const SmallPlan plan = small_plan(apply.extent.outer, apply.extent.channels, kVector, sizeof(T),
                                      1, device_limits());
    if (plan.cluster == 0) return;
    launch_clusters<&small_forward_kernel<T, kVector>>(
        "batch_norm_small_forward", plan,
        ForwardKernelArgs<T>{plan, apply.relu, static_cast<const T*>(apply.x),
                             static_cast<const T*>(apply.residual), apply.channels, statistics.out,
                             static_cast<T*>(apply.y)});
    launched = true;
  });
  return launched;
}

bool small_backward(const BackwardArgs& args) {
  bool launched = false;
  dispatch_vector(args.dtype, args.vector, [&](auto tag, auto length) {
    using T = decltype(tag);
    constexpr int kVector = decltype(length)::value;
    const SmallPlan plan =
        small_plan(args.extent.outer, args.extent.channels, kVector, sizeof(T), 2, device_limits());
    if (plan.cluster == 0) return;
    dispatch_mask(args.mask, [&](auto mask) {
      launch_clusters<&small_backward_kernel<T, kVector, decltype(mask)::value>>(
          "batch_norm_small_backward", plan,
          BackwardKernelArgs<T>{plan, static_cast<const T*>(args.x), static_cast<const T*>(args.y),
                                static_cast<const T*>(args.dy), args.channels,
                                static_cast<T*>(args.dx), static_cast<T*>(args.dresidual),
                                args.dgamma, args.dbeta});
    });
    launched = true;
  });
  return launched;
}

}  // namespace headroom::cuda::bn
