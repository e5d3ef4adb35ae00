// Max and average pooling. Both formats share one loop over lanes, the outputs of one window tap
// that are handled side by side: the channels of a pixel in NHWC, the columns of a row in NCHW.
#include <limits>
#include <vector>

#include "core/ops/contract.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"
#include "kernels/pool_window.h"

namespace headroom {
namespace {

using namespace cpu;  // NOLINT: the helpers of this folder

// Sizes and steps of one call. In NHWC a plane is an image and a pixel has c channels; in NCHW a
// plane is one channel of an image and a pixel has one.
struct PoolPlan {
  PoolAxis vertical, horizontal;
  int64_t planes = 0, channels = 1;
  bool channels_last = false;

  int64_t x_row(int64_t plane, int64_t row) const {
    return (plane * vertical.input + row) * horizontal.input * channels;
  }
  int64_t y_row(int64_t plane, int64_t row) const {
    return (plane * vertical.output + row) * horizontal.output * channels;
  }
};

PoolPlan plan_pool(const View& x, const View& y, const Pool2dParams& params, const char* op) {
  CHECK(x.rank() == 4 && y.rank() == 4 && x.format == y.format && x.is_dense() && y.is_dense(), op,
        ": needs dense images of one format, got ", describe(x), " and ", describe(y));
  CHECK(x.dtype == y.dtype, op, ": dtypes ", x.dtype, " and ", y.dtype, " differ");
  CHECK(x.shape[0] == y.shape[0] && x.shape[1] == y.shape[1], op, ": shapes ", x.shape, " and ",
        y.shape, " differ in images or channels");
  PoolPlan plan;
  const auto axis = [&](int i) {
    return PoolAxis{x.shape[2 + i],   y.shape[2 + i],    params.kernel[i],
                    params.stride[i], params.padding[i], params.dilation[i]};
  };
  plan.vertical = axis(0);
  plan.horizontal = axis(1);
  plan.channels_last = x.format == MemoryFormat::channels_last;
  plan.planes = plan.channels_last ? x.shape[0] : x.shape[0] * x.shape[1];
  plan.channels = plan.channels_last ? x.shape[1] : 1;
  return plan;
}

// Lanes of one tap: `count` outputs from `out` on, `out_step` apart, that read inputs from `in` on,
// `in_step` apart. Positions are within a row of y and a row of x.
struct Lanes {
  int64_t out = 0, in = 0, count = 0, in_step = 1;
};

// Calls fn(s, lanes) for the horizontal taps of a row of outputs, in order of the taps for every
// output.
template <class Fn>
void for_each_tap_lanes(const PoolPlan& plan, Fn&& fn) {
  const PoolAxis& axis = plan.horizontal;
  if (plan.channels_last) {
    for (int64_t q = 0; q < axis.output; ++q) {
      const PoolRange taps = window_taps(axis, q);
      for (int64_t s = taps.begin; s < taps.end; ++s) {
        const int64_t column = window_start(axis, q) + s * axis.dilation;
        fn(s, Lanes{q * plan.channels, column * plan.channels, plan.channels, 1});
      }
    }
    return;
  }
  for (int64_t s = 0; s < axis.kernel; ++s) {
    // The outputs whose tap s falls on a real column: 0 <= q * stride + shift < input.
    const int64_t shift = s * axis.dilation - axis.padding;
    const int64_t begin = shift >= 0 ? 0 : (-shift + axis.stride - 1) / axis.stride;
    const int64_t room = axis.input - shift;
    const int64_t end =
        std::min(axis.output, room <= 0 ? 0 : (room + axis.stride - 1) / axis.stride);
    if (begin < end) {
      fn(s, Lanes{begin, begin * axis.stride + shift, end - begin, axis.stride});
    }
  }
}

// Calls fn(begin, end) for ranges of rows in parallel; a row takes the work of `row_work` elements.
template <class Fn>
void for_each_row_range(int64_t rows, int64_t row_work, Fn&& fn) {
  parallel_ranges(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row_work)), fn);
}

// winner[i] = -1 where no tap was seen yet.
template <class C>
void take_maxima(const C* from, int64_t step, int64_t count, int32_t tap, C* best,
                 int32_t* winner) {
  const auto take = [&](int64_t i, C value) {
    const bool wins = winner[i] < 0 || beats(value, best[i]);
    best[i] = wins ? value : best[i];
    winner[i] = wins ? tap : winner[i];
  };
  if (step == 1) {
    for (int64_t i = 0; i < count; ++i) take(i, from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) take(i, from[i * step]);
  }
}

void max_pool2d(const View& x, const Pool2dParams& params, const View& y, const View& offsets) {
  const PoolPlan plan = plan_pool(x, y, params, "max_pool2d");
  const int64_t x_width = plan.horizontal.input * plan.channels;
  const int64_t y_width = plan.horizontal.output * plan.channels;
  const int64_t work = y_width * params.kernel[0] * params.kernel[1];
  dispatch_floating(x.dtype, "max_pool2d", [&](auto tag) {
    using T = decltype(tag);
    using C = compute_t<T>;
    for_each_row_range(plan.planes * plan.vertical.output, work, [&](int64_t begin, int64_t end) {
      std::vector<C> row(std::is_same_v<T, C> ? 0 : x_width), best(y_width);
      std::vector<int32_t> winner(y_width);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t plane = task / plan.vertical.output, p = task % plan.vertical.output;
        std::fill(best.begin(), best.end(), -std::numeric_limits<C>::infinity());
        std::fill(winner.begin(), winner.end(), -1);
        const PoolRange taps = window_taps(plan.vertical, p);
        for (int64_t r = taps.begin; r < taps.end; ++r) {
          const int64_t h = window_start(plan.vertical, p) + r * plan.vertical.dilation;
          const C* from = load_run(x.as<T>() + plan.x_row(plane, h), 1, x_width, row.data());
          for_each_tap_lanes(plan, [&](int64_t s, const Lanes& lanes) {
            take_maxima(from + lanes.in, lanes.in_step, lanes.count,
                        static_cast<int32_t>(r * params.kernel[1] + s), best.data() + lanes.out,
                        winner.data() + lanes.out);
          });
        }
        const int64_t to = plan.y_row(plane, p);
        store_run(best.data(), y_width, y.as<T>() + to, 1);
        if (!offsets.defined) continue;
        for (int64_t i = 0; i < y_width; ++i) winner[i] = std::max(winner[i], 0);
        if (offsets.dtype == DType::u8) {
          store_run(winner.data(), y_width, offsets.as<uint8_t>() + to, 1);
        } else {
          store_run(winner.data(), y_width, offsets.as<int64_t>() + to, 1);
        }
      }
    });
  });
}

// Each row of dx gathers from the windows that cover it, so no two tasks write one element.
// add(p, r, s, lanes, place of the first lane in dy, its gradients, its sums) adds one tap's share.
template <class T, class Add>
void pool_backward(const PoolPlan& plan, const View& dy, const View& dx, int64_t row_work,
                   Add&& add) {
  using C = compute_t<T>;
  const int64_t dx_width = plan.horizontal.input * plan.channels;
  const int64_t dy_width = plan.horizontal.output * plan.channels;
  for_each_row_range(plan.planes * plan.vertical.input, row_work, [&](int64_t begin, int64_t end) {
    std::vector<C> row(std::is_same_v<T, C> ? 0 : dy_width), sums(dx_width);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t plane = task / plan.vertical.input, h = task % plan.vertical.input;
      std::fill(sums.begin(), sums.end(), C(0));
      const PoolRange windows = windows_over(plan.vertical, h);
      for (int64_t p = windows.begin; p < windows.end; ++p) {
        const int64_t r = tap_at(plan.vertical, h, p);
        if (r < 0) continue;
        const int64_t from = plan.y_row(plane, p);
        const C* gradient = load_run(dy.as<T>() + from, 1, dy_width, row.data());
        for_each_tap_lanes(plan, [&](int64_t s, const Lanes& lanes) {
          add(p, r, s, lanes, from + lanes.out, gradient + lanes.out, sums.data() + lanes.in);
        });
      }
      store_run(sums.data(), dx_width, dx.as<T>() + plan.x_row(plane, h), 1);
    }
  });
}

void max_pool2d_backward(const View& dy, const View& offsets, const Pool2dParams& params,
                         const View& dx) {
  const PoolPlan plan = plan_pool(dx, dy, params, "max_pool2d_backward");
  CHECK(offsets.shape == dy.shape, "max_pool2d_backward: offsets ", offsets.shape, " for dy ",
        dy.shape);
  const int64_t work = dx.shape[3] * plan.channels * 2;
  dispatch_floating(dx.dtype, "max_pool2d_backward", [&](auto tag) {
    using T = decltype(tag);
    using C = compute_t<T>;
    const auto run = [&](auto offset_tag) {
      using Offset = decltype(offset_tag);
      pool_backward<T>(plan, dy, dx, work,
                       [&](int64_t, int64_t r, int64_t s, const Lanes& lanes, int64_t from,
                           const C* gradient, C* sums) {
                         const Offset tap = static_cast<Offset>(r * params.kernel[1] + s);
                         const Offset* winner = offsets.as<Offset>() + from;
                         for (int64_t i = 0; i < lanes.count; ++i) {
                           sums[i * lanes.in_step] += winner[i] == tap ? gradient[i] : C(0);
                         }
                       });
    };
    if (offsets.dtype == DType::u8) {
      run(uint8_t{});
    } else {
      run(int64_t{});
    }
  });
}

// The number of elements that window (p, q) averages over.
struct PoolDivisors {
  PoolDivisors(const PoolPlan& plan, bool count_padding) {
    const auto counts = [&](const PoolAxis& axis) {
      std::vector<int64_t> out(axis.output);
      for (int64_t i = 0; i < axis.output; ++i) {
        const PoolRange taps = window_taps(axis, i);
        out[i] = count_padding ? padded_extent(axis, i) : taps.end - taps.begin;
      }
      return out;
    };
    vertical = counts(plan.vertical);
    horizontal = counts(plan.horizontal);
  }
  double at(int64_t p, int64_t q) const {
    return static_cast<double>(std::max<int64_t>(1, vertical[p] * horizontal[q]));
  }
  std::vector<int64_t> vertical, horizontal;
};

void avg_pool2d(const View& x, const Pool2dParams& params, const View& y) {
  const PoolPlan plan = plan_pool(x, y, params, "avg_pool2d");
  const PoolDivisors divisors(plan, params.count_padding);
  const int64_t x_width = plan.horizontal.input * plan.channels;
  const int64_t y_width = plan.horizontal.output * plan.channels;
  const int64_t work = y_width * params.kernel[0] * params.kernel[1];
  dispatch_floating(x.dtype, "avg_pool2d", [&](auto tag) {
    using T = decltype(tag);
    using C = compute_t<T>;
    for_each_row_range(plan.planes * plan.vertical.output, work, [&](int64_t begin, int64_t end) {
      std::vector<C> row(std::is_same_v<T, C> ? 0 : x_width), sums(y_width);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t plane = task / plan.vertical.output, p = task % plan.vertical.output;
        std::fill(sums.begin(), sums.end(), C(0));
        const PoolRange taps = window_taps(plan.vertical, p);
        for (int64_t r = taps.begin; r < taps.end; ++r) {
          const int64_t h = window_start(plan.vertical, p) + r;
          const C* from = load_run(x.as<T>() + plan.x_row(plane, h), 1, x_width, row.data());
          for_each_tap_lanes(plan, [&](int64_t, const Lanes& lanes) {
            C* to = sums.data() + lanes.out;
            for (int64_t i = 0; i < lanes.count; ++i) to[i] += from[lanes.in + i * lanes.in_step];
          });
        }
        for (int64_t q = 0; q < plan.horizontal.output; ++q) {
          const C divisor = static_cast<C>(divisors.at(p, q));
          C* to = sums.data() + q * plan.channels;
          for (int64_t c = 0; c < plan.channels; ++c) to[c] /= divisor;
        }
        store_run(sums.data(), y_width, y.as<T>() + plan.y_row(plane, p), 1);
      }
    });
  });
}

void avg_pool2d_backward(const View& dy, const Pool2dParams& params, const View& dx) {
  const PoolPlan plan = plan_pool(dx, dy, params, "avg_pool2d_backward");
  const PoolDivisors divisors(plan, params.count_padding);
  const int64_t work = dx.shape[3] * plan.channels * 2;
  dispatch_floating(dx.dtype, "avg_pool2d_backward", [&](auto tag) {
    using T = decltype(tag);
    using C = compute_t<T>;
    pool_backward<T>(
        plan, dy, dx, work,
        [&](int64_t p, int64_t, int64_t, const Lanes& lanes, int64_t, const C* gradient, C* sums) {
          if (plan.channels_last) {
            const C divisor = static_cast<C>(divisors.at(p, lanes.out / plan.channels));
            for (int64_t i = 0; i < lanes.count; ++i) sums[i] += gradient[i] / divisor;
          } else {
            for (int64_t i = 0; i < lanes.count; ++i) {
              sums[i * lanes.in_step] +=
                  gradient[i] / static_cast<C>(divisors.at(p, lanes.out + i));
            }
          }
        });
  });
}

}  // namespace

void register_cpu_pool_kernels() {
  slots::max_pool2d.set(DeviceType::cpu, &max_pool2d);
  slots::max_pool2d_backward.set(DeviceType::cpu, &max_pool2d_backward);
  slots::avg_pool2d.set(DeviceType::cpu, &avg_pool2d);
  slots::avg_pool2d_backward.set(DeviceType::cpu, &avg_pool2d_backward);
}

}  // namespace headroom
