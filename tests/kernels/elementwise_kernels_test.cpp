// Contract of copy, fill, unary, unary_backward and binary.
#include <cstring>

#include "kernels/scalar_ops.h"
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class ElementwiseKernels : public KernelTest {};
HEADROOM_ON_EACH_DEVICE(ElementwiseKernels);

constexpr DType kAllDTypes[] = {DType::f16, DType::bf16, DType::f32,
                                DType::f64, DType::i64,  DType::u8};

TEST_P(ElementwiseKernels, CopyConvertsBetweenAllTypes) {
  const Values values = {0, 1, 2, 3.75, 100.5, 255};
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      if (device().is_cuda() && (from == DType::f64 || to == DType::f64)) continue;
      const Tensor x = tensor(values, {2, 3}, from);
      const Tensor y = uninitialised({2, 3}, to);
      slots::copy(x, y);
      Values expected = values_of(x);
      if (!is_floating(to)) {
        for (double& value : expected) value = std::trunc(value);
      }
      expect_near(y, expected, 1);
    }
  }
}

TEST_P(ElementwiseKernels, CopyOfEveryHalfIsExactBothWays) {
  std::vector<Half> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i].bits = static_cast<uint16_t>(i);
  const Shape shape{65536};
  const Tensor x = from_vector(halves, shape, {DType::f16, device()});
  const Tensor wide = uninitialised(shape, DType::f32), back = uninitialised(shape, DType::f16);
  slots::copy(x, wide);
  slots::copy(wide, back);
  const std::vector<float> floats = wide.to_vector<float>();
  const std::vector<Half> round_trip = back.to_vector<Half>();
  for (size_t i = 0; i < halves.size(); ++i) {
    const float expected = static_cast<float>(halves[i]);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(floats[i]) && std::isnan(static_cast<float>(round_trip[i]))) << i;
    } else {
      ASSERT_EQ(floats[i], expected) << i;
      ASSERT_EQ(round_trip[i].bits, halves[i].bits) << i;
    }
  }
}

TEST_P(ElementwiseKernels, ConversionToHalfRoundsToNearestEven) {
  // 19 values: more than one vector of conversions, and a tail.
  const Values values = {2049,      2051, 65519, 65520,   -65520,  1e-8, 0x1p-25,
                         0x1.8p-25, 1.0,  -2049, 2050.5,  0x1p-24, 3e-8, 70000,
                         -1e-8,     0.1,  -0.3,  5.96e-8, 65504.0};
  const Shape shape{static_cast<int64_t>(values.size())};
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor x = tensor(values, shape), y = uninitialised(shape, dtype);
    slots::copy(x, y);
    const std::vector<float> exact = x.to_vector<float>();
    const Values stored = values_of(y);
    for (size_t i = 0; i < exact.size(); ++i) {
      const float expected = dtype == DType::f16 ? static_cast<float>(Half(exact[i]))
                                                 : static_cast<float>(BFloat16(exact[i]));
      EXPECT_EQ(stored[i], static_cast<double>(expected)) << exact[i] << " as " << dtype;
    }
  }
}

TEST_P(ElementwiseKernels, CopyChangesLayoutsOfOddSizes) {
  for (const DType dtype : {DType::u8, DType::f16, DType::f32, DType::i64}) {
    for (const Shape& shape : {Shape{2, 19, 11, 13}, Shape{1, 3, 40, 40}, Shape{3, 65, 8, 9},
                               Shape{1, 1, 1, 1}, Shape{0, 3, 4, 4}, Shape{2, 64, 32, 32}}) {
      Values values(static_cast<size_t>(numel_of(shape)));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 251);
      const Tensor nchw = tensor(values, shape, dtype);
      const Tensor nhwc = uninitialised(shape, dtype, MemoryFormat::channels_last);
      const Tensor back = uninitialised(shape, dtype);
      slots::copy(nchw, nhwc);
      slots::copy(nhwc, back);
      EXPECT_EQ(values_of(back), values) << shape;
      // The memory itself, channel by channel.
      if (!device().is_cpu() || dtype != DType::f32) continue;
      const int64_t c = shape[1], h = shape[2], w = shape[3];
      const float* stored = nhwc.view().as<float>();
      for (int64_t i = 0; i < nhwc.numel(); ++i) {
        const int64_t channel = i % c, column = i / c % w, row = i / c / w % h, n = i / c / w / h;
        const int64_t logical = ((n * c + channel) * h + row) * w + column;
        ASSERT_EQ(stored[i], static_cast<float>(values[static_cast<size_t>(logical)])) << shape;
      }
    }
  }
}

TEST_P(ElementwiseKernels, CopyReadsAndWritesStridedAndBroadcastViews) {
  const Tensor storage = tensor(test_values(200), {200});
  const Values stored = values_of(storage);
  const Tensor target = tensor(Values(300, -9), {300});
  const Tensor x = strided(storage, {4, 3, 5}, {20, 0, 2}, 3);
  const Tensor y = strided(target, {4, 3, 5}, {2, 90, 17}, 1);
  slots::copy(x, y);
  Values expected(300, -9);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      for (size_t k = 0; k < 5; ++k)
        expected[1 + i * 2 + j * 90 + k * 17] = stored[3 + i * 20 + k * 2];
    }
  }
  EXPECT_EQ(values_of(target), expected);
}

TEST_P(ElementwiseKernels, CopyIsExactForLargeIntegers) {
  const std::vector<int64_t> values = {INT64_MAX, INT64_MIN, (int64_t{1} << 53) + 1};
  const Tensor x = integers(values, {3});
  const Tensor y = uninitialised({3}, DType::i64);
  slots::copy(x, y);
  EXPECT_EQ(y.to_vector<int64_t>(), values);
}

TEST_P(ElementwiseKernels, FillWritesItsViewAlone) {
  for (const DType dtype : kAllDTypes) {
    if (device().is_cuda() && dtype == DType::f64) continue;
    const Tensor target = tensor(Values(70, 1), {70}, dtype);
    slots::fill(7, strided(target, {5, 4}, {12, 3}, 2));
    const Values values = values_of(target);
    for (int64_t i = 0; i < 70; ++i) {
      const int64_t at = i - 2;
      const bool inside = at >= 0 && at % 12 % 3 == 0 && at / 12 < 5 && at % 12 / 3 < 4;
      EXPECT_EQ(values[static_cast<size_t>(i)], inside ? 7 : 1) << dtype << " at " << i;
    }
  }
}

Values reference_unary(UnaryOp op, double alpha, const Values& x) {
  Values out;
  for (const double value : x) {
    out.push_back(dispatch_unary(
        op, [&](auto constant) { return unary_value<decltype(constant)::value>(value, alpha); }));
  }
  return out;
}

// Domains where each op's conditioning leaves a few units of error.
double lowest_of(UnaryOp op) {
  const bool positive = op == UnaryOp::log || op == UnaryOp::sqrt || op == UnaryOp::pow_scalar;
  return positive ? 0.5 : -3;
}

TEST_P(ElementwiseKernels, UnaryOpsMatchTheirDefinitions) {
  for (int i = 0; i < kUnaryOpCount; ++i) {
    const UnaryOp op = static_cast<UnaryOp>(i);
    for (const DType dtype : dtypes()) {
      for (const int64_t count : {0, 1, 7, 1025, 70001}) {
        const Tensor x = tensor(test_values(count, lowest_of(op), 3), {count}, dtype);
        const Tensor y = uninitialised({count}, dtype);
        slots::unary(op, 0.25, x, y);
        expect_near(y, reference_unary(op, 0.25, values_of(x)), 4, 1);
      }
    }
  }
}

TEST_P(ElementwiseKernels, UnaryGradientsMatchTheirDefinitions) {
  for (int i = 0; i < kUnaryOpCount; ++i) {
    const UnaryOp op = static_cast<UnaryOp>(i);
    for (const DType dtype : dtypes()) {
      const int64_t count = 1100;
      const Tensor saved = tensor(test_values(count, 0.1, 0.9), {count}, dtype);
      const Tensor dy = tensor(test_values(count, -1, 1, 2), {count}, dtype);
      const Tensor dx = uninitialised({count}, dtype);
      const bool nothing = unary_saves(op) == UnarySaves::nothing;
      slots::unary_backward(op, 0.25, nothing ? View{} : saved.view(), dy, dx);
      const Values kept = values_of(saved), gradient = values_of(dy);
      Values expected;
      for (size_t j = 0; j < kept.size(); ++j) {
        expected.push_back(dispatch_unary(op, [&](auto constant) {
          return unary_gradient<decltype(constant)::value>(kept[j], 0.25, gradient[j]);
        }));
      }
      expect_near(dx, expected, 4, 1);
    }
  }
}

TEST_P(ElementwiseKernels, UnaryWorksInPlaceAndAcrossLayouts) {
  const Shape shape{2, 5, 3, 7};
  const Tensor x = tensor(test_values(210), shape);
  const Values expected = reference_unary(UnaryOp::relu, 0, values_of(x));
  const Tensor y = uninitialised(shape, DType::f32, MemoryFormat::channels_last);
  slots::unary(UnaryOp::relu, 0, x, y);
  EXPECT_EQ(values_of(y), expected);
  slots::unary(UnaryOp::relu, 0, x, x);
  EXPECT_EQ(values_of(x), expected);
  const Tensor dy = tensor(test_values(210, -1, 1, 3), shape);
  Values gradient = values_of(dy);
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = expected[i] > 0 ? gradient[i] : 0;
  slots::unary_backward(UnaryOp::relu, 0, y, dy, dy);
  EXPECT_EQ(values_of(dy), gradient);
}

TEST_P(ElementwiseKernels, ReluKeepsNaN) {
  const Tensor x = tensor({NAN, -1, 2}, {3});
  slots::unary(UnaryOp::relu, 0, x, x);
  expect_near(x, {NAN, 0, 2});
}

double reference_binary(BinaryOp op, double a, double b) {
  return dispatch_binary(
      op, [&](auto constant) { return binary_value<decltype(constant)::value>(a, b); });
}

constexpr BinaryOp kBinaryOps[] = {BinaryOp::add, BinaryOp::sub,     BinaryOp::mul,
                                   BinaryOp::div, BinaryOp::maximum, BinaryOp::minimum};

TEST_P(ElementwiseKernels, BinaryOpsMixTypes) {
  for (const BinaryOp op : kBinaryOps) {
    for (const DType left : dtypes()) {
      for (const DType right : dtypes()) {
        for (const DType result : dtypes()) {
          const int64_t count = 1030;
          const Tensor a = tensor(test_values(count), {count}, left);
          const Tensor b = tensor(test_values(count, 0.5, 2, 2), {count}, right);
          const Tensor y = uninitialised({count}, result);
          slots::binary(op, a, b, y);
          const Values a_values = values_of(a), b_values = values_of(b);
          Values expected;
          for (size_t i = 0; i < a_values.size(); ++i) {
            expected.push_back(reference_binary(op, a_values[i], b_values[i]));
          }
          expect_near(y, expected, 2, 1);
        }
      }
    }
  }
}

TEST_P(ElementwiseKernels, BinaryBroadcastsThroughZeroStrides) {
  for (const MemoryFormat format : kFormats) {
    const Shape shape{3, 6, 5, 4};
    const Tensor a = tensor(test_values(360), shape, DType::f32, format);
    const Tensor bias = tensor(test_values(6, -1, 1, 2), {6}, DType::f16);
    const Tensor b = strided(bias, shape, {0, 1, 0, 0});
    const Tensor y = uninitialised(shape, DType::f32, format);
    slots::binary(BinaryOp::add, a, b, y);
    const Values bias_values = values_of(bias);
    Values expected = values_of(a);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias_values[i / 20 % 6];
    expect_near(y, expected, 1, 1);
    slots::binary(BinaryOp::add, a, b, a);
    expect_near(a, expected, 1, 1);
    slots::binary(BinaryOp::mul, a, a, a);
    for (double& value : expected) value *= value;
    expect_near(a, expected, 4, 1);
  }
}

TEST_P(ElementwiseKernels, AScalarIsAView) {
  const Tensor a = tensor({3}, {}), b = tensor({4}, {}), y = uninitialised({});
  slots::binary(BinaryOp::mul, a, b, y);
  EXPECT_EQ(y.item(), 12);
}

}  // namespace
}  // namespace headroom
