// The loss scaler, alone and with an optimizer.
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "optim/optimizer.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

Tensor leaf(double value) {
  Tensor w = full({1}, value);
  w.set_requires_grad(true);
  return w;
}

SgdOptions plain(double lr) {
  SgdOptions out;
  out.lr = lr;
  return out;
}

TEST(GradScaler, UnscalesOnceAndForItsOwnScaler) {
  GradScaler scaler({.init_scale = 8}, Device::cpu()), other({}, Device::cpu());
  Tensor w = leaf(0);
  Sgd optimizer({{.parameters = {w}}}, plain(1));
  w.set_grad(full({1}, 16));
  optimizer.unscale(scaler);
  EXPECT_EQ(w.grad().item(), 2);
  EXPECT_THROW(optimizer.unscale(scaler), InvalidArgument);
  EXPECT_THROW(optimizer.step({.scaler = &other}), InvalidArgument);
  EXPECT_THROW(optimizer.step(), InvalidArgument);
  EXPECT_EQ(w.item(), 0);
  optimizer.step({.scaler = &scaler});
  EXPECT_EQ(w.item(), -2);
  optimizer.zero_grad();
  w.set_grad(full({1}, 16));
  optimizer.step({.scaler = &scaler});  // not unscaled this time
  EXPECT_EQ(w.item(), -4);
}

TEST(GradScaler, UnscaledOverflowStillSkips) {
  GradScaler scaler({.init_scale = 8}, Device::cpu());
  Tensor w = leaf(5);
  Sgd optimizer({{.parameters = {w}}}, plain(1));
  w.set_grad(full({1}, NAN));
  optimizer.unscale(scaler);
  optimizer.step({.scaler = &scaler});
  EXPECT_EQ(w.item(), 5);
  EXPECT_EQ(scaler.current_scale(), 4);
}

// As PyTorch's: each optimizer skips for its own gradients, and the scale is decided once.
TEST(GradScaler, OfTwoOptimizersDecidesOnceForBoth) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 2}, Device::cpu());
  Tensor a = leaf(1), b = leaf(1);
  Sgd first({{{a}}}, {.lr = 1}), second({{{b}}}, {.lr = 1});
  const auto step = [&](double gradient_of_a) {
    a.set_grad(full({1}, 8 * gradient_of_a));
    b.set_grad(full({1}, 8 * 0.25));
    first.step({.scaler = &scaler, .update_scale = false});
    second.step({.scaler = &scaler, .update_scale = false});
    scaler.update();
    first.zero_grad();
    second.zero_grad();
  };
  step(INFINITY);
  EXPECT_EQ(a.item(), 1) << "skipped";
  EXPECT_EQ(b.item(), 0.75) << "not skipped, and divided by the scale that its gradient had";
  EXPECT_EQ(scaler.current_scale(), 4);
  EXPECT_EQ(scaler.growth_tracker(), 0);
  scaler.set_state(8, 0);
  step(0.5);
  EXPECT_EQ(scaler.growth_tracker(), 1) << "one clean step, not two";
  step(0.5);
  EXPECT_EQ(a.item(), 0);
  EXPECT_EQ(b.item(), 0.25);
  EXPECT_EQ(scaler.current_scale(), 16);
  EXPECT_THROW(scaler.update(), InvalidArgument);
}

TEST(GradScaler, RefusesSettingsOutOfRange) {
  const Device cpu = Device::cpu();
  EXPECT_THROW(GradScaler({.init_scale = 0}, cpu), InvalidArgument);
  EXPECT_THROW(GradScaler({.init_scale = INFINITY}, cpu), InvalidArgument);
  EXPECT_THROW(GradScaler({.init_scale = std::nan("")}, cpu), InvalidArgument);
  EXPECT_THROW(GradScaler({.growth_factor = 1}, cpu), InvalidArgument);
  EXPECT_THROW(GradScaler({.backoff_factor = 1}, cpu), InvalidArgument);
  EXPECT_THROW(GradScaler({.growth_interval = 0}, cpu), InvalidArgument);
  GradScaler scaler({}, cpu);
  EXPECT_THROW(scaler.set_state(1024, -1), InvalidArgument);
  EXPECT_THROW(scaler.set_state(1024, INT64_MAX), InvalidArgument);
  EXPECT_THROW(scaler.set_state(std::nan(""), 0), InvalidArgument);
  EXPECT_EQ(scaler.current_scale(), 65536);
}

TEST(GradScaler, ScalesTheLossInsideTheGraphOrByItsSeed) {
  GradScaler scaler({.init_scale = 1024}, Device::cpu());
  Tensor w = leaf(3);
  backward(scaler.scale(mul(w, 2)));
  EXPECT_EQ(w.grad().item(), 2048);
  w.set_grad({});
  backward(mul(w, 2), scaler.seed(0.25));
  EXPECT_EQ(w.grad().item(), 512);
}

}  // namespace
}  // namespace headroom
