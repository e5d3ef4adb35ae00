// Shapes and index arithmetic of the native convolutions, apart from the kernels so that the host
// can test them. Forward and the input's gradient are one product: each output position gathers
// source pixels, tap by tap; a strided gradient falls into phases that use every stride-th tap.
#pragma once

#include <cstdint>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/ops/params.h"
#include "core/tensor/view.h"

namespace headroom::cuda {

// One convolution: x [n,h,w,c], w [k,r,s,c/groups], y [n,p,q,k] as they lie in memory.
struct ConvShape {
  int64_t n = 0;
  int h = 0, w = 0, c = 0;
  int p = 0, q = 0, k = 0;
  int r = 0, s = 0;
  int stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
  int groups = 1;
  HEADROOM_HOST_DEVICE int group_inputs() const { return c / groups; }
  HEADROOM_HOST_DEVICE int group_outputs() const { return k / groups; }
  HEADROOM_HOST_DEVICE int taps() const { return r * s; }
  HEADROOM_HOST_DEVICE int64_t output_pixels() const { return n * p * q; }
  HEADROOM_HOST_DEVICE int64_t weight_numel() const {
    return static_cast<int64_t>(k) * taps() * group_inputs();
  }
};

// From views in n, c, h, w order. Single extents stay below 2^31; products of them may not.
inline ConvShape conv_shape(const View& x, const View& w, const Conv2dParams& params,
                            const View& y) {
  constexpr int64_t kLimit = int64_t{1} << 30;  // sums of two coordinates still fit an int
  const auto narrow = [](int64_t value) {
    CHECK(value >= 0 && value < kLimit, "conv2d: an extent or parameter of ", value,
          " is beyond the native kernels");
    return static_cast<int>(value);
  };
  ConvShape shape;
  shape.n = x.shape[0];
  shape.c = narrow(x.shape[1]);
  shape.h = narrow(x.shape[2]);
  shape.w = narrow(x.shape[3]);
  shape.k = narrow(y.shape[1]);
  shape.p = narrow(y.shape[2]);
  shape.q = narrow(y.shape[3]);
  shape.r = narrow(w.shape[2]);
  shape.s = narrow(w.shape[3]);
  shape.stride_h = narrow(params.stride[0]);
  shape.stride_w = narrow(params.stride[1]);
  shape.pad_h = narrow(params.padding[0]);
  shape.pad_w = narrow(params.padding[1]);
  shape.dilation_h = narrow(params.dilation[0]);
  shape.dilation_w = narrow(params.dilation[1]);
  shape.groups = narrow(params.groups);
  narrow(params.dilation[0] * w.shape[2]);
  narrow(params.dilation[1] * w.shape[3]);
  return shape;
}

// One axis of a gather: output position i (of `count`) lies at first + i * spacing and reads, for
// tap t (of `taps`), source position i * scale + base + t * step, if that is inside the source.
// Tap t is kernel row (or column) tap_first + t * tap_step.
struct GatherAxis {
  int first = 0, spacing = 1, count = 0;
  int scale = 1, base = 0, step = 0;
  int taps = 0, tap_first = 0, tap_step = 1;
};

HEADROOM_HOST_DEVICE inline GatherAxis forward_axis(int outputs, int kernel, int stride,
                                                    int padding, int dilation) {
  return {0, 1, outputs, stride, -padding, dilation, kernel, 0, 1};
}

HEADROOM_HOST_DEVICE inline int greatest_common_divisor(int a, int b) {
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// The input's gradient at positions phase, phase + stride, ...: dx[h] sums dy[(h + padding - r *
// dilation) / stride] over the kernel rows r for which that is whole, every tap_step-th one.
HEADROOM_HOST_DEVICE inline GatherAxis backward_axis(int inputs, int kernel, int stride,
                                                     int padding, int dilation, int phase) {
  GatherAxis axis;
  axis.first = phase;
  axis.spacing = stride;
  axis.count = phase < inputs ? (inputs - phase - 1) / stride + 1 : 0;
  axis.tap_step = stride / greatest_common_divisor(stride, dilation);
  axis.step = -(axis.tap_step * dilation / stride);
  for (int tap = 0; tap < axis.tap_step && tap < kernel; ++tap) {
    const int distance = phase + padding - tap * dilation;
    if (distance % stride != 0) continue;
    axis.tap_first = tap;
    axis.taps = (kernel - tap - 1) / axis.tap_step + 1;
    axis.base = distance / stride;
    break;
  }
  return axis;
}

// Phases along one axis; those past the input's extent would be empty.
HEADROOM_HOST_DEVICE inline int phases_of(int inputs, int stride) {
  return stride < inputs ? stride : inputs;
}

// Image and position of a pixel that moves by a fixed number of pixels: the step is divided once,
// then two carries are enough.
struct PixelWalk {
  int64_t image;
  int row, column;
  int rows, columns;
  int64_t step_images;
  int step_rows, step_columns;

  HEADROOM_HOST_DEVICE PixelWalk(int64_t pixel, int rows_in, int columns_in, int step)
      : rows(rows_in), columns(columns_in) {
    const int64_t area = static_cast<int64_t>(rows) * columns;
    image = pixel / area;
    row = static_cast<int>(pixel % area / columns);
    column = static_cast<int>(pixel % columns);
    step_images = step / area;
    step_rows = static_cast<int>(step % area / columns);
    step_columns = step % columns;
  }
  HEADROOM_HOST_DEVICE void advance() {
    image += step_images;
    row += step_rows;
    column += step_columns;
    if (column >= columns) {
      column -= columns;
      ++row;
    }
    if (row >= rows) {
      row -= rows;
      ++image;
    }
  }
};

// Pixels of each part of the weight gradient's sum: whole slabs, the last part may be short or
// empty.
HEADROOM_HOST_DEVICE inline int64_t part_length(int64_t pixels, int parts, int slab) {
  const int64_t length = (pixels + parts - 1) / parts;
  return (length + slab - 1) / slab * slab;
}

// Groups so narrow that a tile of a matrix product would be almost empty: depthwise and its like.
inline bool is_narrow(const ConvShape& shape) {
  constexpr int kNarrow = 8;
  return shape.groups > 1 && (shape.group_inputs() < kNarrow || shape.group_outputs() < kNarrow);
}

}  // namespace headroom::cuda
