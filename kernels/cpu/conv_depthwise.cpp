// Depthwise convolution (one channel in and out per group): a product per channel, vectorised over
// the channels that lie side by side in memory.
#include <algorithm>
#include <vector>

#include "core/base/parallel.h"
#include "kernels/cpu/conv_gather.h"
#include "kernels/cpu/conv_kernels.h"
#include "kernels/cpu/half_convert.h"
#include "kernels/cpu/matmul_block.h"

namespace headroom::cpu {
namespace {

// Channels summed together: four vector registers of f32.
constexpr int64_t kTile = 32;

// The source pixel that a tap reaches from grid pixel (n, i, j), or nullptr outside the image.
template <class T>
const T* reached(const T* source, int64_t channels, const PixelGrid& grid, const Tap& tap,
                 int64_t n, int64_t i, int64_t j) {
  const int64_t h = i * grid.step_h + tap.offset_h, w = j * grid.step_w + tap.offset_w;
  if (h < 0 || h >= grid.source_height || w < 0 || w >= grid.source_width) return nullptr;
  return source + ((n * grid.source_height + h) * grid.source_width + w) * channels;
}

// The values at `from`, converted into `buffer` if they are not of the computing type.
template <class T>
const compute_t<T>* in_compute_type(const T* from, compute_t<T>* buffer, int64_t count) {
  if constexpr (std::is_same_v<T, compute_t<T>>) {
    return from;
  } else {
    convert_run(from, buffer, count);
    return buffer;
  }
}

template <class Sum>
void add_products(const Sum* a, const Sum* b, Sum* sum, int64_t count) {
  if (count == kTile) {
    for (int64_t c = 0; c < kTile; ++c) sum[c] += a[c] * b[c];
  } else {
    for (int64_t c = 0; c < count; ++c) sum[c] += a[c] * b[c];
  }
}

template <class T>
void run_depthwise(const ConvCall& call, const ConvPlan& plan) {
  using Sum = compute_t<T>;
  const int64_t channels = call.source.shape[1];
  const int64_t taps = call.weight.shape[2] * call.weight.shape[3];
  // The weight as [tap][channel].
  Sum* weight = reinterpret_cast<Sum*>(call.workspace);
  const T* stored = call.weight.as<const T>();
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t t = 0; t < taps; ++t) {
      weight[t * channels + c] = static_cast<Sum>(stored[c * taps + t]);
    }
  }
  std::vector<PixelGrid> grids;
  if (call.forward()) {
    grids.push_back(forward_grid(call.source, call.weight, call.output, call.params));
  } else {
    grids = backward_grids(call.output, call.weight, call.source, call.params);
  }
  for (const PixelGrid& grid : grids) {
    const int64_t rows = grid.images * grid.height;
    const int64_t tasks = std::min(plan.tasks, rows);
    parallel_for(tasks, [&](int64_t task) {
      Sum sum[kTile], buffer[kTile];
      const int64_t begin = rows * task / tasks * grid.width;
      const int64_t end = rows * (task + 1) / tasks * grid.width;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t j = row % grid.width, i = row / grid.width % grid.height;
        const int64_t n = row / grid.width / grid.height;
        T* out = call.output.as<T>() + grid.output_pixel(row) * channels;
        for (int64_t c = 0; c < channels; c += kTile) {
          const int64_t count = std::min(kTile, channels - c);
          for (int64_t k = 0; k < count; ++k) {
            sum[k] = call.bias ? element_of<Sum>(call.bias, c + k) : Sum(0);
          }
          for (const Tap& tap : grid.taps) {
            const T* from = reached(call.source.as<const T>(), channels, grid, tap, n, i, j);
            if (from == nullptr) continue;
            add_products(in_compute_type(from + c, buffer, count),
                         weight + tap.index * channels + c, sum, count);
          }
          convert_run(sum, out + c, count);
        }
      }
    });
  }
}

template <class T>
void run_weight_depthwise(const ConvWeightCall& call, const ConvWeightPlan& plan) {
  using Sum = compute_t<T>;
  const PixelGrid grid = forward_grid(call.x, call.dw, call.dy, call.params);
  const int64_t channels = call.x.shape[1];
  const int64_t taps = static_cast<int64_t>(grid.taps.size());
  const int64_t rows = grid.images * grid.height;
  Sum* partials = reinterpret_cast<Sum*>(call.workspace);  // [split][tap][channel]
  parallel_for(plan.splits, [&](int64_t split) {
    Sum* partial = partials + split * taps * channels;
    std::fill_n(partial, taps * channels, Sum(0));
    Sum sum[kTile], x_buffer[kTile], dy_buffer[kTile];
    const int64_t end = rows * (split + 1) / plan.splits;
    for (int64_t row = rows * split / plan.splits; row < end; ++row) {
      const int64_t i = row % grid.height, n = row / grid.height;
      const T* dy = call.dy.as<const T>() + row * grid.width * channels;
      for (int64_t t = 0; t < taps; ++t) {
        for (int64_t c = 0; c < channels; c += kTile) {
          const int64_t count = std::min(kTile, channels - c);
          std::fill_n(sum, kTile, Sum(0));
          for (int64_t j = 0; j < grid.width; ++j) {
            const T* from = reached(call.x.as<const T>(), channels, grid, grid.taps[t], n, i, j);
            if (from == nullptr) continue;
            add_products(in_compute_type(from + c, x_buffer, count),
                         in_compute_type(dy + j * channels + c, dy_buffer, count), sum, count);
          }
          for (int64_t k = 0; k < count; ++k) partial[t * channels + c + k] += sum[k];
        }
      }
    }
  });
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t t = 0; t < taps; ++t) {
      Sum sum = 0;
      for (int64_t split = 0; split < plan.splits; ++split) {
        sum += partials[(split * taps + t) * channels + c];
      }
      if (call.dw.dtype == dtype_of<Sum>()) {
        call.dw.as<Sum>()[c * taps + t] = sum;
      } else {
        call.dw.as<T>()[c * taps + t] = static_cast<T>(sum);
      }
    }
  }
}

}  // namespace

void conv_depthwise(const ConvCall& call, const ConvPlan& plan) {
  dispatch_floating(call.source.dtype, "conv2d",
                    [&](auto tag) { run_depthwise<decltype(tag)>(call, plan); });
}

void conv_weight_depthwise(const ConvWeightCall& call, const ConvWeightPlan& plan) {
  dispatch_floating(call.x.dtype, "conv2d_backward_weight",
                    [&](auto tag) { run_weight_depthwise<decltype(tag)>(call, plan); });
}

}  // namespace headroom::cpu
