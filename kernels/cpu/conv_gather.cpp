// Grids of pixels, and im2col panels of them; see conv_gather.h.
#include "kernels/cpu/conv_gather.h"

#include <algorithm>
#include <cstring>

namespace headroom::cpu {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Taps that lie side by side in the source as they do in the panel, copied as one.
int64_t run_of_taps(const PanelSource& from, int64_t tap) {
  const std::vector<Tap>& taps = from.grid.taps;
  int64_t end = tap + 1;
  if (from.group_channels != from.channels) return 1;
  while (end < from.tap_end && taps[end].offset_h == taps[tap].offset_h &&
         taps[end].offset_w == taps[end - 1].offset_w + 1) {
    ++end;
  }
  return end - tap;
}

// Columns [0, width) of a grid row for which tap `offset` falls inside [0, extent).
struct Range {
  int64_t begin, end;
};
Range inside(int64_t offset, int64_t step, int64_t width, int64_t extent) {
  const int64_t begin = offset >= 0 ? 0 : divide_up(-offset, step);
  const int64_t end = offset >= extent ? 0 : divide_up(extent - offset, step);
  return {std::min(begin, width), std::clamp<int64_t>(end, std::min(begin, width), width)};
}

template <class T>
class Gather {
 public:
  using Sum = compute_t<T>;

  Gather(const T* source, const PanelSource& from, Sum* panel)
      : source_(source),
        from_(from),
        grid_(from.grid),
        panel_(panel),
        depth_((from.tap_end - from.tap_begin) * from.group_channels) {}

  // Grid pixels (n, i, j_begin .. j_end) go to panel rows row, row + 1, ...
  void row(int64_t n, int64_t i, int64_t j_begin, int64_t j_end, int64_t row) const {
    for (int64_t tap = from_.tap_begin; tap < from_.tap_end;) {
      const int64_t run = run_of_taps(from_, tap);
      const Tap& first = grid_.taps[tap];
      const Tap& last = grid_.taps[tap + run - 1];
      const int64_t h = i * grid_.step_h + first.offset_h;
      if (h < 0 || h >= grid_.source_height) {
        for (int64_t j = j_begin; j < j_end; ++j) clear(row + j - j_begin, tap, run);
      } else {
        const T* line = source_ +
                        (n * grid_.source_height + h) * grid_.source_width * from_.channels +
                        from_.first_channel;
        const int64_t begin =
            inside(first.offset_w, grid_.step_w, grid_.width, grid_.source_width).begin;
        const int64_t end =
            inside(last.offset_w, grid_.step_w, grid_.width, grid_.source_width).end;
        for (int64_t j = j_begin; j < j_end; ++j) {
          const int64_t w = j * grid_.step_w + first.offset_w;
          if (j >= begin && j < end) {
            copy(line + w * from_.channels, row + j - j_begin, tap, run);
          } else {
            border(line, w, row + j - j_begin, tap, run);
          }
        }
      }
      tap += run;
    }
  }

 private:
  Sum* place(int64_t row, int64_t tap) const {
    return panel_ + row * depth_ + (tap - from_.tap_begin) * from_.group_channels;
  }
  void copy(const T* from, int64_t row, int64_t tap, int64_t taps) const {
    const int64_t count = taps * from_.group_channels;
    if constexpr (std::is_same_v<T, Sum>) {
      std::memcpy(place(row, tap), from, static_cast<size_t>(count) * sizeof(T));
    } else {
      convert_run(from, place(row, tap), count);
    }
  }
  void clear(int64_t row, int64_t tap, int64_t taps) const {
    std::fill_n(place(row, tap), taps * from_.group_channels, Sum(0));
  }
  // A pixel near the edge: some of its taps are outside.
  void border(const T* line, int64_t w, int64_t row, int64_t tap, int64_t taps) const {
    for (int64_t t = 0; t < taps; ++t) {
      if (w + t >= 0 && w + t < grid_.source_width) {
        copy(line + (w + t) * from_.channels, row, tap + t, 1);
      } else {
        clear(row, tap + t, 1);
      }
    }
  }

  const T* source_;
  const PanelSource& from_;
  const PixelGrid& grid_;
  Sum* panel_;
  int64_t depth_;
};

}  // namespace

PixelGrid forward_grid(const View& x, const View& w, const View& y, const Conv2dParams& params) {
  PixelGrid grid;
  grid.images = x.shape[0];
  grid.height = grid.image_height = y.shape[2];
  grid.width = grid.image_width = y.shape[3];
  grid.source_height = x.shape[2];
  grid.source_width = x.shape[3];
  grid.step_h = params.stride[0];
  grid.step_w = params.stride[1];
  for (int64_t r = 0; r < w.shape[2]; ++r) {
    for (int64_t s = 0; s < w.shape[3]; ++s) {
      grid.taps.push_back({r * params.dilation[0] - params.padding[0],
                           s * params.dilation[1] - params.padding[1], r * w.shape[3] + s});
    }
  }
  return grid;
}

std::vector<PixelGrid> backward_grids(const View& dx, const View& w, const View& dy,
                                      const Conv2dParams& params) {
  // x[h] meets y[p] at tap r when h + padding - r * dilation = p * stride. Along one axis, a class
  // is the residue of h + padding; taps of its residue reach it, with a constant offset p - i.
  struct AxisClass {
    int64_t first = 0, count = 0;
    std::vector<Tap> taps;  // offset_h holds the offset, index the tap
  };
  const auto classes_of = [](int64_t extent, int64_t kernel, int64_t stride, int64_t padding,
                             int64_t dilation) {
    std::vector<AxisClass> classes;
    for (int64_t first = 0; first < std::min(stride, extent); ++first) {
      AxisClass own;
      own.first = first;
      own.count = divide_up(extent - first, stride);
      // Descending taps, so that neighbouring taps read neighbouring source pixels in order.
      for (int64_t tap = kernel - 1; tap >= 0; --tap) {
        const int64_t distance = first + padding - tap * dilation;
        if (distance % stride == 0) own.taps.push_back({distance / stride, 0, tap});
      }
      classes.push_back(std::move(own));
    }
    return classes;
  };
  const auto vertical =
      classes_of(dx.shape[2], w.shape[2], params.stride[0], params.padding[0], params.dilation[0]);
  const auto horizontal =
      classes_of(dx.shape[3], w.shape[3], params.stride[1], params.padding[1], params.dilation[1]);
  std::vector<PixelGrid> grids;
  for (const AxisClass& v : vertical) {
    for (const AxisClass& h : horizontal) {
      PixelGrid grid;
      grid.images = dx.shape[0];
      grid.height = v.count;
      grid.width = h.count;
      grid.first_h = v.first;
      grid.first_w = h.first;
      grid.spacing_h = params.stride[0];
      grid.spacing_w = params.stride[1];
      grid.image_height = dx.shape[2];
      grid.image_width = dx.shape[3];
      grid.source_height = dy.shape[2];
      grid.source_width = dy.shape[3];
      for (const Tap& r : v.taps) {
        for (const Tap& s : h.taps) {
          grid.taps.push_back({r.offset_h, s.offset_h, r.index * w.shape[3] + s.index});
        }
      }
      grids.push_back(std::move(grid));
    }
  }
  return grids;
}

template <class T>
void gather_panel(const T* source, const PanelSource& from, int64_t begin, int64_t end,
                  compute_t<T>* panel) {
  const PixelGrid& grid = from.grid;
  const Gather<T> gather(source, from, panel);
  for (int64_t row = begin; row < end;) {
    const int64_t j = row % grid.width, i = row / grid.width % grid.height;
    const int64_t count = std::min(grid.width - j, end - row);
    gather.row(row / grid.width / grid.height, i, j, j + count, row - begin);
    row += count;
  }
}

template void gather_panel<Half>(const Half*, const PanelSource&, int64_t, int64_t, float*);
template void gather_panel<BFloat16>(const BFloat16*, const PanelSource&, int64_t, int64_t, float*);
template void gather_panel<float>(const float*, const PanelSource&, int64_t, int64_t, float*);
template void gather_panel<double>(const double*, const PanelSource&, int64_t, int64_t, double*);

}  // namespace headroom::cpu
