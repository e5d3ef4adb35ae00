// Sums and means over any axes, and the maximum with its place along one axis, on CUDA.
// Orders of summation are fixed by the shapes alone: the same bits every time, on every GPU.
#include <algorithm>
#include <array>

#include "core/ops/contract.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/reduce.h"
#include "kernels/scalar_ops.h"

namespace headroom {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
// Blocks that a reduction is cut into when it has few outputs: eight for each of 132
// multiprocessors. A constant, so that the cut does not depend on the GPU.
constexpr int64_t kTargetBlocks = 1056;
constexpr int64_t kMinStepsPerThread = 4;  // less would not pay for the second stage
constexpr int64_t kWarpRowLimit = 1024;    // steps up to which one warp reduces an output

// What is kept (operands y, x: one element per output) and what is reduced (x within an output).
struct ReducePlan {
  StridedLoop<2> kept;
  StridedLoop<1> reduced;
  int64_t outputs = 0;
  int64_t chunks = 1;       // parts each output's elements are cut into
  int64_t chunk_steps = 0;  // steps (packs or rows) per part
  int64_t steps = 0;        // per output
};

ReducePlan make_reduce_plan(const View& x, const View& y) {
  Shape kept_shape = x.shape, reduced_shape = x.shape;
  for (int axis = 0; axis < x.rank(); ++axis) {
    const bool keeps = y.shape[axis] == x.shape[axis];
    CHECK(keeps || y.shape[axis] == 1, "reduce: output ", y.shape, " for input ", x.shape);
    (keeps ? reduced_shape : kept_shape)[axis] = 1;
  }
  ReducePlan plan;
  plan.kept = make_strided_loop<2>(kept_shape, {y.strides, x.strides});
  plan.reduced = make_strided_loop<1>(reduced_shape, {x.strides});
  plan.outputs = plan.kept.numel;
  return plan;
}

// Cuts the steps of each output so that about kTargetBlocks blocks run, `blocks_per_chunk` for each
// chunk, and the partial results fit into the scratch.
void cut_into_chunks(ReducePlan& plan, int64_t blocks_per_chunk, int64_t steps_per_block) {
  const int64_t by_work = plan.steps / std::max<int64_t>(steps_per_block * kMinStepsPerThread, 1);
  const int64_t by_blocks = kTargetBlocks / blocks_per_chunk;
  const int64_t by_scratch =
      kReductionScratchBytes / (plan.outputs * static_cast<int64_t>(sizeof(float)));
  plan.chunks = std::max<int64_t>(std::min({by_work, by_blocks, by_scratch}), 1);
  plan.chunk_steps = std::max<int64_t>(ceil_div(plan.steps, plan.chunks), 1);
  plan.chunks = std::max<int64_t>(ceil_div(plan.steps, plan.chunk_steps), 1);
}

// Where results go: y directly, divided for a mean, or partials [chunks, outputs].
struct ReduceOut {
  AnyArray y;
  float divisor;   // 1 unless the op is mean
  float* partial;  // nullptr when one chunk is all

  __device__ void write(int64_t chunk, int64_t outputs, int64_t output, int64_t y_offset,
                        float value) const {
    if (partial != nullptr) {
      partial[chunk * outputs + output] = value;
    } else {
      y.store(y_offset, value / divisor);
    }
  }
};

// kGroup threads (a warp or the block) walk the packs of one chunk of one output.
template <int V, int kGroup, bool kWide, class T>
__global__ void __launch_bounds__(kThreads)
    reduce_rows_kernel(const T* x, ReducePlan plan, ReduceOut out) {
  __shared__ float slots[kThreads / 32];
  constexpr int kGroups = kThreads / kGroup;
  const int64_t task = int64_t{blockIdx.x} * kGroups + threadIdx.x / kGroup;
  if (task >= plan.outputs * plan.chunks) return;  // whole warps, or never
  const int64_t output = task / plan.chunks, chunk = task % plan.chunks;
  int64_t kept_at[2];
  plan.kept.template offsets<true>(output, kept_at);
  const T* base = x + kept_at[1];

  float sum[V];
#pragma unroll
  for (int v = 0; v < V; ++v) sum[v] = 0.0f;
  const int64_t end = min(plan.steps, (chunk + 1) * plan.chunk_steps);
#pragma unroll 4
  for (int64_t p = chunk * plan.chunk_steps + threadIdx.x % kGroup; p < end; p += kGroup) {
    int64_t at[1];
    plan.reduced.template offsets<kWide>(p, at);
    const Pack<T, V> pack = load_pack<T, V>(base + at[0]);
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] += to_float(pack.value[v]);
  }
#pragma unroll
  for (int v = 1; v < V; ++v) sum[0] += sum[v];
  float total;
  if constexpr (kGroup == 32) {
    total = warp_reduce(sum[0], AddOp{});
  } else {
    total = block_reduce<kGroup>(sum[0], AddOp{}, slots);
  }
  if (threadIdx.x % kGroup == 0) out.write(chunk, plan.outputs, output, kept_at[0], total);
}

// Threads side by side hold packs of neighbouring outputs; the block's rows of threads walk one
// chunk of the reduced elements. lanes: threads side by side, a power of two up to 32.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    reduce_columns_kernel(const T* x, ReducePlan plan, ReduceOut out, int lanes,
                          int64_t column_blocks) {
  __shared__ float sums[V][kThreads];
  const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = kThreads / lanes;
  const int64_t packs = plan.kept.extent[0] / V;
  int64_t task = blockIdx.x;
  const int64_t pack = task % column_blocks * lanes + lane;
  task /= column_blocks;
  const int64_t chunk = task % plan.chunks, outer = task / plan.chunks;
  const int64_t output = outer * plan.kept.extent[0] + pack * V;
  const bool active = pack < packs;

  float sum[V];
#pragma unroll
  for (int v = 0; v < V; ++v) sum[v] = 0.0f;
  int64_t kept_at[2] = {0, 0};
  if (active) {
    plan.kept.template offsets<true>(output, kept_at);
    const T* base = x + kept_at[1];
    const int64_t end = min(plan.steps, (chunk + 1) * plan.chunk_steps);
#pragma unroll 4
    for (int64_t r = chunk * plan.chunk_steps + row; r < end; r += rows) {
      int64_t at[1];
      plan.reduced.template offsets<false>(r, at);
      const Pack<T, V> in = load_pack<T, V>(base + at[0]);
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += to_float(in.value[v]);
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) sums[v][threadIdx.x] = sum[v];
  for (int half = rows / 2; half > 0; half /= 2) {
    __syncthreads();
    if (row < half) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        sums[v][threadIdx.x] += sums[v][threadIdx.x + half * lanes];
      }
    }
  }
  if (!active || row != 0) return;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    out.write(chunk, plan.outputs, output + v, kept_at[0] + v * plan.kept.stride[0][0],
              sums[v][threadIdx.x]);
  }
}

// Second stage: one warp per output combines its partials.
__global__ void __launch_bounds__(kThreads)
    reduce_finish_kernel(const float* partial, ReducePlan plan, ReduceOut out) {
  const int64_t output = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (output >= plan.outputs) return;
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t chunk = threadIdx.x % 32; chunk < plan.chunks; chunk += 32) {
    sum += partial[chunk * plan.outputs + output];
  }
  sum = warp_reduce(sum, AddOp{});
  if (threadIdx.x % 32 != 0) return;
  int64_t at[2];
  plan.kept.template offsets<true>(output, at);
  out.write(0, plan.outputs, output, at[0], sum);
}

unsigned block_count(int64_t blocks) {
  CHECK(blocks > 0 && blocks <= 0x7fffffff, "reduce: ", blocks, " blocks");
  return static_cast<unsigned>(blocks);
}

template <int V, int kGroup, class T>
void launch_rows(const T* x, const ReducePlan& plan, const ReduceOut& out) {
  auto* kernel = plan.reduced.wide() ? &reduce_rows_kernel<V, kGroup, true, T>
                                     : &reduce_rows_kernel<V, kGroup, false, T>;
  launch("reduce", kernel, block_count(ceil_div(plan.outputs * plan.chunks, kThreads / kGroup)),
         kThreads, 0, x, plan, out);
}

void finish(const ReducePlan& plan, ReduceOut out) {
  if (plan.chunks == 1) return;
  const float* partial = out.partial;
  out.partial = nullptr;
  launch("reduce", &reduce_finish_kernel, block_count(ceil_div(plan.outputs, kThreads / 32)),
         kThreads, 0, partial, plan, out);
}

float* partials_of(const ReducePlan& plan) {
  return plan.chunks > 1 ? static_cast<float*>(reduction_scratch()) : nullptr;
}

// Outputs lie side by side in x, so threads take neighbouring outputs.
bool suits_columns(const ReducePlan& plan) {
  return plan.outputs > 1 && plan.kept.stride[1][0] == 1 && !plan.reduced.wide() &&
         (plan.reduced.stride[0][0] != 1 || plan.reduced.numel <= 1);
}

template <int V, class T>
void reduce_columns(const T* x, ReducePlan plan, ReduceOut out) {
  const int64_t packs = plan.kept.extent[0] / V;
  int lanes = 1;
  while (lanes < 32 && lanes < packs) lanes *= 2;
  const int64_t column_blocks = ceil_div(packs, lanes);
  const int64_t outer = plan.outputs / plan.kept.extent[0];
  plan.steps = plan.reduced.numel;
  cut_into_chunks(plan, column_blocks * outer, kThreads / lanes);
  out.partial = partials_of(plan);
  launch("reduce", &reduce_columns_kernel<V, T>, block_count(column_blocks * outer * plan.chunks),
         kThreads, 0, x, plan, out, lanes, column_blocks);
  finish(plan, out);
}

template <int V, class T>
void reduce_rows(const T* x, ReducePlan plan, ReduceOut out) {
  plan.steps = plan.reduced.numel;  // already in packs of V
  if (plan.steps <= kWarpRowLimit) {
    cut_into_chunks(plan, kTargetBlocks, kThreads);  // one chunk
    launch_rows<V, 32>(x, plan, out);
    return;
  }
  cut_into_chunks(plan, plan.outputs, kThreads);
  out.partial = partials_of(plan);
  launch_rows<V, kThreads>(x, plan, out);
  finish(plan, out);
}

// Whether every offset besides the fastest axis' is a whole number of packs of `width`.
bool outer_strides_divide(const ReducePlan& plan, bool columns, int64_t width) {
  for (int axis = columns ? 1 : 0; axis < plan.kept.rank; ++axis) {
    if (plan.kept.extent[axis] > 1 && plan.kept.stride[1][axis] % width != 0) return false;
  }
  for (int axis = 0; columns && axis < plan.reduced.rank; ++axis) {
    if (plan.reduced.extent[axis] > 1 && plan.reduced.stride[0][axis] % width != 0) return false;
  }
  return true;
}

void reduce_planned(const View& x, const ReducePlan& plan, const ReduceOut& out) {
  dispatch_cuda_floating(x.dtype, "reduce", [&](auto element) {
    using T = decltype(element);
    constexpr int kWidth = kVectorElements<T>;
    const T* data = x.as<T>();
    const bool aligned = is_aligned(data);
    if (suits_columns(plan)) {
      if (aligned && plan.kept.extent[0] % kWidth == 0 &&
          outer_strides_divide(plan, true, kWidth)) {
        reduce_columns<kWidth>(data, plan, out);
      } else {
        reduce_columns<1>(data, plan, out);
      }
      return;
    }
    ReducePlan packs = plan;
    if (aligned && outer_strides_divide(plan, false, kWidth) &&
        make_pack_loop(packs.reduced, kWidth)) {
      reduce_rows<kWidth>(data, packs, out);
    } else {
      reduce_rows<1>(data, plan, out);
    }
  });
}

struct Candidate {
  float value;
  int64_t index;
};

// The larger value; of equals, or of two NaNs, the one that comes first.
__device__ Candidate better(const Candidate& a, const Candidate& b) {
  if (beats(b.value, a.value)) return b;
  if (beats(a.value, b.value)) return a;
  return b.index < a.index ? b : a;
}

// One warp per output. Loop operands: indices, values, x.
__global__ void __launch_bounds__(kThreads)
    max_along_kernel(AnyArray x, AnyArray values, int64_t* indices, StridedLoop<3> loop,
                     int64_t extent, int64_t stride) {
  const int64_t output = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (output >= loop.numel) return;
  const int64_t lane = threadIdx.x % 32;
  int64_t at[3];
  loop.offsets<true>(output, at);
  // Lanes beyond the extent repeat element 0, which changes nothing.
  const int64_t first = lane < extent ? lane : 0;
  Candidate best{x.load(at[2] + first * stride), first};
  for (int64_t i = first + 32; i < extent; i += 32) {
    best = better(best, {x.load(at[2] + i * stride), i});
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Candidate other{__shfl_xor_sync(0xffffffffu, best.value, offset),
                          __shfl_xor_sync(0xffffffffu, best.index, offset)};
    best = better(best, other);
  }
  if (lane != 0) return;
  indices[at[0]] = best.index;
  if (values.data != nullptr) values.store(at[1], best.value);
}

void max_along(const View& x, int axis, const View& values, const View& indices) {
  CHECK(indices.shape[axis] == 1 && x.shape[axis] >= 1, "max_along: ", x.shape, " axis ", axis);
  const Strides& value_strides = values.defined ? values.strides : indices.strides;
  const auto loop =
      make_strided_loop<3>(indices.shape, {indices.strides, value_strides, x.strides});
  if (loop.numel == 0) return;
  const AnyArray out = values.defined ? any_array(values, "max_along") : AnyArray{nullptr, x.dtype};
  launch("max_along", &max_along_kernel, block_count(ceil_div(loop.numel, kThreads / 32)), kThreads,
         0, any_array(x, "max_along"), out, indices.as<int64_t>(), loop, x.shape[axis],
         x.strides[axis]);
}

struct ScatterBody {  // offsets: dx, dy, indices, place along the axis
  AnyArray dx, dy;
  const int64_t* indices;
  __device__ void operator()(const int64_t (&at)[4]) const {
    dx.store(at[0], indices[at[2]] == at[3] ? dy.load(at[1]) : 0.0f);
  }
};

void scatter_along(const View& dy, const View& indices, int axis, const View& dx) {
  Strides dy_strides = dy.strides, index_strides = indices.strides;
  Strides place = Strides::filled(dx.rank(), 0);
  dy_strides[axis] = 0;
  index_strides[axis] = 0;
  place[axis] = 1;
  const auto loop = make_strided_loop<4>(dx.shape, {dx.strides, dy_strides, index_strides, place});
  launch_strided("scatter_along", loop,
                 ScatterBody{any_array(dx, "scatter_along"), any_array(dy, "scatter_along"),
                             indices.as<int64_t>()});
}

}  // namespace

namespace cuda {

void reduce(ReduceOp op, const View& x, const View& y) {
  const ReducePlan plan = make_reduce_plan(x, y);
  if (plan.outputs == 0) return;
  ReduceOut out{any_array(y, "reduce"), 1.0f, nullptr};
  // The mean of nothing is 0 / 0.
  if (op == ReduceOp::mean) out.divisor = static_cast<float>(plan.reduced.numel);
  reduce_planned(x, plan, out);
}

}  // namespace cuda

void register_cuda_reduce_kernels() {
  slots::reduce.set(DeviceType::cuda, &cuda::reduce);
  slots::max_along.set(DeviceType::cuda, &max_along);
  slots::scatter_along.set(DeviceType::cuda, &scatter_along);
}

}  // namespace headroom
