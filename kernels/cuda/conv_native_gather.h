// The gathering product behind the native forward pass and the input's gradient: rows of the result
// are positions, columns are channels, and k runs over taps and the source's channels. Included by
// the two sources that instantiate it.
#pragma once

#include "kernels/cuda/conv_native_launch.h"

namespace headroom::cuda {

// source [n,source_h,source_w,channels], target [n,target_h,target_w,...], both nhwc.
template <class T>
struct GatherArgs {
  ConvShape shape;
  ConvBias bias;  // forward only
  const T* source;
  const T* w;
  T* target;
};

// Forward: w is [columns][k] as it lies. Backward: each k = (tap, output channel) is a line of w,
// [k][columns], and blockIdx.z also counts the phases of the stride.
template <bool kBackward>
struct GatherFrame {
  int source_h, source_w, source_channels, channels;  // channels of one group
  int target_h, target_w, target_channels, columns;
  int group;
  GatherAxis down, across;

  __device__ GatherFrame(const ConvShape& shape, int z) {
    group = z % shape.groups;
    if constexpr (kBackward) {
      const int phases = phases_of(shape.w, shape.stride_w), phase = z / shape.groups;
      source_h = shape.p;
      source_w = shape.q;
      source_channels = shape.k;
      channels = shape.group_outputs();
      target_h = shape.h;
      target_w = shape.w;
      target_channels = shape.c;
      columns = shape.group_inputs();
      down = backward_axis(shape.h, shape.r, shape.stride_h, shape.pad_h, shape.dilation_h,
                           phase / phases);
      across = backward_axis(shape.w, shape.s, shape.stride_w, shape.pad_w, shape.dilation_w,
                             phase % phases);
    } else {
      source_h = shape.h;
      source_w = shape.w;
      source_channels = shape.c;
      channels = shape.group_inputs();
      target_h = shape.p;
      target_w = shape.q;
      target_channels = shape.k;
      columns = shape.group_outputs();
      down = forward_axis(shape.p, shape.r, shape.stride_h, shape.pad_h, shape.dilation_h);
      across = forward_axis(shape.q, shape.s, shape.stride_w, shape.pad_w, shape.dilation_w);
    }
  }
  __device__ int64_t rows(int64_t images) const { return images * down.count * across.count; }
  __device__ int64_t depth() const {
    return static_cast<int64_t>(down.taps) * across.taps * channels;
  }
};

// A row of the result: the source's element at tap 0 (which may lie outside), its coordinates, and
// the target's element of column 0.
struct GatherRow {
  int64_t source;
  int64_t target;  // negative: no such row
  int row, column;
};

constexpr int kOutside = -(1 << 30);  // a coordinate that no tap brings into an image

template <bool kBackward>
__device__ GatherRow gather_row(const GatherFrame<kBackward>& frame, int64_t index, int64_t rows) {
  if (index >= rows) return {0, -1, kOutside, kOutside};
  const int64_t area = static_cast<int64_t>(frame.down.count) * frame.across.count;
  const int64_t image = index / area;
  const int i = static_cast<int>(index % area / frame.across.count);
  const int j = static_cast<int>(index % frame.across.count);
  const int row = i * frame.down.scale + frame.down.base;
  const int column = j * frame.across.scale + frame.across.base;
  const int64_t source =
      ((image * frame.source_h + row) * frame.source_w + column) * frame.source_channels +
      static_cast<int64_t>(frame.group) * frame.channels;
  const int64_t target_row = image * frame.target_h + frame.down.first + i * frame.down.spacing;
  const int64_t target_pixel =
      target_row * frame.target_w + frame.across.first + j * frame.across.spacing;
  return {source,
          target_pixel * frame.target_channels + static_cast<int64_t>(frame.group) * frame.columns,
          row, column};
}

// Tap and channel of one place along k, moving by a fixed distance.
struct TapWalk {
  int channel, across, down;
  int channels, taps_across;
  __device__ TapWalk(int start, int channels_in, int taps_across_in)
      : channel(start), across(0), down(0), channels(channels_in), taps_across(taps_across_in) {
    carry();
  }
  __device__ __forceinline__ void advance(int distance) {
    channel += distance;
    carry();
  }

 private:
  __device__ __forceinline__ void carry() {
    while (channel >= channels) {
      channel -= channels;
      if (++across == taps_across) {
        across = 0;
        ++down;
      }
    }
  }
};

template <class Config, bool kBackward>
struct GatherTiles {
  using T = typename Config::Element;
  using A = TileLayout<Config, TileOrder::k_inner, Config::kRows>;
  using B =
      TileLayout<Config, kBackward ? TileOrder::k_outer : TileOrder::k_inner, Config::kColumns>;
  static constexpr int kSharedBytes =
      Config::kStages * (A::kElements + B::kElements) * static_cast<int>(sizeof(T));
};

template <class Config, bool kBackward>
__global__ __launch_bounds__(Config::kThreads,
                             256 / Config::kThreads *
                                 2) void gather_kernel(GatherArgs<typename Config::Element> args) {
  using T = typename Config::Element;
  using Tiles = GatherTiles<Config, kBackward>;
  using A = typename Tiles::A;
  using B = typename Tiles::B;
  extern __shared__ uint4 stages[];
  __shared__ GatherRow rows[Config::kRows];
  __shared__ int64_t lines[2][Config::kDepth];  // backward: where w's lines begin, of two slabs
  T* a = reinterpret_cast<T*>(stages);
  T* b = a + Config::kStages * A::kElements;

  const ConvShape& shape = args.shape;
  const GatherFrame<kBackward> frame(shape, static_cast<int>(blockIdx.z));
  const int thread = static_cast<int>(threadIdx.x);
  const int column_tiles = (frame.columns + Config::kColumns - 1) / Config::kColumns;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x / column_tiles) * Config::kRows;
  const int first_column = static_cast<int>(blockIdx.x % column_tiles) * Config::kColumns;
  const int64_t row_count = frame.rows(shape.n);
  if (first_row >= row_count) return;  // the later phases of a stride have fewer rows
  for (int i = thread; i < Config::kRows; i += Config::kThreads) {
    rows[i] = gather_row(frame, first_row + i, row_count);
  }

  TapWalk taps(A::place(), frame.channels, frame.across.taps);
  int64_t depth_place = B::place();                         // forward: along k
  TapWalk line(thread, frame.channels, frame.across.taps);  // backward: of thread < kDepth
  int prepared = 0, used = 0;
  const int64_t depth = frame.depth();
  const int64_t step_down = static_cast<int64_t>(frame.down.step) * frame.source_w;

  const auto prepare = [&] {
    if constexpr (kBackward) {
      if (thread < Config::kDepth) {
        const int tap = (frame.down.tap_first + line.down * frame.down.tap_step) * shape.s +
                        frame.across.tap_first + line.across * frame.across.tap_step;
        const int64_t channel = static_cast<int64_t>(frame.group) * frame.channels + line.channel;
        lines[prepared][thread] = line.down < frame.down.taps
                                      ? (channel * shape.taps() + tap) * frame.columns
                                      : int64_t{-1};
        line.advance(Config::kDepth);
      }
      prepared ^= 1;
    }
  };
  const auto issue = [&](int slot) {
    const bool inside = taps.down < frame.down.taps;
    const int row_shift = taps.down * frame.down.step,
              column_shift = taps.across * frame.across.step;
    const int64_t shift =
        (taps.down * step_down + column_shift) * frame.source_channels + taps.channel;
    T* to = a + slot * A::kElements + A::first_line() * A::kPitch + A::place();
#pragma unroll
    for (int i = 0; i < A::kCopies; ++i) {
      const GatherRow& row = rows[A::first_line() + i * A::kLineStep];
      const bool valid =
          inside &&
          static_cast<unsigned>(row.row + row_shift) < static_cast<unsigned>(frame.source_h) &&
          static_cast<unsigned>(row.column + column_shift) < static_cast<unsigned>(frame.source_w);
      const T* from = args.source + (valid ? row.source + shift : 0);
      copy_vector<Config>(to + i * A::kLineStep * A::kPitch, from, valid);
    }
    taps.advance(Config::kDepth);

    to = b + slot * B::kElements + B::first_line() * B::kPitch + B::place();
    if constexpr (kBackward) {
      const int column = first_column + B::place();
#pragma unroll
      for (int i = 0; i < B::kCopies; ++i) {
        const int64_t begin = lines[used][B::first_line() + i * B::kLineStep];
        const bool valid = begin >= 0 && column < frame.columns;
        copy_vector<Config>(to + i * B::kLineStep * B::kPitch,
                            args.w + (valid ? begin + column : 0), valid);
      }
      used ^= 1;
    } else {
#pragma unroll
      for (int i = 0; i < B::kCopies; ++i) {
        const int column = first_column + B::first_line() + i * B::kLineStep;
        const bool valid = column < frame.columns && depth_place < depth;
        const int64_t output = static_cast<int64_t>(frame.group) * frame.columns + column;
        copy_vector<Config>(to + i * B::kLineStep * B::kPitch,
                            args.w + (valid ? output * depth + depth_place : 0), valid);
      }
      depth_place += Config::kDepth;
    }
  };

  TileProduct<Config, A, B> product;
  run_slabs<Config>(product, ceil_div(depth, Config::kDepth), a, A::kElements, b, B::kElements,
                    issue, prepare);

  const auto biased = [&](float value, int column) {
    if constexpr (kBackward) return value;
    if (args.bias.data == nullptr) return value;
    return value + load_bias(args.bias, static_cast<int64_t>(frame.group) * frame.columns + column);
  };
  const auto store_one = [&](int row, int column, float value) {
    const int64_t target = rows[row].target;
    column += first_column;
    if (target < 0 || column >= frame.columns) return;
    args.target[target + column] = from_float<T>(biased(value, column));
  };
  // Two neighbouring columns: one store where the channels come in pairs.
  const auto store_two = [&](int row, int column, float first, float second) {
    if constexpr (Config::kWide) {
      const int64_t target = rows[row].target;
      column += first_column;
      if (target < 0 || column >= frame.columns) return;
      store_pack<T, 2>(args.target + target + column, {from_float<T>(biased(first, column)),
                                                       from_float<T>(biased(second, column + 1))});
    } else {
      store_one(row, column, first);
      store_one(row, column + 1, second);
    }
  };
  product.for_each([&](int row, int column, float first, auto... second) {
    if constexpr (sizeof...(second) == 0) {
      store_one(row, column, first);
    } else {
      store_two(row, column, first, second...);
    }
  });
}

template <bool kBackward>
void launch_gather(const char* name, const NativeConv& conv, const ConvBias& bias, bool wide,
                   const void* source, void* target) {
  const ConvShape& shape = conv.shape;
  // Phase 0 is the largest.
  const int64_t phases = kBackward ? static_cast<int64_t>(phases_of(shape.h, shape.stride_h)) *
                                         phases_of(shape.w, shape.stride_w)
                                   : 1;
  const int64_t rows =
      kBackward ? shape.n * ceil_div(shape.h, shape.stride_h) * ceil_div(shape.w, shape.stride_w)
                : shape.output_pixels();
  const int64_t columns = kBackward ? shape.group_inputs() : shape.group_outputs();
  dispatch_tile(conv, wide, rows, columns, phases * shape.groups, [&](auto config) {
    using Config = decltype(config);
    using T = typename Config::Element;
    const int64_t tiles = ceil_div(rows, Config::kRows) * ceil_div(columns, Config::kColumns);
    CHECK(tiles < (int64_t{1} << 31) && phases * shape.groups < 65536, name, ": ", tiles,
          " tiles x ", phases * shape.groups, " phases and groups are too many for one launch");
    launch_tiles<&gather_kernel<Config, kBackward>>(
        name, dim3(static_cast<unsigned>(tiles), 1, static_cast<unsigned>(phases * shape.groups)),
        Config::kThreads, GatherTiles<Config, kBackward>::kSharedBytes, conv.stream,
        GatherArgs<T>{shape, bias, static_cast<const T*>(source), static_cast<const T*>(conv.w),
                      static_cast<T*>(target)});
  });
}

}  // namespace headroom::cuda
