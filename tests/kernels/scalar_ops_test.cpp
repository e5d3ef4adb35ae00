// The elementwise rules against their definitions, and the windows of pooling against a plain loop.
#include "kernels/scalar_ops.h"

#include <gtest/gtest.h>

#include "kernels/pool_window.h"

namespace headroom {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double value(UnaryOp op, double x, double alpha) {
  return dispatch_unary(
      op, [&](auto constant) { return unary_value<decltype(constant)::value>(x, alpha); });
}
double gradient(UnaryOp op, double saved, double alpha, double dy) {
  return dispatch_unary(op, [&](auto constant) {
    return unary_gradient<decltype(constant)::value>(saved, alpha, dy);
  });
}

TEST(ScalarOps, GradientsAreTheSlopesOfTheValues) {
  for (int i = 0; i < kUnaryOpCount; ++i) {
    const UnaryOp op = static_cast<UnaryOp>(i);
    for (const double alpha : {0.3, 2.0, 3.0}) {
      for (const double x : {0.2, 0.9, 1.7}) {
        const double h = 1e-6;
        const double slope = (value(op, x + h, alpha) - value(op, x - h, alpha)) / (2 * h);
        const double saved = unary_saves(op) == UnarySaves::output ? value(op, x, alpha) : x;
        EXPECT_NEAR(gradient(op, saved, alpha, 1.5), 1.5 * slope, 1e-7) << name_of(op);
      }
    }
  }
}

TEST(ScalarOps, NaNPassesThroughEveryUnaryOp) {
  for (int i = 0; i < kUnaryOpCount; ++i) {
    const UnaryOp op = static_cast<UnaryOp>(i);
    EXPECT_TRUE(std::isnan(value(op, kNaN, 3.0))) << name_of(op);
  }
}

TEST(ScalarOps, KinksHaveTheirConventionalSlopes) {
  EXPECT_EQ(gradient(UnaryOp::relu, 0.0, 0, 5.0), 0.0);
  EXPECT_EQ(gradient(UnaryOp::relu, 0.0, 0, INFINITY), 0.0);
  EXPECT_EQ(gradient(UnaryOp::abs, 0.0, 0, 5.0), 0.0);
  EXPECT_EQ(gradient(UnaryOp::leaky_relu, 0.0, 0.1, 5.0), 0.5);
  EXPECT_EQ(gradient(UnaryOp::abs, -3.0, 0, 5.0), -5.0);
  EXPECT_EQ(gradient(UnaryOp::pow_scalar, 0.0, 0.0, 5.0), 0.0);
}

TEST(ScalarOps, SaturatedActivationsStayFinite) {
  EXPECT_EQ(value(UnaryOp::sigmoid, -1000.0, 0), 0.0);
  EXPECT_EQ(value(UnaryOp::sigmoid, 1000.0, 0), 1.0);
  EXPECT_EQ(value(UnaryOp::silu, -1000.0, 0), 0.0);
  EXPECT_EQ(value(UnaryOp::silu, 1000.0, 0), 1000.0);
  EXPECT_EQ(gradient(UnaryOp::silu, 1000.0, 0, 1.0), 1.0);
}

TEST(ScalarOps, MaximaPropagateNaNAndTheFirstOfEqualsStays) {
  const auto maximum = [](double a, double b) { return binary_value<BinaryOp::maximum>(a, b); };
  const auto minimum = [](double a, double b) { return binary_value<BinaryOp::minimum>(a, b); };
  EXPECT_TRUE(std::isnan(maximum(kNaN, 1)) && std::isnan(maximum(1, kNaN)));
  EXPECT_TRUE(std::isnan(minimum(kNaN, 1)) && std::isnan(minimum(1, kNaN)));
  EXPECT_EQ(maximum(2, 3), 3);
  EXPECT_EQ(minimum(2, 3), 2);
  EXPECT_FALSE(beats(3.0, 3.0));
  EXPECT_TRUE(beats(kNaN, 3.0));
  EXPECT_FALSE(beats(kNaN, kNaN));
  EXPECT_FALSE(beats(3.0, kNaN));
}

TEST(ScalarOps, ConversionToIntegersIsDefinedEverywhere) {
  EXPECT_EQ(to_integer<uint8_t>(300.0f), 255);
  EXPECT_EQ(to_integer<uint8_t>(-3.0f), 0);
  EXPECT_EQ(to_integer<uint8_t>(2.9f), 2);
  EXPECT_EQ(to_integer<int64_t>(-2.9), -2);
  EXPECT_EQ(to_integer<int64_t>(kNaN), 0);
  EXPECT_EQ(to_integer<int64_t>(1e30f), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(to_integer<int64_t>(-1e30), std::numeric_limits<int64_t>::min());
}

TEST(ScalarOps, DropoutKeepsAllAtZeroAndNoneAtOne) {
  for (const uint32_t bits : {0u, 1u, 0x80000000u, 0xffffffffu}) {
    EXPECT_TRUE(dropout_keeps(bits, dropout_threshold(0)));
    EXPECT_FALSE(dropout_keeps(bits, dropout_threshold(1)));
  }
  EXPECT_EQ(dropout_scale(1), 0.0);
  EXPECT_EQ(dropout_scale(0), 1.0);
}

TEST(ScalarOps, NormalDrawsAreFiniteForAllWords) {
  for (const uint32_t even : {0u, 0xffu, 0xffffffffu}) {
    for (const uint32_t odd : {0u, 0xffffffffu}) {
      const NormalPair pair = normal_draw(even, odd);
      EXPECT_TRUE(std::isfinite(pair.cosine) && std::isfinite(pair.sine)) << even << " " << odd;
    }
  }
}

TEST(PoolWindow, TapsAndWindowsAgreeWithAPlainLoop) {
  for (int64_t input = 1; input <= 9; ++input) {
    for (int64_t kernel = 1; kernel <= 4; ++kernel) {
      for (int64_t stride = 1; stride <= 3; ++stride) {
        for (int64_t padding = 0; padding <= kernel / 2; ++padding) {
          for (int64_t dilation = 1; dilation <= 3; ++dilation) {
            const PoolAxis axis{input, 6, kernel, stride, padding, dilation};
            for (int64_t out = 0; out < axis.output; ++out) {
              const PoolRange taps = window_taps(axis, out);
              for (int64_t r = 0; r < kernel; ++r) {
                const int64_t in = window_start(axis, out) + r * dilation;
                const bool real = in >= 0 && in < input;
                EXPECT_EQ(real, r >= taps.begin && r < taps.end);
                if (!real) continue;
                const PoolRange windows = windows_over(axis, in);
                EXPECT_TRUE(out >= windows.begin && out < windows.end);
                EXPECT_EQ(tap_at(axis, in, out), r);
              }
            }
            for (int64_t in = 0; in < input; ++in) {
              const PoolRange windows = windows_over(axis, in);
              for (int64_t out = windows.begin; out < windows.end; ++out) {
                EXPECT_LT(tap_at(axis, in, out), kernel);
              }
            }
          }
        }
      }
    }
  }
}

TEST(PoolWindow, OverhangIsNotCountedInAnAverage) {
  // Length 7, kernel 2, stride 3 in ceil mode: the third window holds one real element.
  const PoolAxis axis{7, 3, 2, 3, 0, 1};
  EXPECT_EQ(padded_extent(axis, 0), 2);
  EXPECT_EQ(padded_extent(axis, 2), 1);
  // Padding counts: length 4, kernel 3, stride 2, padding 1.
  const PoolAxis padded{4, 2, 3, 2, 1, 1};
  EXPECT_EQ(padded_extent(padded, 0), 3);
}

}  // namespace
}  // namespace headroom
