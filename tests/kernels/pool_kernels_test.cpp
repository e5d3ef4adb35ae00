// Contract of max_pool2d, avg_pool2d and their backwards.
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class PoolKernels : public KernelTest {};
HEADROOM_ON_EACH_DEVICE(PoolKernels);

struct PoolCase {
  Shape x, y;
  Pool2dParams params;
};

// Outputs as the ops compute them: floor and ceil mode, padding, dilation, overhang, odd channels.
std::vector<PoolCase> pool_cases() {
  return {
      {{2, 3, 8, 8}, {2, 3, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}}},
      {{2, 9, 7, 11}, {2, 9, 4, 6}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
      {{1, 5, 9, 6}, {1, 5, 5, 4}, {.kernel = {2, 3}, .stride = {2, 1}, .padding = {1, 0}}},
      {{1, 2, 7, 7}, {1, 2, 3, 3}, {.kernel = {2, 2}, .stride = {3, 3}}},  // ceil mode
      {{2, 4, 5, 5}, {2, 4, 3, 3}, {.kernel = {2, 2}, .stride = {2, 2}, .padding = {1, 1}}},
      {{3, 17, 4, 4}, {3, 17, 1, 1}, {.kernel = {4, 4}, .stride = {4, 4}}},
      {{1, 1, 6, 7}, {1, 1, 3, 4}, {.kernel = {1, 1}, .stride = {2, 2}}},
      {{1, 20, 20, 33}, {1, 20, 5, 17}, {.kernel = {17, 17}, .stride = {1, 1}, .padding = {0, 0}}},
      {{0, 3, 8, 8}, {0, 3, 4, 4}, {.kernel = {2, 2}, .stride = {2, 2}}},
  };
}

std::vector<PoolCase> dilated_cases() {
  std::vector<PoolCase> out = pool_cases();
  out.push_back({{2, 3, 9, 10},
                 {2, 3, 5, 4},
                 {.kernel = {3, 2}, .stride = {1, 2}, .padding = {0, 0}, .dilation = {2, 3}}});
  out.push_back({{1, 8, 7, 7},
                 {1, 8, 3, 3},
                 {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .dilation = {2, 2}}});
  return out;
}

// Calls fn(output index, input index, tap number) for the real taps of every window, in order.
template <class Fn>
void for_each_tap(const PoolCase& item, Fn&& fn) {
  const Shape &x = item.x, &y = item.y;
  const Pool2dParams& params = item.params;
  for (int64_t image = 0; image < y[0] * y[1]; ++image) {
    for (int64_t p = 0; p < y[2]; ++p) {
      for (int64_t q = 0; q < y[3]; ++q) {
        for (int64_t r = 0; r < params.kernel[0]; ++r) {
          for (int64_t s = 0; s < params.kernel[1]; ++s) {
            const int64_t h = p * params.stride[0] - params.padding[0] + r * params.dilation[0];
            const int64_t w = q * params.stride[1] - params.padding[1] + s * params.dilation[1];
            if (h < 0 || h >= x[2] || w < 0 || w >= x[3]) continue;
            fn(static_cast<size_t>((image * y[2] + p) * y[3] + q),
               static_cast<size_t>((image * x[2] + h) * x[3] + w), r * params.kernel[1] + s);
          }
        }
      }
    }
  }
}

TEST_P(PoolKernels, MaximaAndTheirPlacesMatchAPlainLoop) {
  for (const PoolCase& item : dilated_cases()) {
    for (const MemoryFormat format : kFormats) {
      for (const DType dtype : dtypes()) {
        // Few distinct values, so that ties are common.
        Values values = test_values(numel_of(item.x), -4, 4);
        for (double& value : values) value = std::round(value);
        const Tensor x = tensor(values, item.x, dtype, format);
        const bool small = item.params.kernel[0] * item.params.kernel[1] <= 255;
        const Tensor y = uninitialised(item.y, dtype, format);
        const Tensor offsets = uninitialised(item.y, small ? DType::u8 : DType::i64, format);
        slots::max_pool2d(x, item.params, y, offsets);
        Values best(static_cast<size_t>(numel_of(item.y)), -INFINITY), place(best.size(), 0);
        std::vector<size_t> winner(best.size(), 0);
        for_each_tap(item, [&](size_t out, size_t in, int64_t tap) {
          if (values[in] > best[out]) {
            best[out] = values[in];
            place[out] = static_cast<double>(tap);
            winner[out] = in;
          }
        });
        EXPECT_EQ(values_of(y), best) << x.describe();
        EXPECT_EQ(values_of(offsets), place) << x.describe();

        const Tensor without = uninitialised(item.y, dtype, format);
        slots::max_pool2d(x, item.params, without, View{});
        EXPECT_EQ(values_of(without), best);

        const Tensor dy = tensor(test_values(numel_of(item.y), -1, 1, 2), item.y, dtype, format);
        const Tensor dx = uninitialised(item.x, dtype, format);
        slots::max_pool2d_backward(dy, offsets, item.params, dx);
        Values expected(values.size(), 0);
        const Values gradient = values_of(dy);
        for (size_t i = 0; i < gradient.size(); ++i) expected[winner[i]] += gradient[i];
        expect_near(dx, expected, 2, 8);
      }
    }
  }
}

TEST_P(PoolKernels, PaddingNeverWinsAMaximum) {
  const Pool2dParams params{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  for (const MemoryFormat format : kFormats) {
    for (const double value : {-5.0, -static_cast<double>(INFINITY)}) {
      const Tensor x = full({1, 1, 4, 4}, value, {DType::f32, device(), format});
      const Tensor y = uninitialised({1, 1, 2, 2}, DType::f32, format);
      const Tensor offsets = uninitialised({1, 1, 2, 2}, DType::u8, format);
      slots::max_pool2d(x, params, y, offsets);
      EXPECT_EQ(values_of(y), Values(4, value));
      // The first real element of each window, never one of the padding.
      EXPECT_EQ(values_of(offsets), (Values{4, 3, 1, 0}));
    }
  }
}

TEST_P(PoolKernels, TheFirstOfEqualsTakesTheGradientAndNaNBeatsAll) {
  const Pool2dParams params{.kernel = {2, 2}, .stride = {2, 2}};
  for (const MemoryFormat format : kFormats) {
    const Tensor x = tensor({0, 0, 1, NAN, 0, 0, 5, 6}, {1, 1, 2, 4}, DType::f32, format);
    const Tensor y = uninitialised({1, 1, 1, 2}, DType::f32, format);
    const Tensor offsets = uninitialised({1, 1, 1, 2}, DType::u8, format);
    slots::max_pool2d(x, params, y, offsets);
    expect_near(y, {0, NAN});
    const Tensor dy = tensor({1, 10}, {1, 1, 1, 2}, DType::f32, format);
    const Tensor dx = uninitialised({1, 1, 2, 4}, DType::f32, format);
    slots::max_pool2d_backward(dy, offsets, params, dx);
    EXPECT_EQ(values_of(dx), (Values{1, 0, 0, 10, 0, 0, 0, 0}));
  }
}

Values divisors(const PoolCase& item) {
  const Pool2dParams& params = item.params;
  Values out(static_cast<size_t>(numel_of(item.y)), 0);
  if (!params.count_padding) {
    for_each_tap(item, [&](size_t to, size_t, int64_t) { out[to] += 1; });
    return out;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t q = static_cast<int64_t>(i) % item.y[3];
    const int64_t p = static_cast<int64_t>(i) / item.y[3] % item.y[2];
    const auto extent = [&](int64_t at, int axis) {
      const int64_t start = at * params.stride[axis] - params.padding[axis];
      return std::min(start + params.kernel[axis], item.x[axis + 2] + params.padding[axis]) - start;
    };
    out[i] = static_cast<double>(extent(p, 0) * extent(q, 1));
  }
  return out;
}

TEST_P(PoolKernels, AveragesMatchAPlainLoop) {
  for (PoolCase item : pool_cases()) {
    for (const bool count_padding : {true, false}) {
      item.params.count_padding = count_padding;
      const Values divisor = divisors(item);
      for (const MemoryFormat format : kFormats) {
        for (const DType dtype : dtypes()) {
          const Tensor x = tensor(test_values(numel_of(item.x)), item.x, dtype, format);
          const Tensor y = uninitialised(item.y, dtype, format);
          slots::avg_pool2d(x, item.params, y);
          const Values values = values_of(x);
          Values expected(divisor.size(), 0);
          for_each_tap(item, [&](size_t out, size_t in, int64_t) {
            expected[out] += values[in] / divisor[out];
          });
          expect_near(y, expected, 2, 20);

          const Tensor dy = tensor(test_values(numel_of(item.y), -1, 1, 2), item.y, dtype, format);
          const Tensor dx = uninitialised(item.x, dtype, format);
          slots::avg_pool2d_backward(dy, item.params, dx);
          const Values gradient = values_of(dy);
          Values spread(values.size(), 0);
          for_each_tap(item, [&](size_t out, size_t in, int64_t) {
            spread[in] += gradient[out] / divisor[out];
          });
          expect_near(dx, spread, 2, 4);
        }
      }
    }
  }
}

TEST_P(PoolKernels, CeilModeDoesNotAverageWhatOverhangs) {
  Values values(49);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  for (const MemoryFormat format : kFormats) {
    const Tensor x = tensor(values, {1, 1, 7, 7}, DType::f32, format);
    const Tensor y = uninitialised({1, 1, 3, 3}, DType::f32, format);
    slots::avg_pool2d(x, {.kernel = {2, 2}, .stride = {3, 3}}, y);
    EXPECT_EQ(values_of(y), (Values{4, 7, 9.5, 25, 28, 30.5, 42.5, 45.5, 48}));
  }
}

}  // namespace
}  // namespace headroom
