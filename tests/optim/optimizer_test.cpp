// What all optimizers share, as a user sees it: groups, parameters without gradients or that join
// late, clipping, half copies.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/optim/optimizer_helpers.h"

namespace headroom {
namespace {

using namespace testing_optim;

TEST(Optimizer, RefusesWhatItCannotTrain) {
  EXPECT_THROW(Sgd({}, sgd(0.1)), InvalidArgument);
  EXPECT_THROW(Sgd({{.parameters = {}}}, sgd(0.1)), InvalidArgument);
  EXPECT_THROW(Sgd({{.parameters = {Tensor()}}}, sgd(0.1)), InvalidArgument);
  EXPECT_THROW(Sgd({{.parameters = {ones({1}, {DType::i64})}}}, sgd(0.1)), InvalidArgument);
  Tensor w = leaf({1});
  EXPECT_THROW(Sgd({{.parameters = {mul(w, 2)}}}, sgd(0.1)), InvalidArgument);
  Tensor there = ones({1}, {DType::f32, Device::meta(DeviceType::cpu)});
  there.set_requires_grad(true);
  EXPECT_THROW(Sgd({{.parameters = {w, there}}}, sgd(0.1)), InvalidArgument);
}

TEST(Optimizer, AGroupsRateIsAFactorOfTheCommonOne) {
  Tensor a = leaf({1}), b = leaf({1});
  Sgd optimizer({{.parameters = {a}}, {.parameters = {b}, .lr_factor = 0.5}}, sgd(0.1));
  set_gradient(a, {1});
  set_gradient(b, {1});
  optimizer.step();
  EXPECT_NEAR(a.item(), 0.9, 1e-6);
  EXPECT_NEAR(b.item(), 0.95, 1e-6);
}

TEST(Optimizer, DecayGroupsSpareVectors) {
  Tensor matrix = ones({2, 2}), bias = ones({2});
  matrix.set_requires_grad(true);
  bias.set_requires_grad(true);
  const auto groups = decay_groups({bias, matrix}, 0.1);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups[0].parameters[0].impl(), matrix.impl());
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_EQ(decay_groups({bias}, 0.1).size(), 1u);
}

TEST(Optimizer, AStepWithoutAnyGradientDoesNothing) {
  Tensor w = leaf({1});
  Adam optimizer({{.parameters = {w}}}, adam(0.1));
  optimizer.step();
  EXPECT_EQ(optimizer.applied_steps(), 0);
  EXPECT_EQ(w.item(), 1);
  EXPECT_EQ(w.storage()->version(), 0);
}

TEST(Optimizer, TheRateComesFromTheTableByAppliedSteps) {
  Tensor w = leaf({0});
  Sgd optimizer({{.parameters = {w}}}, sgd(1));
  optimizer.set_schedule({0.5, 0.25});
  for (const double wanted : {-0.5, -0.75, -1.0}) {  // the last entry stays
    step_with(optimizer, w, {1});
    EXPECT_NEAR(w.item(), wanted, 1e-6);
  }
  EXPECT_EQ(optimizer.last_lr(), 0.25);
  optimizer.set_lr(0.125);
  step_with(optimizer, w, {1});
  EXPECT_EQ(optimizer.last_lr(), 0.125);
  EXPECT_THROW(optimizer.set_schedule({}), InvalidArgument);
  EXPECT_THROW(optimizer.set_lr(INFINITY), InvalidArgument);
}

// A parameter that gets its first gradient late starts its own count of steps: Adam's correction
// and SGD's first momentum are those of a parameter that is new, the rate is everyone's.
TEST(Cohorts, AParameterThatJoinsLateTakesItsFirstStepAsIfAlone) {
  for (const bool is_adam : {true, false}) {
    Tensor early = leaf({1}), late = leaf({1}), alone = leaf({1});
    const auto make = [&](std::vector<Tensor> parameters) -> std::unique_ptr<Optimizer> {
      std::vector<ParameterGroup> groups = {{.parameters = std::move(parameters)}};
      if (is_adam) return std::make_unique<Adam>(groups, adam(0.1));
      SgdOptions options = sgd(0.1, 0.9);
      options.dampening = 0.5;
      return std::make_unique<Sgd>(groups, options);
    };
    const auto both = make({early, late});
    const auto one = make({alone});
    for (int i = 0; i < 3; ++i) step_with(*both, early, {0.3f});
    for (int i = 0; i < 4; ++i) {
      both->zero_grad();
      set_gradient(early, {0.3f});
      set_gradient(late, {0.7f + 0.1f * static_cast<float>(i)});
      both->step();
      step_with(*one, alone, {0.7f + 0.1f * static_cast<float>(i)});
      EXPECT_EQ(late.item(), alone.item()) << is_adam << " step " << i;
    }
    EXPECT_EQ(both->applied_steps(), 7);
  }
}

TEST(Cohorts, TheRateOfALateParameterIsTheOneOfTheRun) {
  Tensor early = leaf({1}), late = leaf({1});
  Sgd optimizer({{.parameters = {early, late}}}, sgd(1));
  optimizer.set_schedule({0.5, 0.25, 0.125});
  step_with(optimizer, early, {1});
  optimizer.zero_grad();
  set_gradient(late, {1});
  optimizer.step();
  EXPECT_EQ(late.item(), 0.75);
}

TEST(Cohorts, ClippingAndOverflowAreCommon) {
  Tensor early = leaf({0}), late = leaf({0});
  GradScaler scaler({.init_scale = 4}, Device::cpu());
  Sgd optimizer({{.parameters = {early, late}}}, sgd(1));
  step_with(optimizer, early, {4}, {.scaler = &scaler});
  EXPECT_EQ(early.item(), -1);
  optimizer.zero_grad();
  set_gradient(early, {12});  // 3 and 4 after unscaling: the norm is 5
  set_gradient(late, {16});
  optimizer.step({.scaler = &scaler, .clip_norm = 1});
  EXPECT_NEAR(optimizer.last_grad_norm(), 5, 1e-6);
  EXPECT_NEAR(early.item(), -1.6, 1e-5);
  EXPECT_NEAR(late.item(), -0.8, 1e-5);
  optimizer.zero_grad();
  set_gradient(early, {1});
  set_gradient(late, {INFINITY});
  optimizer.step({.scaler = &scaler});
  EXPECT_NEAR(early.item(), -1.6, 1e-5) << "one cohort stepped without the other";
  EXPECT_TRUE(optimizer.last_step_skipped());
  EXPECT_EQ(optimizer.applied_steps(), 2);
  EXPECT_EQ(scaler.current_scale(), 2) << "one decision per step, not per cohort";
}

TEST(Clipping, WithoutGradientsOrALimitIsHarmlessOrRefused) {
  Tensor w = leaf({1});
  EXPECT_EQ(clip_grad_norm({w}, 1), 0);
  EXPECT_THROW(clip_grad_norm({w}, 0), InvalidArgument);
  EXPECT_THROW(clip_grad_norm({w}, std::nan("")), InvalidArgument);
  Sgd optimizer({{.parameters = {w}}}, sgd(0.1));
  EXPECT_THROW(optimizer.step({.clip_norm = -1}), InvalidArgument);
  EXPECT_THROW(optimizer.step({.clip_norm = std::nan("")}), InvalidArgument);
}

TEST(HalfCopies, HoldTheParameterAfterEveryStep) {
  for (const DType half : {DType::f16, DType::bf16}) {
    Tensor w = from_vector(Floats{1, 2, 3, 4.0001f}, {2, 2}), bias = leaf({1, 1});
    w.set_requires_grad(true);
    Adam optimizer({{.parameters = {w, bias}}}, adam(0.1));
    optimizer.keep_half_copies(half);
    EXPECT_FALSE(bias.half_copy().defined()) << "vectors stay in f32";
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      w.set_grad(full({2, 2}, 0.3 * (i + 1)));
      set_gradient(bias, {1, 1});
      optimizer.step();
      ASSERT_TRUE(w.half_copy_is_current());
      EXPECT_EQ(w.half_copy().dtype(), half);
      EXPECT_EQ(w.half_copy().to_vector<float>(), cast(w.detach(), half).to_vector<float>());
    }
    EXPECT_EQ(w.half_copy().storage()->tag(), Tag::cast_copy);
  }
  Tensor w = leaf({1});
  Sgd optimizer({{.parameters = {w}}}, sgd(0.1));
  EXPECT_THROW(optimizer.keep_half_copies(DType::f32), InvalidArgument);
}

TEST(HalfCopies, ASkippedStepKeepsThemCurrent) {
  Tensor w = from_vector(Floats{1, 2}, {1, 2});
  w.set_requires_grad(true);
  GradScaler scaler({}, Device::cpu());
  Sgd optimizer({{.parameters = {w}}}, sgd(0.1));
  optimizer.keep_half_copies(DType::f16);
  w.set_grad(full({1, 2}, INFINITY));
  optimizer.step({.scaler = &scaler});
  EXPECT_EQ(w.to_vector<float>(), (Floats{1, 2}));
  EXPECT_TRUE(w.half_copy_is_current());
  EXPECT_EQ(w.half_copy().to_vector<float>(), (Floats{1, 2}));
  {
    const NoGrad no_grad;
    fill_(w, 7);
  }
  optimizer.step({.scaler = &scaler});
  EXPECT_FALSE(w.half_copy_is_current()) << "nothing wrote the sevens into it";
}

TEST(Optimizer, AGraphMadeBeforeAStepNoticesIt) {
  Tensor w = leaf({2});
  Sgd optimizer({{.parameters = {w}}}, sgd(0.1));
  const Tensor y = mul(w, w);
  step_with(optimizer, w, {1});
  EXPECT_THROW(backward(y), Error);
}

// What a step takes of the allocator would count in the peak, so it takes nothing once state is
// made.
TEST(Optimizer, AClippedAndScaledStepAllocatesNothing) {
  for (const Device device :
       {Device::cpu(), Device::meta(DeviceType::cpu), Device::meta(DeviceType::cuda)}) {
    Tensor w = ones({3, 2}, {DType::f32, device}), bias = ones({3}, {DType::f32, device});
    GradScaler scaler({}, device);
    for (Tensor* each : {&w, &bias}) each->set_requires_grad(true);
    Adam optimizer({{.parameters = {w, bias}}}, adam(0.1));
    for (int i = 0; i < 2; ++i) {
      for (Tensor* each : {&w, &bias}) each->set_grad(ones(each->shape(), each->options()));
      reset_peak_memory_stats(device);
      const int64_t before = memory_allocated(device);
      optimizer.step({.scaler = &scaler, .clip_norm = 1});
      if (i == 0) continue;  // makes the state
      EXPECT_EQ(max_memory_allocated(device), before) << device;
    }
  }
}

TEST(Optimizer, TagsItsState) {
  const auto bytes = [] {
    return allocator_of(Device::cpu())
        .stats()
        .current_by_tag[static_cast<size_t>(Tag::optimizer_state)];
  };
  const int64_t before = bytes();
  Tensor w = leaf(Floats(1024, 1));
  Adam optimizer({{.parameters = {w}}}, adam(0.1));
  step_with(optimizer, w, Floats(1024, 1));
  // Two moments; the rates, the control fields and the count are a block each.
  EXPECT_EQ(bytes() - before, 2 * 4096 + 3 * kMinBlockBytes);
}

TEST(Optimizer, LeavesFrozenParametersAloneUntilTheyAreSetFree) {
  Tensor trained = from_vector(Floats{1, 2}, {1, 2}), frozen = from_vector(Floats{3, 4}, {1, 2});
  trained.set_requires_grad(true);
  Adam optimizer({{.parameters = {frozen, trained}, .weight_decay = 0.5}}, adam(0.1));
  optimizer.keep_half_copies(DType::f16);
  EXPECT_FALSE(frozen.half_copy().defined());
  const auto step = [&] {
    optimizer.zero_grad();
    for (Tensor* w : {&trained, &frozen}) {
      if (w->requires_grad()) backward(sum(mul(*w, 2)));
    }
    optimizer.step({.clip_norm = 1});
  };
  step();
  EXPECT_EQ(frozen.to_vector<float>(), (Floats{3, 4}));
  EXPECT_NEAR(trained.to_vector<float>()[0], 0.9, 1e-6);
  // The other way round.
  frozen.set_requires_grad(true);
  trained.set_requires_grad(false);
  const Floats before = trained.to_vector<float>();
  step();
  EXPECT_NEAR(frozen.to_vector<float>()[0], 2.9, 1e-6);
  EXPECT_EQ(trained.to_vector<float>(), before);
}

// Parameters that take turns, as the halves of a GAN or a branch that is skipped at times: each
// counts the steps it took, as if it were alone.
TEST(Cohorts, AParameterThatMissesStepsCountsOnlyItsOwn) {
  for (const bool is_adam : {true, false}) {
    const auto make = [&](std::vector<Tensor> parameters) -> std::unique_ptr<Optimizer> {
      std::vector<ParameterGroup> groups = {{.parameters = std::move(parameters)}};
      if (is_adam) return std::make_unique<Adam>(groups, adam(0.1));
      SgdOptions options = sgd(0.1, 0.9);
      options.dampening = 0.5;
      return std::make_unique<Sgd>(groups, options);
    };
    // Which of the three parameters have a gradient, step by step.
    const char* const pattern[] = {"110", "011", "100", "111", "001", "010", "111"};
    std::vector<Tensor> together = {leaf({1}), leaf({1}), leaf({1})};
    std::vector<Tensor> alone = {leaf({1}), leaf({1}), leaf({1})};
    const auto all = make(together);
    std::vector<std::unique_ptr<Optimizer>> each;
    for (const Tensor& w : alone) each.push_back(make({w}));
    float gradient = 0.3f;
    for (const char* const step : pattern) {
      all->zero_grad();
      gradient += 0.1f;
      for (size_t i = 0; i < 3; ++i) {
        if (step[i] == '0') continue;
        set_gradient(together[i], {gradient});
        step_with(*each[i], alone[i], {gradient});
      }
      all->step();
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(together[i].item(), alone[i].item()) << is_adam << " " << step << " " << i;
      }
      // What is saved in between goes on in the same way.
      const auto again = make(together);
      again->load_state_dict(all->state_dict());
      all->load_state_dict(again->state_dict());
    }
    EXPECT_EQ(all->applied_steps(), 7);
  }
}

TEST(Clipping, WorksOnGradientsOfEveryRank) {
  Tensor scalar_one = zeros({}), image = zeros({1, 1, 2, 2});
  for (Tensor* t : {&scalar_one, &image}) {
    t->set_requires_grad(true);
    t->set_grad(full(t->shape(), 3));
  }
  EXPECT_NEAR(clip_grad_norm({scalar_one, image}, 100), std::sqrt(45.0), 1e-5);
  EXPECT_EQ(scalar_one.grad().item(), 3);
  EXPECT_NEAR(clip_grad_norm({scalar_one, image}, 1), std::sqrt(45.0), 1e-5);
  EXPECT_NEAR(scalar_one.grad().item(), 3 / std::sqrt(45.0), 1e-5);
}

}  // namespace
}  // namespace headroom
