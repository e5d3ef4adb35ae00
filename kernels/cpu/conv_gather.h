// Convolution seen as a gather: every output pixel takes, for each tap of the kernel, the channels
// of one source pixel. Forward gathers x; backward to the input gathers dy, once per class of
// pixels (position modulo the stride), because each class is reached by taps of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "core/ops/params.h"
#include "core/tensor/view.h"
#include "kernels/cpu/half_convert.h"

namespace headroom::cpu {

// The source row and column of a tap are those of the grid times its step, plus the offset.
struct Tap {
  int64_t offset_h = 0, offset_w = 0;
  int64_t index = 0;  // r * kernel width + s
};

// Output pixels that share their taps: `images` grids of height x width. Grid pixel (i, j) lies at
// (first_h + i * spacing_h, first_w + j * spacing_w) of the output image.
struct PixelGrid {
  int64_t images = 0, height = 0, width = 0;
  int64_t step_h = 1, step_w = 1;
  int64_t first_h = 0, first_w = 0, spacing_h = 1, spacing_w = 1;
  int64_t image_height = 0, image_width = 0;    // of the output
  int64_t source_height = 0, source_width = 0;  // of the source
  std::vector<Tap> taps;

  int64_t pixels() const { return images * height * width; }
  // Whether the grid's pixels are all pixels of the output, in order.
  bool is_whole() const { return spacing_h == 1 && spacing_w == 1; }
  // Place of grid pixel `row` among the pixels of the output.
  int64_t output_pixel(int64_t row) const {
    const int64_t j = row % width, i = row / width % height, n = row / width / height;
    return (n * image_height + first_h + i * spacing_h) * image_width + first_w + j * spacing_w;
  }
};

// The one grid of a forward pass, over x.
PixelGrid forward_grid(const View& x, const View& w, const View& y, const Conv2dParams& params);
// The classes of a pass backward to the input, over dy. Some may have no taps: their dx is 0.
std::vector<PixelGrid> backward_grids(const View& dx, const View& w, const View& dy,
                                      const Conv2dParams& params);

// Which taps and channels of the source a panel holds.
struct PanelSource {
  const PixelGrid& grid;
  int64_t tap_begin = 0, tap_end = 0;
  int64_t channels = 0;       // of the source image
  int64_t first_channel = 0;  // of the group
  int64_t group_channels = 0;
};

// panel[row - begin][tap - tap_begin][channel] for grid pixels [begin, end), zero outside the
// source. T is the type stored, and half types become f32.
template <class T>
void gather_panel(const T* source, const PanelSource& from, int64_t begin, int64_t end,
                  compute_t<T>* panel);

}  // namespace headroom::cpu
