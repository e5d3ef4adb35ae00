// Small cases worked out by hand that other frameworks got wrong: empty batches, broadcast
// gradients, transposed inputs, biases in front of batch norm.
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

Tensor leaf(const Floats& values, const Shape& shape,
            MemoryFormat format = MemoryFormat::contiguous) {
  Tensor x = from_vector(values, shape, {DType::f32, Device::cpu(), format});
  x.set_requires_grad(true);
  return x;
}

void expect_near(const Tensor& x, const std::vector<double>& wanted, double tolerance) {
  const Floats values = x.to_vector<float>();
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(values[i], wanted[i], tolerance) << i;
}

// O23.
TEST(Cases, AnEmptyBatchThroughAConvolutionGivesZeroGradients) {
  for (const MemoryFormat format : kFormats) {
    const TensorOptions options{DType::f32, Device::cpu(), format};
    Tensor x = zeros({0, 3, 8, 8}, options), w = ones({4, 3, 3, 3}, options), b = ones({4});
    for (Tensor* t : {&x, &w, &b}) t->set_requires_grad(true);
    const Tensor y = conv2d(x, w, b, {.padding = {1, 1}});
    EXPECT_EQ(y.shape(), (Shape{0, 4, 8, 8}));
    const Tensor loss = sum(y);
    EXPECT_EQ(loss.item(), 0);
    backward(loss);
    EXPECT_EQ(w.grad().to_vector<float>(), Floats(4 * 3 * 9, 0));
    EXPECT_EQ(b.grad().to_vector<float>(), Floats(4, 0));
    EXPECT_EQ(x.grad().shape(), x.shape());
  }
}

// O24 (a): the gradient of sum repeats one number.
TEST(Cases, BatchNormTakesTheRepeatedGradientOfASum) {
  Tensor x = leaf({1, 2, 3, 4, 5, 6, 7, 8, 10, 0, 1, 2}, {4, 3});
  Tensor gamma = leaf({1, 1, 1}, {3}), beta = leaf({0, 0, 0}, {3});
  backward(sum(batch_norm(x, {gamma, beta, {}, {}})));
  expect_near(x.grad(), std::vector<double>(12, 0), 1e-6);
  expect_near(gamma.grad(), {0, 0, 0}, 1e-6);
  expect_near(beta.grad(), {4, 4, 4}, 0);
}

// O24 (b).
TEST(Cases, AConvolutionReadsATransposedViewAsItIs) {
  Floats values;
  for (int i = 0; i < 12; ++i) values.push_back(static_cast<float>(i));
  const Tensor a = from_vector(values, {1, 1, 3, 4});
  for (const MemoryFormat format : kFormats) {
    Tensor w = leaf({1, 2, 3, 4}, {1, 1, 2, 2}, format);
    const Tensor y = conv2d(transpose(a, 2, 3), w);
    EXPECT_EQ(y.to_vector<float>(), (Floats{31, 71, 41, 81, 51, 91}));
    backward(sum(y));
    EXPECT_EQ(w.grad().to_vector<float>(), (Floats{18, 42, 24, 48}));
  }
}

// O66.
TEST(Cases, ABiasInFrontOfBatchNormGetsNoGradient) {
  for (const double bias : {5.0, -100.0}) {
    for (const double scale : {1.0, 65536.0}) {
      const Tensor x = from_vector(Floats{1, 2, 3, 4}, {4, 1, 1, 1});
      Tensor w = leaf({2}, {1, 1, 1, 1}), b = leaf({static_cast<float>(bias)}, {1});
      const Tensor mean = zeros({1}), var = ones({1});
      Tensor gamma = leaf({1}, {1}), beta = leaf({0}, {1});
      const Tensor y = batch_norm(conv2d(x, w, b), {gamma, beta, mean, var});
      // Results do not depend on the bias; its rounding error does, by the size of its sum.
      expect_near(y, {-1.341639, -0.447213, 0.447213, 1.341639}, 1e-5);
      const Tensor weights = from_vector(Floats{0.3f, -1, 2, 0.7f}, {4, 1, 1, 1});
      backward(sum(mul(y, weights)), scalar(scale));
      EXPECT_LT(std::abs(b.grad().item()) / scale, 1e-5);
      EXPECT_NEAR(mean.item(), 0.1 * (5 + bias), 1e-5);
      EXPECT_NEAR(var.item(), 1.5666667, 1e-5);
    }
  }
}

}  // namespace
}  // namespace headroom
