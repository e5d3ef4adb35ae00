// The index arithmetic of CUDA's native convolutions, on the host.
#include "kernels/cuda/conv_native_shape.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <tuple>

namespace headroom::cuda {
namespace {

struct Axis {
  int inputs, kernel, stride, padding, dilation;
  int outputs() const { return (inputs + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1; }
};

const Axis kAxes[] = {
    {9, 3, 1, 1, 1},  {10, 3, 2, 1, 1}, {11, 7, 2, 3, 1}, {8, 1, 2, 0, 1},  {14, 3, 3, 0, 2},
    {13, 4, 2, 2, 2}, {10, 2, 4, 0, 1}, {5, 5, 1, 0, 1},  {3, 2, 1, 4, 1},  {20, 3, 4, 3, 6},
    {1, 1, 1, 0, 1},  {2, 2, 5, 3, 1},  {30, 5, 6, 2, 4}, {12, 3, 2, 2, 3}, {7, 3, 7, 1, 2},
};

// (position of the target, kernel tap, position of the source)
using Products = std::set<std::tuple<int, int, int>>;

Products products_of(const GatherAxis& axis, int sources) {
  Products out;
  for (int i = 0; i < axis.count; ++i) {
    for (int t = 0; t < axis.taps; ++t) {
      const int source = i * axis.scale + axis.base + t * axis.step;
      if (source < 0 || source >= sources) continue;
      const bool added =
          out.emplace(axis.first + i * axis.spacing, axis.tap_first + t * axis.tap_step, source)
              .second;
      EXPECT_TRUE(added);
    }
  }
  return out;
}

TEST(ConvNativeShape, GathersTheProductsOfTheForwardPass) {
  for (const Axis& a : kAxes) {
    Products expected;
    for (int p = 0; p < a.outputs(); ++p) {
      for (int r = 0; r < a.kernel; ++r) {
        const int h = p * a.stride - a.padding + r * a.dilation;
        if (h >= 0 && h < a.inputs) expected.emplace(p, r, h);
      }
    }
    EXPECT_EQ(
        products_of(forward_axis(a.outputs(), a.kernel, a.stride, a.padding, a.dilation), a.inputs),
        expected);
  }
}

TEST(ConvNativeShape, GathersTheProductsOfTheInputsGradientInPhases) {
  for (const Axis& a : kAxes) {
    SCOPED_TRACE(testing::Message() << a.inputs << " " << a.kernel << " " << a.stride << " "
                                    << a.padding << " " << a.dilation);
    Products expected, gathered;
    for (int p = 0; p < a.outputs(); ++p) {
      for (int r = 0; r < a.kernel; ++r) {
        const int h = p * a.stride - a.padding + r * a.dilation;
        if (h >= 0 && h < a.inputs) expected.emplace(h, r, p);
      }
    }
    int positions = 0;
    for (int phase = 0; phase < phases_of(a.inputs, a.stride); ++phase) {
      const GatherAxis axis =
          backward_axis(a.inputs, a.kernel, a.stride, a.padding, a.dilation, phase);
      positions += axis.count;
      EXPECT_LE(axis.count, (a.inputs + a.stride - 1) / a.stride);  // what the launch counts on
      for (const auto& product : products_of(axis, a.outputs())) {
        EXPECT_TRUE(gathered.insert(product).second);
      }
      if (axis.taps > 0) {
        EXPECT_LT(axis.tap_first + (axis.taps - 1) * axis.tap_step, a.kernel);
      }
    }
    EXPECT_EQ(positions, a.inputs);  // every element of dx is written once
    EXPECT_EQ(gathered, expected);
  }
}

TEST(ConvNativeShape, WalksPixelsWithoutDividing) {
  for (const auto& [rows, columns, step] : {std::tuple<int, int, int>{7, 5, 16},
                                            {1, 1, 32},
                                            {56, 56, 32},
                                            {3, 1, 8},
                                            {1, 40, 16},
                                            {2, 3, 6}}) {
    for (const int64_t start : {int64_t{0}, int64_t{17}, int64_t{1} << 33}) {
      PixelWalk walk(start, rows, columns, step);
      for (int64_t pixel = start; pixel < start + 50 * step; pixel += step) {
        ASSERT_EQ(walk.image, pixel / (rows * columns));
        ASSERT_EQ(walk.row, pixel % (rows * columns) / columns);
        ASSERT_EQ(walk.column, pixel % columns);
        walk.advance();
      }
    }
  }
}

TEST(ConvNativeShape, CutsTheWeightGradientsSumIntoWholeSlabs) {
  for (const int64_t pixels : {int64_t{1}, int64_t{31}, int64_t{1000}, int64_t{123457}}) {
    for (const int parts : {1, 2, 7, 64}) {
      const int64_t length = part_length(pixels, parts, 32);
      EXPECT_EQ(length % 32, 0);
      EXPECT_GE(length * parts, pixels);
    }
  }
}

TEST(ConvNativeShape, CallsDepthwiseNarrowAndOneGroupNot) {
  ConvShape shape;
  shape.c = shape.k = 64;
  EXPECT_FALSE(is_narrow(shape));
  shape.groups = 64;
  EXPECT_TRUE(is_narrow(shape));
  shape.groups = 4;
  EXPECT_FALSE(is_narrow(shape));
  shape.c = shape.k = 3;
  shape.groups = 1;
  EXPECT_FALSE(is_narrow(shape));
}

TEST(ConvNativeShape, RefusesExtentsThatAnIntCannotHold) {
  View x, w, y;
  x.shape = {1, 1, int64_t{1} << 31, 1};
  y.shape = x.shape;
  w.shape = {1, 1, 1, 1};
  EXPECT_THROW(conv_shape(x, w, Conv2dParams{}, y), Error);
}

}  // namespace
}  // namespace headroom::cuda
