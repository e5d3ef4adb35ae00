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

// 32 bytes of numbers, loaded from anywhere.
template <class Sum>
struct Registers;
template <>
struct Registers<float> {
  using type = float __attribute__((vector_size(32), aligned(4), may_alias));
};
template <>
struct Registers<double> {
  using type = double __attribute__((vector_size(32), aligned(8), may_alias));
};

// Two operands that are multiplied: a pixel and the weights, or the gradient, that it meets.
template <class T, class U>
struct Pair {
  const T* pixel;
  const U* other;
};

// sum[c] += pixel[c] * other[c] over all pairs, for `count` channels, at most kTile, from
// `channel`.
template <class T, class U>
void add_products(const std::vector<Pair<T, U>>& pairs, int64_t channel, int64_t count,
                  compute_t<T>* sum) {
  using Sum = compute_t<T>;
  Sum x_buffer[kTile], y_buffer[kTile];
  if (count < kTile) {
    for (const Pair<T, U>& pair : pairs) {
      const Sum* x = in_compute_type(pair.pixel + channel, x_buffer, count);
      const Sum* y = in_compute_type(pair.other + channel, y_buffer, count);
      for (int64_t c = 0; c < count; ++c) sum[c] += x[c] * y[c];
    }
    return;
  }
  // Registers by name: left to itself, the compiler interleaves the pairs and gives up on vectors.
  using Register = typename Registers<Sum>::type;
  constexpr int64_t kLanes = sizeof(Register) / sizeof(Sum);
  Register total[kTile / kLanes];
  for (int64_t v = 0; v < kTile / kLanes; ++v) {
    total[v] = *reinterpret_cast<const Register*>(sum + v * kLanes);
  }
  for (const Pair<T, U>& pair : pairs) {
    const Sum* x = in_compute_type(pair.pixel + channel, x_buffer, kTile);
    const Sum* y = in_compute_type(pair.other + channel, y_buffer, kTile);
    for (int64_t v = 0; v < kTile / kLanes; ++v) {
      total[v] += *reinterpret_cast<const Register*>(x + v * kLanes) *
                  *reinterpret_cast<const Register*>(y + v * kLanes);
    }
  }
  for (int64_t v = 0; v < kTile / kLanes; ++v) {
    *reinterpret_cast<Register*>(sum + v * kLanes) = total[v];
  }
}

// Row h of image n of the source, or nullptr outside.
template <class T>
const T* source_row(const T* source, int64_t channels, const PixelGrid& grid, int64_t n,
                    int64_t h) {
  if (h < 0 || h >= grid.source_height) return nullptr;
  return source + (n * grid.source_height + h) * grid.source_width * channels;
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
      std::vector<Pair<T, Sum>> pairs;
      Sum sum[kTile];
      for (int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; ++row) {
        const int64_t i = row % grid.height, n = row / grid.height;
        T* out = call.output.as<T>() + grid.output_pixel(row * grid.width) * channels;
        for (int64_t j = 0; j < grid.width; ++j, out += grid.spacing_w * channels) {
          pairs.clear();
          for (const Tap& tap : grid.taps) {
            const T* line = source_row(call.source.as<const T>(), channels, grid, n,
                                       i * grid.step_h + tap.offset_h);
            const int64_t w = j * grid.step_w + tap.offset_w;
            if (line == nullptr || w < 0 || w >= grid.source_width) continue;
            pairs.push_back({line + w * channels, weight + tap.index * channels});
          }
          for (int64_t c = 0; c < channels; c += kTile) {
            const int64_t count = std::min(kTile, channels - c);
            for (int64_t k = 0; k < count; ++k) {
              sum[k] = call.bias ? element_of<Sum>(call.bias, c + k) : Sum(0);
            }
            add_products(pairs, c, count, sum);
            convert_run(sum, out + c, count);
          }
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
    std::vector<Pair<T, T>> pairs;
    const int64_t end = rows * (split + 1) / plan.splits;
    for (int64_t row = rows * split / plan.splits; row < end; ++row) {
      const int64_t i = row % grid.height, n = row / grid.height;
      const T* dy = call.dy.as<const T>() + row * grid.width * channels;
      for (int64_t t = 0; t < taps; ++t) {
        const Tap& tap = grid.taps[t];
        const T* line =
            source_row(call.x.as<const T>(), channels, grid, n, i * grid.step_h + tap.offset_h);
        if (line == nullptr) continue;
        pairs.clear();
        for (int64_t j = 0; j < grid.width; ++j) {
          const int64_t w = j * grid.step_w + tap.offset_w;
          if (w < 0 || w >= grid.source_width) continue;
          pairs.push_back({line + w * channels, dy + j * channels});
        }
        for (int64_t c = 0; c < channels; c += kTile) {
          add_products(pairs, c, std::min(kTile, channels - c), partial + t * channels + c);
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
