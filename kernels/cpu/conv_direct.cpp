// Direct convolution, forward and backward to the input, while channels are not many: pixels times
// outputs in registers, straight from a zero-padded strip. A matrix product would first copy every
// pixel once per tap, and for few channels spend most of its time on that.
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
  struct Pixel {
    const float* from;  // what its first tap reaches in the strip
    T* to;
  };

  // Panels of 16 outputs, the last of 8 if that holds the rest.
  void pack_weight(const PixelGrid& grid, float* packed) const {
    const T* weight = call_.weight.as<const T>();
    const int64_t taps = call_.weight.shape[2] * call_.weight.shape[3];
    const int64_t channels = call_.weight.shape[1];
    const int64_t depth = static_cast<int64_t>(grid.taps.size()) * channels_;
    parallel_for((lanes_ + 2 * kLanes - 1) / (2 * kLanes), [&](int64_t panel) {
      const int64_t first = panel * 2 * kLanes;
      const int64_t width = std::min(2 * kLanes, lanes_ - first);
      float* to = packed + first * depth;
      for (const Tap& tap : grid.taps) {
        for (int64_t inner = 0; inner < channels_; ++inner, to += width) {
          for (int64_t lane = 0; lane < width; ++lane) {
            const int64_t output = first + lane;
            const int64_t k = call_.forward() ? output : inner;
            const int64_t c = call_.forward() ? inner : output;
            to[lane] = output < outputs_
                           ? static_cast<float>(weight[(k * taps + tap.index) * channels + c])
                           : 0.0f;
          }
        }
      }
    });
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
    std::vector<Pixel> pixels;
    pixels.reserve(static_cast<size_t>((i_end - i_begin) * grid.pixels.width));
    for (int64_t i = i_begin; i < i_end; ++i) {
      const float* row = strip + grid.strip.pixel(grid.pixels, i - i_begin, 0);
      const int64_t first = (n * grid.pixels.height + i) * grid.pixels.width;
      T* out = call_.output.as<T>() + grid.pixels.output_pixel(first) * outputs_;
      for (int64_t j = 0; j < grid.pixels.width; ++j) {
        pixels.push_back({row + grid.strip.pixel(grid.pixels, 0, j),
                          out + j * grid.pixels.spacing_w * outputs_});
      }
    }
    // One panel of weights serves all pixels of the band before the next.
    for (int64_t output = 0; output < lanes_; output += 2 * kLanes) {
      if (lanes_ - output > kLanes) {
        run_panel<6, 2>(grid, pixels, output);
      } else {
        run_panel<8, 1>(grid, pixels, output);
      }
    }
  }

  // Outputs [output, output + 8 * kVectors) of the pixels, kPixels at a time.
  template <int kPixels, int kVectors>
  void run_panel(const Grid& grid, const std::vector<Pixel>& pixels, int64_t output) const {
    const float* weight = grid.weight + output * grid.depth;
    const int64_t valid = std::min(kVectors * kLanes, outputs_ - output);
    const int64_t count = static_cast<int64_t>(pixels.size());
    float tile[kPixels * kVectors * kLanes];
    const float* from[kPixels];
    for (int64_t first = 0; first < count; first += kPixels) {
      // The last group repeats its last pixel.
      for (int64_t m = 0; m < kPixels; ++m) from[m] = pixels[std::min(first + m, count - 1)].from;
      multiply<kPixels, kVectors>(from, grid.runs, weight, start_.data() + output, tile);
      const int64_t end = std::min<int64_t>(kPixels, count - first);
      for (int64_t m = 0; m < end; ++m) {
        write(tile + m * kVectors * kLanes, valid, pixels[first + m].to + output);
      }
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
