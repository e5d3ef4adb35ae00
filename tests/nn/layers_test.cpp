// Layers and their initial values.
#include "nn/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/autograd/autograd.h"
#include "core/tensor/generator.h"
#include "nn/init.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

struct Moments {
  double mean = 0, deviation = 0, low = 0, high = 0;
};

Moments moments_of(const Tensor& t) {
  const std::vector<double> values = t.to_vector<double>();
  Moments out;
  for (const double v : values) out.mean += v / static_cast<double>(values.size());
  for (const double v : values) {
    out.deviation += (v - out.mean) * (v - out.mean) / static_cast<double>(values.size());
  }
  out.deviation = std::sqrt(out.deviation);
  out.low = *std::min_element(values.begin(), values.end());
  out.high = *std::max_element(values.begin(), values.end());
  return out;
}

// 100,000 values: the estimates are within 1 % (uniform) and 2 % of their truth.
void expect_uniform(const Tensor& t, double bound) {
  const Moments m = moments_of(t);
  EXPECT_LE(m.high, bound);
  EXPECT_GE(m.low, -bound);
  EXPECT_GT(m.high, 0.99 * bound);
  EXPECT_LT(m.low, -0.99 * bound);
  EXPECT_NEAR(m.mean, 0, 0.02 * bound);
  EXPECT_NEAR(m.deviation, bound / std::sqrt(3.0), 0.02 * bound);
}

void expect_normal(const Tensor& t, double deviation) {
  const Moments m = moments_of(t);
  EXPECT_NEAR(m.mean, 0, 0.02 * deviation);
  EXPECT_NEAR(m.deviation, deviation, 0.02 * deviation);
  EXPECT_GT(m.high, 3.5 * deviation);  // has tails
}

TEST(Init, FansCountTheReceptiveField) {
  const Tensor w = empty({8, 4, 3, 5});
  EXPECT_EQ(fan_of(w, FanMode::in), 60);
  EXPECT_EQ(fan_of(w, FanMode::out), 120);
  EXPECT_EQ(fan_of(empty({7, 3}), FanMode::in), 3);
  EXPECT_THROW(fan_of(empty({7}), FanMode::in), InvalidArgument);
}

TEST(Init, DrawsFromTheDistributionsOfTheirPapers) {
  manual_seed(1);
  Tensor w = empty({400, 250});
  kaiming_uniform(w);
  expect_uniform(w, std::sqrt(6.0 / 250));
  kaiming_uniform(w, 1, FanMode::out);
  expect_uniform(w, std::sqrt(3.0 / 400));
  kaiming_normal(w);
  expect_normal(w, std::sqrt(2.0 / 250));
  xavier_uniform(w, 2);
  expect_uniform(w, 2 * std::sqrt(6.0 / 650));
  xavier_normal(w);
  expect_normal(w, std::sqrt(2.0 / 650));
}

TEST(Init, LayersStartAsPyTorchsDo) {
  manual_seed(2);
  const Linear linear({.in = 250, .out = 400});
  expect_uniform(linear.named_parameters()[0].tensor, 1 / std::sqrt(250.0));
  const Moments bias = moments_of(linear.named_parameters()[1].tensor);
  EXPECT_LE(bias.high, 1 / std::sqrt(250.0));
  EXPECT_GT(bias.high, 0.9 / std::sqrt(250.0));
  const Conv2d conv({.in = 64, .out = 256, .kernel = {3, 3}, .conv = {.groups = 2}});
  expect_uniform(conv.named_parameters()[0].tensor, 1 / std::sqrt(32 * 9.0));
  const BatchNorm2d norm({.channels = 5});
  EXPECT_EQ(norm.named_parameters()[0].tensor.to_vector<float>(), Floats(5, 1));
  EXPECT_EQ(norm.named_parameters()[1].tensor.to_vector<float>(), Floats(5, 0));
  EXPECT_EQ(norm.named_buffers()[0].tensor.to_vector<float>(), Floats(5, 0));
  EXPECT_EQ(norm.named_buffers()[1].tensor.to_vector<float>(), Floats(5, 1));
}

TEST(Init, TheSameSeedGivesTheSameWeightsInEitherLayout) {
  manual_seed(3);
  const Conv2d a({.in = 3, .out = 8, .kernel = {3, 3}});
  manual_seed(3);
  const Conv2d b({.in = 3, .out = 8, .kernel = {3, 3}},
                 {DType::f32, Device::cpu(), MemoryFormat::channels_last});
  EXPECT_EQ(a.named_parameters()[0].tensor.to_vector<float>(),
            b.named_parameters()[0].tensor.to_vector<float>());
}

TEST(Layers, RefuseSizesThatMakeNoSense) {
  EXPECT_THROW(Linear({.in = 0, .out = 3}), InvalidArgument);
  EXPECT_THROW(Conv2d({.in = 3, .out = 0}), InvalidArgument);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .kernel = {0, 1}}), InvalidArgument);
  EXPECT_THROW(Conv2d({.in = 3, .out = 4, .conv = {.groups = 2}}), InvalidArgument);
  EXPECT_THROW(BatchNorm2d({.channels = 0}), InvalidArgument);
  EXPECT_THROW(Activation(ActivationKind::silu, true), InvalidArgument);
  for (const double p : {-0.1, 1.5, std::nan("")}) EXPECT_THROW(Dropout{p}, InvalidArgument);
}

TEST(Layers, BiasIsAChoice) {
  EXPECT_EQ(Linear({.in = 2, .out = 3, .bias = false}).named_parameters().size(), 1u);
  EXPECT_EQ(Conv2d({.in = 2, .out = 3, .bias = false}).named_parameters().size(), 1u);
}

TEST(Layers, BatchNormCountsBatchesInTrainingOnly) {
  BatchNorm2d norm({.channels = 2});
  const Tensor x = from_vector(Floats{0, 1, 2, 3, 4, 5, 6, 7}, {2, 2, 2, 1});
  norm(x);
  norm(x);
  EXPECT_EQ(norm.batches_tracked(), 2);
  const Floats mean = norm.named_buffers()[0].tensor.to_vector<float>();
  norm.eval();
  const Floats y = norm(x).to_vector<float>();
  EXPECT_EQ(norm.batches_tracked(), 2);
  EXPECT_EQ(norm.named_buffers()[0].tensor.to_vector<float>(), mean);
  const Floats var = norm.named_buffers()[1].tensor.to_vector<float>();
  EXPECT_NEAR(y[0], (0 - mean[0]) / std::sqrt(var[0] + 1e-5), 1e-6);
}

TEST(Layers, BatchNormOfHalfModelsKeepsItsParametersInF32) {
  BatchNorm2d norm({.channels = 2}, {DType::f16});
  EXPECT_EQ(norm.named_parameters()[0].tensor.dtype(), DType::f32);
  EXPECT_EQ(norm(ones({2, 2, 2, 2}, {DType::f16})).dtype(), DType::f16);
  EXPECT_EQ(BatchNorm2d({.channels = 2}, {DType::f64}).named_parameters()[0].tensor.dtype(),
            DType::f64);
}

TEST(Layers, ActivationsAgreeInBothForms) {
  const Tensor x = from_vector(Floats{-2, -0.5f, 0, 1.5f}, {4});
  for (const ActivationKind kind : {ActivationKind::relu, ActivationKind::leaky_relu,
                                    ActivationKind::sigmoid, ActivationKind::tanh}) {
    Activation plain(kind, false, 0.2), in_place(kind, true, 0.2);
    const Tensor own = clone(x);
    const Tensor y = in_place(own);
    EXPECT_EQ(y.storage(), own.storage());
    EXPECT_EQ(y.to_vector<float>(), plain(x).to_vector<float>());
  }
  EXPECT_EQ(x.to_vector<float>(), (Floats{-2, -0.5f, 0, 1.5f}));
  Activation silu_layer(ActivationKind::silu);
  EXPECT_NEAR(silu_layer(x).to_vector<float>()[3], 1.5 / (1 + std::exp(-1.5)), 1e-6);
}

TEST(Layers, DropoutDrawsInTrainingOnly) {
  Dropout layer(0.5);
  const Tensor x = ones({1000});
  manual_seed(4);
  const Floats y = layer(x).to_vector<float>();
  EXPECT_NEAR(std::count(y.begin(), y.end(), 0.0f), 500, 80);
  layer.eval();
  EXPECT_EQ(layer(x).impl(), x.impl());
}

}  // namespace
}  // namespace headroom
