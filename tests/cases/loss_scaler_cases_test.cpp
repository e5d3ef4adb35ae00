// O08 to O13: the loss scaler, clipping, and what an optimizer leaves alone.
#include <limits>
#include <string>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "optim/optimizer.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

class LossScalerCases : public CaseTest {
 protected:
  void set_gradient(Tensor& w, double value, DType dtype = DType::f32) const {
    w.set_grad(full(w.shape(), value, {dtype, device()}));
  }
};
HEADROOM_CASES(LossScalerCases);

TEST_P(LossScalerCases, O08_GrowthAndBackOffTrace) {
  const std::string steps = "FFXFFFFXXFFF";
  const double scales[] = {1024, 1024, 512, 512, 512, 1024, 1024, 512, 256, 256, 256, 512};
  const int64_t trackers[] = {1, 2, 0, 1, 2, 0, 1, 0, 0, 1, 2, 0};
  for (const bool with_optimizer : {false, true}) {
    GradScaler scaler({.init_scale = 1024, .growth_interval = 3}, device());
    Tensor w = leaf({0}, {1});
    Sgd optimizer({{.parameters = {w}}}, {.lr = 1});
    int64_t clean = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool overflow = steps[i] == 'X';
      if (with_optimizer) {
        backward(mul(w, overflow ? INFINITY : 1), scaler.seed());
        optimizer.step({.scaler = &scaler});
        optimizer.zero_grad();
        clean += !overflow;
        EXPECT_EQ(w.item(), static_cast<double>(-clean)) << "step " << i;
      } else {
        scaler.update(overflow);
      }
      EXPECT_EQ(scaler.current_scale(), scales[i]) << "step " << i;
      EXPECT_EQ(scaler.growth_tracker(), trackers[i]) << "step " << i;
    }
  }
}

// The scale rests at a floor and at a ceiling, whatever the factors.
TEST_P(LossScalerCases, O09_TheScaleMustNeverReachZero) {
  for (const double backoff : {0.5, 0.01, 1e-300}) {
    GradScaler scaler({.init_scale = 65536, .backoff_factor = backoff}, device());
    Tensor w = leaf({0}, {1});
    Sgd optimizer({{.parameters = {w}}}, {.lr = 1});
    for (int i = 0; i < 200; ++i) {
      set_gradient(w, INFINITY);
      optimizer.step({.scaler = &scaler});
      const auto scale = static_cast<float>(scaler.current_scale());
      ASSERT_GT(scale, 0);
      ASSERT_GT(1 / scale, 0);
      ASSERT_LE(1 / scale, std::numeric_limits<float>::max());
    }
    EXPECT_EQ(scaler.current_scale(), 0x1p-24);
    EXPECT_EQ(w.item(), 0);
    optimizer.zero_grad();
    backward(mul(w, 1), scaler.seed());
    optimizer.step({.scaler = &scaler});
    EXPECT_EQ(w.item(), -1);
  }
  for (const double growth : {2.0, 1e300}) {
    GradScaler grows({.init_scale = 0x1p38, .growth_factor = growth, .growth_interval = 1},
                     device());
    for (int i = 0; i < 10; ++i) grows.update(false);
    EXPECT_EQ(grows.current_scale(), 0x1p40);
  }
}

TEST_P(LossScalerCases, O10_ClipAfterUnscaling) {
  for (const bool by_hand : {false, true}) {
    Tensor a = leaf({0}, {1}), b = leaf({0}, {1});
    GradScaler scaler({.init_scale = 4096}, device());
    Sgd optimizer({{.parameters = {a, b}}}, {.lr = 1});
    backward(scaler.scale(add(mul(a, 3), mul(b, 4))));
    if (by_hand) {
      optimizer.unscale(scaler);
      EXPECT_NEAR(clip_grad_norm({a, b}, 1), 5, 5e-6);
      expect_values(a.grad(), {0.6});
      expect_values(b.grad(), {0.8});
      optimizer.step({.scaler = &scaler});
    } else {
      optimizer.step({.scaler = &scaler, .clip_norm = 1});
      EXPECT_NEAR(optimizer.last_grad_norm(), 5, 5e-6);
    }
    expect_values(a, {-0.6});
    expect_values(b, {-0.8});
  }
}

// The norm that is compared with the limit is the true one also where the scaled one is far beyond
// f32's squares.
TEST_P(LossScalerCases, O10_TheLargestScaleDoesNotOverflowTheNorm) {
  Tensor a = leaf({0}, {1}), b = leaf({0}, {1});
  GradScaler scaler({.init_scale = 0x1p40}, device());
  Sgd optimizer({{.parameters = {a, b}}}, {.lr = 1});
  backward(add(mul(a, 3e12), mul(b, 4e12)), scaler.seed());
  optimizer.step({.scaler = &scaler, .clip_norm = 1});
  EXPECT_NEAR(optimizer.last_grad_norm(), 5e12, 5e6);
  expect_values(a, {-0.6});
  expect_values(b, {-0.8});
}

TEST_P(LossScalerCases, O11_AParameterWithoutGradientIsLeftAloneAndDecayGroupsAreHonoured) {
  Tensor a = leaf({2}, {1}), b = leaf({2}, {1}), frozen = tensor({2}, {1});
  Sgd with_momentum({{.parameters = {frozen, a, b}, .weight_decay = 0.5}},
                    {.lr = 0.1, .momentum = 0.9});
  GradScaler scaler({.init_scale = 8}, device());
  set_gradient(b, 0);
  with_momentum.step({.scaler = &scaler, .clip_norm = 10});
  EXPECT_EQ(clip_grad_norm({frozen, a, b}, 1), 0);
  EXPECT_EQ(frozen.item(), 2);
  EXPECT_EQ(a.item(), 2);
  expect_values(b, {1.9});

  Tensor c = leaf({1}, {1}), d = leaf({1}, {1});
  Sgd grouped({{.parameters = {c}}, {.parameters = {d}, .weight_decay = 0.5}}, {.lr = 0.1});
  for (int i = 0; i < 3; ++i) {
    set_gradient(c, 0);
    set_gradient(d, 0);
    grouped.step({.scaler = &scaler, .clip_norm = 10});
  }
  EXPECT_EQ(c.item(), 1);
  expect_values(d, {0.857375});
}

// 2e-8 lies below half of the smallest f16.
TEST_P(LossScalerCases, O12_ScalingRescuesGradientsThatVanishInFp16) {
  const double gradient = 2e-8;
  for (const bool scaled : {false, true}) {
    GradScaler scaler({.init_scale = 65536}, device());
    Tensor w = leaf({0}, {1});
    Sgd optimizer({{.parameters = {w}}}, {.lr = 1});
    // The gradient passes an f16 tensor on its way to the weight.
    const Tensor y = mul(cast(cast(w, DType::f16), DType::f32), gradient);
    if (!scaled) {
      backward(y);
      EXPECT_EQ(w.grad().item(), 0);
      continue;
    }
    backward(scaler.scale(y));
    EXPECT_EQ(w.grad().item(), static_cast<float>(0.00131034851));
    optimizer.unscale(scaler);
    expect_values(w.grad(), {1.9994332e-8});
    optimizer.step({.scaler = &scaler});
    expect_values(w, {-1.9994332e-8});  // else it was divided twice, or not at all
  }
}

// Gradients that are themselves f16, as a program may set them: unscaling makes them f32.
TEST_P(LossScalerCases, O12_UnscalingHappensInF32AlsoForHalfGradients) {
  for (const bool by_hand : {false, true}) {
    GradScaler scaler({.init_scale = 65536}, device());
    Tensor w = leaf({0}, {1});
    Sgd optimizer({{.parameters = {w}}}, {.lr = 1});
    set_gradient(w, 0.00131034851, DType::f16);
    if (by_hand) {
      optimizer.unscale(scaler);
      expect_values(w.grad(), {1.9994332e-8}, 1e-6);
    }
    optimizer.step({.scaler = &scaler});
    expect_values(w, {-1.9994332e-8});
  }
}

TEST_P(LossScalerCases, O13_NormOfFp16Gradients) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensor w = leaf({0, 0, 0, 0}, {4});
    set_gradient(w, 300, dtype);
    EXPECT_NEAR(clip_grad_norm({w}, 1), 600, 6e-4);
    expect_values(w.grad(), {0.5, 0.5, 0.5, 0.5});
    // Within a step.
    Sgd optimizer({{.parameters = {w}}}, {.lr = 1});
    set_gradient(w, 300, dtype);
    optimizer.step({.clip_norm = 1});
    EXPECT_NEAR(optimizer.last_grad_norm(), 600, 6e-4);
    expect_values(w, {-0.5, -0.5, -0.5, -0.5});
  }
  // A norm that f16 itself cannot hold.
  Tensor w = leaf(Values(16, 0), {2, 2, 2, 2}, DType::f32, MemoryFormat::channels_last);
  set_gradient(w, 60000, DType::f16);
  EXPECT_NEAR(clip_grad_norm({w}, 1), 240000, 0.24);
  expect_values(w.grad(), Values(16, 0.25));
}

}  // namespace
}  // namespace headroom::cases
