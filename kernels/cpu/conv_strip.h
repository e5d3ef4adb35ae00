// What the direct convolutions share: a strip of the source image in f32 with its zero padding made
// real, so that every tap of every pixel of a band of rows is a constant distance away.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "core/ops/workspace_cpu.h"
#include "kernels/cpu/conv_gather.h"
#include "kernels/cpu/half_convert.h"

namespace headroom::cpu {

// Eight f32 side by side; loads need no alignment.
using Vector = float __attribute__((vector_size(32), aligned(4), may_alias));
constexpr int64_t kLanes = 8;

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

// Distances within the strip that one grid of pixels reads.
struct StripShape {
  int64_t channels = 0;
  int64_t first_h = 0, first_w = 0;  // offsets of the strip's first row and column
  int64_t reach_h = 0;               // rows beyond those of the grid
  int64_t width = 0;                 // pixels per row

  StripShape(const PixelGrid& grid, int64_t source_channels) : channels(source_channels) {
    if (grid.taps.empty()) return;
    int64_t last_h = grid.taps[0].offset_h, last_w = grid.taps[0].offset_w;
    first_h = last_h;
    first_w = last_w;
    for (const Tap& tap : grid.taps) {
      first_h = std::min(first_h, tap.offset_h);
      first_w = std::min(first_w, tap.offset_w);
      last_h = std::max(last_h, tap.offset_h);
      last_w = std::max(last_w, tap.offset_w);
    }
    reach_h = last_h - first_h;
    width = (grid.width - 1) * grid.step_w + last_w - first_w + 1;
  }
  // Elements from the strip's start to what grid pixel (i, j) of the band reads first.
  int64_t pixel(const PixelGrid& grid, int64_t i, int64_t j) const {
    return (i * grid.step_h * width + j * grid.step_w) * channels;
  }
  // Elements from there to the pixel of a tap.
  int64_t tap(const Tap& tap) const {
    return ((tap.offset_h - first_h) * width + tap.offset_w - first_w) * channels;
  }
};

// Fills the strip with the source of grid rows [i_begin, i_end) of image n.
template <class T>
void fill_strip(const T* source, const PixelGrid& grid, const StripShape& shape, int64_t n,
                int64_t i_begin, int64_t i_end, float* strip) {
  const int64_t row_elements = shape.width * shape.channels;
  const int64_t rows = (i_end - i_begin - 1) * grid.step_h + shape.reach_h + 1;
  const int64_t begin = std::clamp<int64_t>(-shape.first_w, 0, shape.width);
  const int64_t end = std::clamp<int64_t>(grid.source_width - shape.first_w, begin, shape.width);
  for (int64_t row = 0; row < rows; ++row) {
    float* to = strip + row * row_elements;
    const int64_t h = i_begin * grid.step_h + shape.first_h + row;
    if (h < 0 || h >= grid.source_height || begin == end) {
      std::fill_n(to, row_elements, 0.0f);
      continue;
    }
    const T* from =
        source +
        ((n * grid.source_height + h) * grid.source_width + begin + shape.first_w) * shape.channels;
    std::fill_n(to, begin * shape.channels, 0.0f);
    convert_run(from, to + begin * shape.channels, (end - begin) * shape.channels);
    std::fill_n(to + end * shape.channels, (shape.width - end) * shape.channels, 0.0f);
  }
}

}  // namespace headroom::cpu
