// Backward to the weight for few input channels: gathered values times outputs in registers, summed
// over the pixels of a strip; see conv_direct.cpp.
#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "kernels/cpu/conv_gather.h"
#include "kernels/cpu/conv_kernels.h"
#include "kernels/cpu/conv_strip.h"

namespace headroom::cpu {
namespace {

// One band of pixels, as the inner kernel sees it.
struct Band {
  int64_t rows = 0, columns = 0;          // of pixels
  int64_t row_step = 0, column_step = 0;  // between their places in the strip, in elements
  const float* gradient = nullptr;        // dy of the first pixel
  int64_t gradient_step = 0;              // between pixels
};

// sums[m][8 * kVectors] += over the band, the element at values[m] times kVectors vectors of dy.
template <int kValues, int kVectors>
void add_band(const Band& band, const float* const* values, const float* gradient, float* sums,
              int64_t row_stride, int64_t count) {
  Vector sum[kValues][kVectors] = {};
  for (int64_t i = 0; i < band.rows; ++i) {
    const float* from[kValues];
    for (int m = 0; m < kValues; ++m) from[m] = values[m] + i * band.row_step;
    int64_t place = 0;
    for (int64_t j = 0; j < band.columns; ++j, place += band.column_step) {
      Vector dy[kVectors];
      for (int v = 0; v < kVectors; ++v) dy[v] = load(gradient + v * kLanes);
      gradient += band.gradient_step;
#pragma GCC unroll 8
      for (int m = 0; m < kValues; ++m) {
        const float x = from[m][place];
        for (int v = 0; v < kVectors; ++v) sum[m][v] += x * dy[v];
      }
    }
  }
  for (int64_t m = 0; m < count; ++m) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = sums + m * row_stride + v * kLanes;
      store(to, load(to) + sum[m][v]);
    }
  }
}

template <class T>
class DirectWeightGradient {
 public:
  DirectWeightGradient(const ConvWeightCall& call, const ConvWeightPlan& plan)
      : call_(call),
        plan_(plan),
        grid_(forward_grid(call.x, call.dw, call.dy, call.params)),
        strip_(grid_, call.x.shape[1]) {
    channels_ = call.x.shape[1];
    outputs_ = call.dy.shape[1];
    lanes_ = padded_outputs(outputs_);
    for (const Tap& tap : grid_.taps) {
      for (int64_t c = 0; c < channels_; ++c) places_.push_back(strip_.tap(tap) + c);
    }
    partial_bytes_ = plan.partial_bytes / plan.splits;
  }

  void run() const {
    const int64_t per_image = (grid_.height + plan_.rows - 1) / plan_.rows;
    const int64_t bands = grid_.images * per_image;
    parallel_for(plan_.splits, [&](int64_t split) {
      char* scratch = call_.workspace + split * plan_.task_bytes();
      float* sums = partial(split);
      std::fill_n(sums, depth() * lanes_, 0.0f);
      const int64_t end = bands * (split + 1) / plan_.splits;
      for (int64_t band = bands * split / plan_.splits; band < end; ++band) {
        const int64_t i = band % per_image * plan_.rows;
        run_band(band / per_image, i, std::min(grid_.height, i + plan_.rows), scratch, sums);
      }
    });
    add_partials();
  }

 private:
  int64_t depth() const { return static_cast<int64_t>(places_.size()); }
  // Sums of one split: [tap][channel][padded outputs].
  float* partial(int64_t split) const {
    return reinterpret_cast<float*>(call_.workspace + plan_.tasks * plan_.task_bytes() +
                                    split * partial_bytes_);
  }

  void run_band(int64_t n, int64_t i_begin, int64_t i_end, char* scratch, float* sums) const {
    float* strip = reinterpret_cast<float*>(scratch);
    fill_strip(call_.x.as<const T>(), grid_, strip_, n, i_begin, i_end, strip);
    Band band;
    band.rows = i_end - i_begin;
    band.columns = grid_.width;
    band.row_step = strip_.pixel(grid_, 1, 0);
    band.column_step = strip_.pixel(grid_, 0, 1);
    band.gradient_step = lanes_;
    const T* dy = call_.dy.as<const T>() + (n * grid_.height + i_begin) * grid_.width * outputs_;
    band.gradient = padded_gradient(dy, band.rows * band.columns,
                                    reinterpret_cast<float*>(scratch + plan_.panel_bytes));
    for (int64_t output = 0; output < lanes_; output += 2 * kLanes) {
      if (lanes_ - output > kLanes) {
        run_panel<6, 2>(band, strip, output, sums);
      } else {
        run_panel<8, 1>(band, strip, output, sums);
      }
    }
  }

  template <int kValues, int kVectors>
  void run_panel(const Band& band, const float* strip, int64_t output, float* sums) const {
    const float* values[kValues];
    for (int64_t first = 0; first < depth(); first += kValues) {
      const int64_t count = std::min<int64_t>(kValues, depth() - first);
      for (int64_t m = 0; m < kValues; ++m) {
        values[m] = strip + places_[first + std::min(m, count - 1)];
      }
      add_band<kValues, kVectors>(band, values, band.gradient + output,
                                  sums + first * lanes_ + output, lanes_, count);
    }
  }

  // dy in f32 with `lanes_` outputs per pixel: as it lies, or copied into `buffer`.
  const float* padded_gradient(const T* dy, int64_t pixels, float* buffer) const {
    if constexpr (std::is_same_v<T, float>) {
      if (outputs_ == lanes_) return dy;
    }
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      float* to = buffer + pixel * lanes_;
      convert_run(dy + pixel * outputs_, to, outputs_);
      std::fill_n(to + outputs_, lanes_ - outputs_, 0.0f);
    }
    return buffer;
  }

  void add_partials() const {
    for (int64_t k = 0; k < outputs_; ++k) {
      for (int64_t d = 0; d < depth(); ++d) {
        float sum = 0;
        for (int64_t split = 0; split < plan_.splits; ++split) {
          sum += partial(split)[d * lanes_ + k];
        }
        if (call_.dw.dtype == DType::f32) {
          call_.dw.as<float>()[k * depth() + d] = sum;
        } else {
          call_.dw.as<T>()[k * depth() + d] = static_cast<T>(sum);
        }
      }
    }
  }

  const ConvWeightCall& call_;
  const ConvWeightPlan& plan_;
  PixelGrid grid_;
  StripShape strip_;
  int64_t channels_, outputs_, lanes_;
  std::vector<int64_t> places_;  // of each (tap, channel), from a pixel's place in the strip
  int64_t partial_bytes_;
};

}  // namespace

void conv_weight_direct(const ConvWeightCall& call, const ConvWeightPlan& plan) {
  switch (call.x.dtype) {
    case DType::f16:
      return DirectWeightGradient<Half>(call, plan).run();
    case DType::bf16:
      return DirectWeightGradient<BFloat16>(call, plan).run();
    default:
      CHECK(call.x.dtype == DType::f32, "conv2d_backward_weight: direct kernels compute in f32");
      return DirectWeightGradient<float>(call, plan).run();
  }
}

}  // namespace headroom::cpu
