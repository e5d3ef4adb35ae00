// Direct convolution for few gathered channels (LeNet, the first layer of any net), forward and
// backward to the input: pixels times outputs in registers, straight from a zero-padded strip. A
// matrix product over an im2col panel spends most of its time on the panel there.
#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "kernels/cpu/conv_gather.h"
#include "kernels/cpu/conv_kernels.h"
#include "kernels/cpu/conv_strip.h"
#include "kernels/cpu/matmul_block.h"

namespace headroom::cpu {
namespace {

// Taps whose channels lie side by side both in the strip and in the packed weight.
struct Run {
  int64_t offset = 0, length = 0;  // elements
};

struct Grid {
  PixelGrid pixels;
  StripShape strip;
  std::vector<Run> runs;
  int64_t depth = 0;              // taps * channels
  const float* weight = nullptr;  // packed [panel][depth][vector lanes]
};

std::vector<Run> runs_of(const PixelGrid& grid, const StripShape& strip) {
  std::vector<Run> runs;
  for (const Tap& tap : grid.taps) {
    const int64_t offset = strip.tap(tap);
    if (!runs.empty() && runs.back().offset + runs.back().length == offset) {
      runs.back().length += strip.channels;
    } else {
      runs.push_back({offset, strip.channels});
    }
  }
  return runs;
}

// tile[kPixels][8 * kVectors] = start + what the pixels gather times the weight panel. With six
// pixels and two vectors, or eight and one, sums and operands fill the 16 vector registers.
template <int kPixels, int kVectors>
void multiply(const float* const* pixels, const std::vector<Run>& runs, const float* weight,
              const float* start, float* tile) {
  Vector sum[kPixels][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const Vector first = load(start + v * kLanes);
    for (int m = 0; m < kPixels; ++m) sum[m][v] = first;
  }
  for (const Run& run : runs) {
    const float* from[kPixels];
    for (int m = 0; m < kPixels; ++m) from[m] = pixels[m] + run.offset;
    for (int64_t k = 0; k < run.length; ++k) {
      Vector w[kVectors];
      for (int v = 0; v < kVectors; ++v) w[v] = load(weight + v * kLanes);
      weight += kVectors * kLanes;
#pragma GCC unroll 8
      for (int m = 0; m < kPixels; ++m) {
        const float x = from[m][k];
        for (int v = 0; v < kVectors; ++v) sum[m][v] += x * w[v];
      }
    }
  }
  for (int m = 0; m < kPixels; ++m) {
    for (int v = 0; v < kVectors; ++v) store(tile + (m * kVectors + v) * kLanes, sum[m][v]);
  }
}

template <class T>
class DirectConvolution {
 public:
  DirectConvolution(const ConvCall& call, const ConvPlan& plan) : call_(call), plan_(plan) {
    channels_ = call.source.shape[1];
    outputs_ = call.output.shape[1];
    lanes_ = padded_outputs(outputs_);
    std::vector<PixelGrid> grids;
    if (call.forward()) {
      grids.push_back(forward_grid(call.source, call.weight, call.output, call.params));
    } else {
      grids = backward_grids(call.output, call.weight, call.source, call.params);
    }
    float* weight = reinterpret_cast<float*>(call.workspace);
    first_band_.push_back(0);
    for (PixelGrid& pixels : grids) {
      const StripShape strip(pixels, channels_);
      Grid grid{pixels, strip, runs_of(pixels, strip), 0, weight};
      grid.depth = static_cast<int64_t>(pixels.taps.size()) * channels_;
      pack_weight(pixels, weight);
      weight += grid.depth * lanes_;
      const int64_t bands = (pixels.height + plan.rows - 1) / plan.rows;
      first_band_.push_back(first_band_.back() + pixels.images * bands);
      grids_.push_back(std::move(grid));
    }
    start_.resize(static_cast<size_t>(lanes_), 0.0f);
    if (call.bias) {
      for (int64_t k = 0; k < outputs_; ++k) start_[k] = element_of<float>(call.bias, k);
    }
  }

  void run() const {
    const int64_t bands = first_band_.back();
    parallel_for(plan_.tasks, [&](int64_t task) {
      float* strip = reinterpret_cast<float*>(call_.workspace + plan_.weight_bytes +
                                              task * plan_.task_bytes());
      const int64_t end = bands * (task + 1) / plan_.tasks;
      for (int64_t band = bands * task / plan_.tasks; band < end; ++band) run_band(band, strip);
    });
  }

 private:
  // Panels of 16 outputs, the last of 8 if that holds the rest.
  void pack_weight(const PixelGrid& grid, float* packed) const {
    const T* weight = call_.weight.as<const T>();
    const int64_t taps = call_.weight.shape[2] * call_.weight.shape[3];
    const int64_t channels = call_.weight.shape[1];
    for (int64_t first = 0; first < lanes_; first += 2 * kLanes) {
      const int64_t width = std::min(2 * kLanes, lanes_ - first);
      for (const Tap& tap : grid.taps) {
        for (int64_t inner = 0; inner < channels_; ++inner) {
          for (int64_t lane = 0; lane < width; ++lane) {
            const int64_t output = first + lane;
            const int64_t k = call_.forward() ? output : inner;
            const int64_t c = call_.forward() ? inner : output;
            *packed++ = output < outputs_
                            ? static_cast<float>(weight[(k * taps + tap.index) * channels + c])
                            : 0.0f;
          }
        }
      }
    }
  }

  void run_band(int64_t band, float* strip) const {
    const size_t g = static_cast<size_t>(
        std::upper_bound(first_band_.begin(), first_band_.end(), band) - first_band_.begin() - 1);
    const Grid& grid = grids_[g];
    band -= first_band_[g];
    const int64_t bands = (grid.pixels.height + plan_.rows - 1) / plan_.rows;
    const int64_t n = band / bands;
    const int64_t i_begin = band % bands * plan_.rows;
    const int64_t i_end = std::min(grid.pixels.height, i_begin + plan_.rows);
    if (!grid.runs.empty()) {
      fill_strip(call_.source.as<const T>(), grid.pixels, grid.strip, n, i_begin, i_end, strip);
    }
    // Panels of one vector alone take more pixels at a time.
    if (lanes_ > kLanes) {
      run_pixels<6>(grid, n, i_begin, i_end, strip);
    } else {
      run_pixels<8>(grid, n, i_begin, i_end, strip);
    }
  }

  // Pixels of grid rows [i_begin, i_end) of image n, kPixels at a time.
  template <int kPixels>
  void run_pixels(const Grid& grid, int64_t n, int64_t i_begin, int64_t i_end,
                  const float* strip) const {
    const int64_t width = grid.pixels.width;
    const float* from[kPixels];
    T* to[kPixels];
    int count = 0;
    for (int64_t i = i_begin; i < i_end; ++i) {
      const float* row = strip + grid.strip.pixel(grid.pixels, i - i_begin, 0);
      const int64_t first = (n * grid.pixels.height + i) * width;
      T* out = call_.output.as<T>() + grid.pixels.output_pixel(first) * outputs_;
      const int64_t step = grid.strip.pixel(grid.pixels, 0, 1);
      for (int64_t j = 0; j < width; ++j) {
        from[count] = row + j * step;
        to[count] = out + j * grid.pixels.spacing_w * outputs_;
        if (++count < kPixels) continue;
        run_group<kPixels>(grid, from, to, count);
        count = 0;
      }
    }
    if (count == 0) return;
    // The last group repeats its last pixel.
    for (int m = count; m < kPixels; ++m) from[m] = from[count - 1];
    run_group<kPixels>(grid, from, to, count);
  }

  template <int kPixels>
  void run_group(const Grid& grid, const float* const* from, T* const* to, int count) const {
    float tile[kPixels * 2 * kLanes];
    for (int64_t output = 0; output < lanes_; output += 2 * kLanes) {
      const float* weight = grid.weight + output * grid.depth;
      const bool wide = lanes_ - output > kLanes;
      if (wide) {
        multiply<kPixels, 2>(from, grid.runs, weight, start_.data() + output, tile);
      } else {
        multiply<kPixels, 1>(from, grid.runs, weight, start_.data() + output, tile);
      }
      const int64_t width = wide ? 2 * kLanes : kLanes;
      const int64_t valid = std::min(width, outputs_ - output);
      for (int m = 0; m < count; ++m) write(tile + m * width, valid, to[m] + output);
    }
  }

  static void write(const float* from, int64_t count, T* to) {
    if constexpr (std::is_same_v<T, float>) {
      // Pieces of fixed size: a call for a handful of numbers would cost more than the numbers.
      for (; count >= kLanes; count -= kLanes, from += kLanes, to += kLanes) store(to, load(from));
      for (int64_t size = kLanes / 2; size > 0; size /= 2) {
        if ((count & size) == 0) continue;
        for (int64_t i = 0; i < size; ++i) to[i] = from[i];
        from += size;
        to += size;
      }
      return;
    }
    convert_run(from, to, count);
  }

  const ConvCall& call_;
  const ConvPlan& plan_;
  int64_t channels_, outputs_, lanes_;
  std::vector<Grid> grids_;
  std::vector<int64_t> first_band_;  // of each grid, and the number of bands
  std::vector<float> start_;         // the bias, or zeros
};

}  // namespace

void conv_direct(const ConvCall& call, const ConvPlan& plan) {
  switch (call.source.dtype) {
    case DType::f16:
      return DirectConvolution<Half>(call, plan).run();
    case DType::bf16:
      return DirectConvolution<BFloat16>(call, plan).run();
    default:
      CHECK(call.source.dtype == DType::f32, "conv2d: direct kernels compute in f32");
      return DirectConvolution<float>(call, plan).run();
  }
}

}  // namespace headroom::cpu
