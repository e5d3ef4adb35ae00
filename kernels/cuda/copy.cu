// Copies with conversion between any two dtypes and layouts, and fills, on CUDA.
#include <array>

#include "core/ops/contract.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/map.cuh"
#include "kernels/scalar_ops.h"

namespace headroom {
namespace {

using namespace cuda;

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

template <class X, class Y>
struct ConvertFn {
  __device__ Y operator()(X x) const {
    if constexpr (std::is_same_v<X, Y>) {
      return x;
    } else if constexpr (kIsHalf<Y>) {
      return from_float<Y>(to_float(x));
    } else if constexpr (kIsHalf<X>) {
      return (*this)(to_float(x));
    } else if constexpr (std::is_integral_v<Y> && std::is_floating_point_v<X>) {
      return to_integer<Y>(x);
    } else {
      return static_cast<Y>(x);
    }
  }
  __device__ Y operator()(float x) const requires kIsHalf<X> { return ConvertFn<float, Y>{}(x); }
};

template <class X, class Y>
struct ConvertBody {  // offsets: y, x
  Y* y;
  const X* x;
  __device__ void operator()(const int64_t (&at)[2]) const {
    y[at[0]] = ConvertFn<X, Y>{}(x[at[1]]);
  }
};

constexpr int kTile = 32;          // elements along both axes of a transposed tile
constexpr int kTileRows = 8;       // rows of threads; each thread moves kTile / kTileRows elements
constexpr int kMinTransposed = 8;  // below it most of a tile would be empty

// One axis that runs fastest in y (extent_y) and another that runs fastest in x (extent_x), times
// batches. Strides in elements.
struct TransposePlan {
  int64_t extent_y, extent_x, batches;
  int64_t x_stride;  // of x along y's fast axis
  int64_t y_stride;  // of y along x's fast axis
  int64_t x_batch, y_batch;
  int64_t tiles_y, tiles_x;
};

// Tiles go through shared memory, so that reads and writes both run along their fast axis.
template <class X, class Y>
__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_kernel(const X* x, Y* y, TransposePlan plan) {
  __shared__ Y tile[kTile][kTile + 4 / sizeof(Y) + (sizeof(Y) > 4)];  // padded against conflicts
  int64_t block = blockIdx.x;
  const int64_t tile_y = block % plan.tiles_y * kTile;
  block /= plan.tiles_y;
  const int64_t tile_x = block % plan.tiles_x * kTile;
  const int64_t batch = block / plan.tiles_x;
  x += batch * plan.x_batch;
  y += batch * plan.y_batch;
  const int lane = threadIdx.x % kTile, row = threadIdx.x / kTile;
  for (int r = row; r < kTile; r += kTileRows) {
    if (tile_y + r < plan.extent_y && tile_x + lane < plan.extent_x) {
      tile[r][lane] = ConvertFn<X, Y>{}(x[(tile_y + r) * plan.x_stride + tile_x + lane]);
    }
  }
  __syncthreads();
  for (int r = row; r < kTile; r += kTileRows) {
    if (tile_x + r < plan.extent_x && tile_y + lane < plan.extent_y) {
      y[(tile_x + r) * plan.y_stride + tile_y + lane] = tile[lane][r];
    }
  }
}

// Whether the loop (y, x) is a batch of transposed planes, and which.
bool make_transpose_plan(const StridedLoop<2>& loop, TransposePlan& plan) {
  if (loop.rank < 2 || loop.rank > 3 || loop.stride[0][0] != 1) return false;
  int fast = 0;  // x's fast axis
  for (int axis = 1; axis < loop.rank; ++axis) {
    if (loop.stride[1][axis] == 1) fast = axis;
  }
  if (fast == 0) return false;
  const int batch = loop.rank == 3 ? 3 - fast : 0;
  plan = {.extent_y = loop.extent[0],
          .extent_x = loop.extent[fast],
          .batches = batch ? loop.extent[batch] : 1,
          .x_stride = loop.stride[1][0],
          .y_stride = loop.stride[0][fast],
          .x_batch = batch ? loop.stride[1][batch] : 0,
          .y_batch = batch ? loop.stride[0][batch] : 0,
          .tiles_y = ceil_div(loop.extent[0], kTile),
          .tiles_x = ceil_div(loop.extent[fast], kTile)};
  return plan.extent_y >= kMinTransposed && plan.extent_x >= kMinTransposed &&
         plan.tiles_y * plan.tiles_x * plan.batches <= 0x7fffffff;
}

template <class X, class Y>
void copy_typed(const View& x, const View& y, const StridedLoop<2>& loop) {
  constexpr int kWidth = kPackWidth<X, Y>;
  // The pairs that training meets get every path; conversions of labels and f64 get two.
  constexpr bool kCommon =
      std::is_same_v<X, Y> ||
      (sizeof(X) <= 4 && sizeof(Y) <= 4 && !std::is_integral_v<X> && !std::is_integral_v<Y>);
  const X* from = x.as<X>();
  Y* to = y.as<Y>();
  const bool x_aligned = pack_aligned<kWidth>(from), y_aligned = pack_aligned<kWidth>(to);
  if (loop.flat() && x_aligned && y_aligned) {
    launch("copy", &flat_map1_kernel<kWidth, X, Y, ConvertFn<X, Y>>,
           flat_blocks(loop.numel / kWidth), kMapThreads, 0, from, to, loop.numel,
           ConvertFn<X, Y>{});
    return;
  }
  const ConvertBody<X, Y> body{to, from};
  if constexpr (kCommon) {
    StridedLoop<2> packs = loop;
    if (y_aligned && make_pack_loop(packs, kWidth) && !packs.wide() &&
        (x_aligned || packs.stride[1][0] == 0)) {
      launch("copy", &row_map1_kernel<kWidth, X, Y, ConvertFn<X, Y>>,
             grid_stride_blocks(packs.numel), kMapThreads, 0, from, to, packs, ConvertFn<X, Y>{});
      return;
    }
    TransposePlan plan;
    if (make_transpose_plan(loop, plan)) {
      launch("copy", &transpose_kernel<X, Y>,
             static_cast<unsigned>(plan.tiles_y * plan.tiles_x * plan.batches), kTile * kTileRows,
             0, from, to, plan);
      return;
    }
    launch_strided("copy", loop, body);
  } else {
    launch("copy", &strided_kernel<true, 2, ConvertBody<X, Y>>, grid_stride_blocks(loop.numel),
           kMapThreads, 0, loop, body);
  }
}

void copy(const View& x, const View& y) {
  const auto loop = make_strided_loop<2>(y.shape, {y.strides, x.strides});
  if (loop.numel == 0) return;
  if (x.dtype == y.dtype) {  // bits move as they are
    switch (size_of(x.dtype)) {
      case 1:
        return copy_typed<uint8_t, uint8_t>(x, y, loop);
      case 2:
        return copy_typed<uint16_t, uint16_t>(x, y, loop);
      case 4:
        return copy_typed<uint32_t, uint32_t>(x, y, loop);
      default:
        return copy_typed<uint64_t, uint64_t>(x, y, loop);
    }
  }
  dispatch_cuda_all(x.dtype, "copy", [&](auto from) {
    dispatch_cuda_all(y.dtype, "copy", [&](auto to) {
      using X = decltype(from);
      using Y = decltype(to);
      if constexpr (!std::is_same_v<X, Y>) copy_typed<X, Y>(x, y, loop);
    });
  });
}

template <int V, class T>
__global__ void __launch_bounds__(kMapThreads) fill_kernel(T* y, int64_t numel, T value) {
  const int64_t packs = numel / V;
  const int64_t first = int64_t{blockIdx.x} * (kMapThreads * kMapUnroll) + threadIdx.x;
  Pack<T, V> out;
#pragma unroll
  for (int v = 0; v < V; ++v) out.value[v] = value;
#pragma unroll
  for (int u = 0; u < kMapUnroll; ++u) {
    const int64_t p = first + u * kMapThreads;
    if (p < packs) store_pack(y + p * V, out);
  }
  const int64_t tail = packs * V + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && tail < numel) y[tail] = value;
}

template <class T>
struct FillBody {  // offset: y
  T* y;
  T value;
  __device__ void operator()(const int64_t (&at)[1]) const { y[at[0]] = value; }
};

template <class T>
T fill_value(double value) {
  if constexpr (std::is_integral_v<T>) {
    return to_integer<T>(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return from_float<T>(static_cast<float>(value));
  }
}

void fill(double value, const View& y) {
  const auto loop = make_strided_loop<1>(y.shape, {y.strides});
  if (loop.numel == 0) return;
  dispatch_cuda_all(y.dtype, "fill", [&](auto element) {
    using T = decltype(element);
    const T stored = fill_value<T>(value);
    constexpr int kWidth = kPackWidth<T>;
    if (loop.flat() && pack_aligned<kWidth>(y.as<T>())) {
      launch("fill", &fill_kernel<kWidth, T>, flat_blocks(loop.numel / kWidth), kMapThreads, 0,
             y.as<T>(), loop.numel, stored);
    } else {
      launch_strided("fill", loop, FillBody<T>{y.as<T>(), stored});
    }
  });
}

}  // namespace

void register_cuda_copy_kernels() {
  slots::copy.set(DeviceType::cuda, &copy);
  slots::fill.set(DeviceType::cuda, &fill);
}

}  // namespace headroom
