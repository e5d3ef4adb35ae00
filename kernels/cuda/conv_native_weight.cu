// The native gradient of a convolution's weight: dw[k, (tap, c)] = sum over output pixels of
// dy[pixel, k] * x[pixel's tap, c]. The long sum over pixels may be cut into parts, which are added
// in a fixed order afterwards.
#include "kernels/cuda/conv_native_launch.h"

namespace headroom::cuda {
namespace {

template <class T>
struct WeightArgs {
  ConvShape shape;
  const T* x;
  const T* dy;
  WeightTarget target;
};

// Where an output pixel's tap (0, 0) lies in x, padding left out.
struct PixelLine {
  int64_t source;
  int row, column;
};

constexpr int kOutside = -(1 << 30);  // a coordinate that no tap brings into an image

template <class Config>
struct WeightTiles {
  using T = typename Config::Element;
  using A = TileLayout<Config, TileOrder::k_outer, Config::kRows>;
  using B = TileLayout<Config, TileOrder::k_outer, Config::kColumns>;
  static constexpr int kSharedBytes =
      Config::kStages * (A::kElements + B::kElements) * static_cast<int>(sizeof(T));
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             256 / Config::kThreads *
                                 2) void weight_kernel(WeightArgs<typename Config::Element> args) {
  using T = typename Config::Element;
  using Tiles = WeightTiles<Config>;
  using A = typename Tiles::A;
  using B = typename Tiles::B;
  extern __shared__ uint4 stages[];
  __shared__ PixelLine lines[2][Config::kDepth];  // of two slabs
  T* a = reinterpret_cast<T*>(stages);
  T* b = a + Config::kStages * A::kElements;

  const ConvShape& shape = args.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = static_cast<int>(blockIdx.z) % shape.groups;
  const int part = static_cast<int>(blockIdx.z) / shape.groups;
  const int inputs = shape.group_inputs(), outputs = shape.group_outputs();
  const int columns = shape.taps() * inputs;
  const int column_tiles = (columns + Config::kColumns - 1) / Config::kColumns;
  const int first_row = static_cast<int>(blockIdx.x) / column_tiles * Config::kRows;
  const int first_column = static_cast<int>(blockIdx.x) % column_tiles * Config::kColumns;
  const int64_t length = part_length(shape.output_pixels(), args.target.parts, Config::kDepth);
  const int64_t begin = part * length;
  const int64_t all = shape.output_pixels();
  const int64_t end = begin + length < all ? begin + length : all;

  // The column of x that this thread copies: a tap and a channel of the group.
  const int column = first_column + B::place();
  const int tap = column / inputs, channel = column % inputs;
  const int row_shift = tap / shape.s * shape.dilation_h - shape.pad_h;
  const int column_shift = tap % shape.s * shape.dilation_w - shape.pad_w;
  const int64_t shift =
      (static_cast<int64_t>(row_shift) * shape.w + column_shift) * shape.c + channel;
  const bool column_inside = column < columns;
  const int output = first_row + A::place();
  const int64_t output_channel = static_cast<int64_t>(group) * outputs + output;

  PixelWalk pixel(begin + thread, shape.p, shape.q, Config::kDepth);  // of thread < kDepth
  int64_t pixel_index = begin + thread;
  int64_t dy_line = begin + A::first_line();
  int prepared = 0, used = 0;

  const auto prepare = [&] {
    if (thread < Config::kDepth) {
      if (pixel_index < end) {
        const int row = pixel.row * shape.stride_h, place = pixel.column * shape.stride_w;
        lines[prepared][thread] = {((pixel.image * shape.h + row) * shape.w + place) * shape.c +
                                       static_cast<int64_t>(group) * inputs,
                                   row, place};
      } else {
        lines[prepared][thread] = {0, kOutside, kOutside};
      }
      pixel.advance();
      pixel_index += Config::kDepth;
    }
    prepared ^= 1;
  };
  const auto issue = [&](int slot) {
    T* to = a + slot * A::kElements + A::first_line() * A::kPitch + A::place();
#pragma unroll
    for (int i = 0; i < A::kCopies; ++i) {
      const int64_t line = dy_line + i * A::kLineStep;
      const bool valid = line < end && output < outputs;
      copy_vector<Config>(to + i * A::kLineStep * A::kPitch,
                          args.dy + (valid ? line * shape.k + output_channel : 0), valid);
    }
    dy_line += Config::kDepth;
    to = b + slot * B::kElements + B::first_line() * B::kPitch + B::place();
#pragma unroll
    for (int i = 0; i < B::kCopies; ++i) {
      const PixelLine& line = lines[used][B::first_line() + i * B::kLineStep];
      const bool valid =
          column_inside &&
          static_cast<unsigned>(line.row + row_shift) < static_cast<unsigned>(shape.h) &&
          static_cast<unsigned>(line.column + column_shift) < static_cast<unsigned>(shape.w);
      copy_vector<Config>(to + i * B::kLineStep * B::kPitch,
                          args.x + (valid ? line.source + shift : 0), valid);
    }
    used ^= 1;
  };

  TileProduct<Config, A, B> product;
  const int64_t slabs = end > begin ? ceil_div(end - begin, Config::kDepth) : 0;
  run_slabs<Config>(product, slabs, a, A::kElements, b, B::kElements, issue, prepare);

  const auto store_one = [&](int row, int place, float value) {
    row += first_row;
    place += first_column;
    if (row >= outputs || place >= columns) return;
    const int64_t at = part * shape.weight_numel() +
                       (static_cast<int64_t>(group) * outputs + row) * columns + place;
    if (args.target.f32) {
      static_cast<float*>(args.target.data)[at] = value;
    } else {
      static_cast<T*>(args.target.data)[at] = from_float<T>(value);
    }
  };
  product.for_each([&](int row, int place, float first, auto... second) {
    store_one(row, place, first);
    if constexpr (sizeof...(second) == 1) store_one(row, place + 1, second...);
  });
}

}  // namespace

void gemm_backward_weight(const NativeConv& conv, bool wide, const WeightTarget& target) {
  const ConvShape& shape = conv.shape;
  const int64_t rows = shape.group_outputs();
  const int64_t columns = static_cast<int64_t>(shape.taps()) * shape.group_inputs();
  const int64_t results = static_cast<int64_t>(target.parts) * shape.groups;
  dispatch_tile(conv, wide, rows, columns, results, [&](auto config) {
    using Config = decltype(config);
    using T = typename Config::Element;
    const int64_t tiles = ceil_div(rows, Config::kRows) * ceil_div(columns, Config::kColumns);
    CHECK(tiles < (int64_t{1} << 31) && results < 65536, "native_conv2d_backward_weight: ", tiles,
          " tiles x ", results, " parts and groups are too many for one launch");
    launch_tiles<&weight_kernel<Config>>(
        "native_conv2d_backward_weight",
        dim3(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(results)), Config::kThreads,
        WeightTiles<Config>::kSharedBytes, conv.stream,
        WeightArgs<T>{shape, static_cast<const T*>(conv.x), static_cast<const T*>(conv.y), target});
  });
}

}  // namespace headroom::cuda
