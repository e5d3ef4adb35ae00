// O01 to O07 at the level of ops and optimizers: what one step sees of the micro-batches of its
// window.
#include <memory>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

class AccumulationCases : public CaseTest {
 protected:
  // One micro-batch of y = w * x, loss = mean of y^2 over a window of `samples`: it adds the sum of
  // its own losses, divided by the samples of the whole window.
  void pass(const Tensor& w, const Values& x, size_t samples) const {
    const Tensor y = mul(tensor(x, {static_cast<int64_t>(x.size())}, w.dtype()), w);
    backward(sum(mul(y, y)), scalar(1.0 / static_cast<double>(samples), {DType::f32, device()}));
  }
  void window(const Tensor& w, const std::vector<Values>& micro_batches) const {
    size_t samples = 0;
    for (const Values& x : micro_batches) samples += x.size();
    for (const Values& x : micro_batches) pass(w, x, samples);
  }
  // f64 exists on the CPU only.
  std::vector<DType> dtypes() const {
    if (device().is_cuda()) return {DType::f32, DType::f16};
    return {DType::f32, DType::f16, DType::f64};
  }
};
HEADROOM_CASES(AccumulationCases);

std::unique_ptr<Sgd> sgd_of(const std::vector<Tensor>& parameters, const SgdOptions& options,
                            double weight_decay = 0) {
  return std::make_unique<Sgd>(
      std::vector<ParameterGroup>{{.parameters = parameters, .weight_decay = weight_decay}},
      options);
}

TEST_P(AccumulationCases, O01_UnevenMicroBatchesMustBeWeightedByTheirSize) {
  for (const DType dtype : dtypes()) {
    Tensor w = leaf({1}, {1}, dtype);
    const auto optimizer = sgd_of({w}, {.lr = 0.01});
    window(w, {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10}});
    expect_values(w.grad(), {77}, tolerance_of(dtype));
    optimizer->step();
    // 1 - 0.77: what is left has the absolute error of the 0.77.
    expect_values(w, {0.23}, tolerance_of(dtype) / 0.23);
  }
}

TEST_P(AccumulationCases, O02_TheLastIncompleteWindowMustBeAppliedAtFullWeight) {
  for (const DType dtype : dtypes()) {
    if (is_half(dtype)) continue;  // 0.49 - 0.8869 cancels what a half has of digits
    Tensor w = leaf({1}, {1}, dtype);
    const auto optimizer = sgd_of({w}, {.lr = 0.01});
    window(w, {{1, 2}, {3, 4}, {5, 6}, {7, 8}});
    optimizer->step();
    optimizer->zero_grad();
    expect_values(w, {0.49});
    window(w, {{9, 10}});
    optimizer->step();
    optimizer->zero_grad();
    expect_values(w, {-0.3969});
    EXPECT_EQ(optimizer->applied_steps(), 2);
  }
}

TEST_P(AccumulationCases, O03_WeightDecayAndMomentumActOncePerWindow) {
  for (const DType dtype : dtypes()) {
    Tensor w = leaf({1}, {1}, dtype);
    const auto optimizer = sgd_of({w}, {.lr = 0.1, .momentum = 0.9}, 0.1);
    for (const double wanted : {0.89, 0.6821}) {
      const Tensor share = scalar(1.0 / 3, {DType::f32, device()});
      for (int i = 0; i < 3; ++i) backward(sum(mul(w, 1)), share);
      optimizer->step();
      optimizer->zero_grad();
      expect_values(w, {wanted});
    }
  }
}

// Whatever the rule, and with clipping and a loss scaler in between: three micro-batches of 4, 3
// and 1 samples are one batch of 8.
TEST_P(AccumulationCases, O03_EveryOptimizerSeesALargeBatch) {
  const Values x = {0.5, -1, 2, 0.25, 1.5, -0.75, 1, 3};
  const auto make = [](int rule, const Tensor& w) -> std::unique_ptr<Optimizer> {
    if (rule == 0) return sgd_of({w}, {.lr = 0.1, .momentum = 0.9, .nesterov = true}, 0.1);
    AdamOptions options;
    options.lr = 0.1;
    options.decoupled = rule == 2;
    return std::make_unique<Adam>(
        std::vector<ParameterGroup>{{.parameters = {w}, .weight_decay = 0.1}}, options);
  };
  for (int rule = 0; rule < 3; ++rule) {
    std::vector<Values> weights;
    for (const bool cut : {false, true}) {
      GradScaler scaler({.init_scale = 1024}, device());
      Tensor w = leaf({1}, {1});
      const auto optimizer = make(rule, w);
      for (int step = 0; step < 3; ++step) {
        std::vector<Values> micro_batches = {x};
        if (cut) {
          micro_batches = {{x.begin(), x.begin() + 4}, {x.begin() + 4, x.begin() + 7}, {x[7]}};
        }
        for (const Values& part : micro_batches) {
          const Tensor y = mul(tensor(part, {static_cast<int64_t>(part.size())}), w);
          backward(sum(mul(y, y)), scaler.seed(1.0 / static_cast<double>(x.size())));
        }
        optimizer->step({.scaler = &scaler, .clip_norm = 2});
        optimizer->zero_grad();
      }
      EXPECT_EQ(optimizer->applied_steps(), 3);
      weights.push_back(values_of(w));
    }
    EXPECT_NE(weights[0][0], 1);
    EXPECT_NEAR(weights[0][0], weights[1][0], 1e-6) << "rule " << rule;
  }
}

TEST_P(AccumulationCases, O04_WarmUpCountsOptimizerStepsAndDoesNotWasteStepOne) {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::constant;
  schedule.lr = 0.4;
  schedule.warmup_steps = 4;
  schedule.total_steps = 4;
  Tensor w = leaf({0}, {1});
  const auto optimizer = sgd_of({w}, {});
  optimizer->set_schedule(make_schedule(schedule));
  std::vector<double> rates;
  for (int micro_batch = 0; micro_batch < 12; ++micro_batch) {
    backward(w, scalar(1.0 / 3, {DType::f32, device()}));
    if (micro_batch % 3 != 2) continue;
    optimizer->step();
    optimizer->zero_grad();
    rates.push_back(optimizer->last_lr());
  }
  ASSERT_EQ(rates.size(), 4u);
  for (int k = 0; k < 4; ++k) EXPECT_FLOAT_EQ(rates[static_cast<size_t>(k)], 0.1f * (k + 1));
  expect_values(w, {-1});
}

TEST_P(AccumulationCases, O05_BatchNormUnderAccumulationSeesMicroBatches) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const MemoryFormat format : testing_kernels::kFormats) {
      for (const Shape& shape : {Shape{2, 1, 1, 1}, Shape{1, 1, 1, 2}}) {
        const Tensor mean = tensor({0}, {1}), var = tensor({1}, {1});
        for (const Values& x : {Values{0, 2}, Values{4, 6}}) {
          const Tensor y = batch_norm(tensor(x, shape, dtype, format), {{}, {}, mean, var});
          expect_values(y, {-0.999995, 0.999995});
        }
        expect_values(mean, {0.59});
        expect_values(var, {1.19});
      }
    }
  }
}

TEST_P(AccumulationCases, O06_ClipTheAccumulatedGradientOnce) {
  Tensor a = leaf({0}, {1}), b = leaf({0}, {1});
  const auto optimizer = sgd_of({a, b}, {.lr = 1});
  const Tensor half = scalar(0.5, {DType::f32, device()});
  backward(add(mul(a, 6), mul(b, 8)), half);
  backward(add(mul(a, 0), mul(b, -8)), half);
  optimizer->step({.clip_norm = 5});
  EXPECT_NEAR(optimizer->last_grad_norm(), 3, 3e-6);
  expect_values(a, {-3});
  EXPECT_EQ(b.item(), 0);
}

TEST_P(AccumulationCases, O07_OneBadMicroBatchSkipsTheWindowHalvesOnceAndClearsEverything) {
  for (const double bad : Values{INFINITY, -INFINITY, NAN}) {
    for (const DType dtype : dtypes()) {
      GradScaler scaler({.init_scale = 65536}, device());
      Tensor w = leaf({1}, {1}, dtype);
      Adam optimizer({{.parameters = {w}}}, {.lr = 0.1});
      optimizer.set_schedule({0.1f, 0.05f});
      const auto window = [&](const Values& gradients) {
        for (const double g : gradients) backward(mul(w, g), scaler.seed(0.25));
        optimizer.step({.scaler = &scaler});
        optimizer.zero_grad();
      };
      window({1, bad, 1, 1});
      EXPECT_EQ(w.item(), 1);
      EXPECT_EQ(optimizer.applied_steps(), 0);
      EXPECT_TRUE(optimizer.last_step_skipped());
      EXPECT_EQ(scaler.current_scale(), 32768);
      EXPECT_FALSE(w.grad().defined());
      window({2, 2, 2, 2});
      expect_values(w, {0.9});
      EXPECT_EQ(optimizer.applied_steps(), 1);
      EXPECT_FALSE(optimizer.last_step_skipped());
      EXPECT_EQ(optimizer.last_lr(), 0.1f);
      EXPECT_EQ(scaler.current_scale(), 32768);
    }
  }
}

// The same in the middle of training: momentum, moments and counts stay as the last step left them,
// also those of parameters whose own gradients were finite.
TEST_P(AccumulationCases, O07_ASkippedWindowLeavesEveryStateAlone) {
  for (const bool is_adam : {false, true}) {
    GradScaler scaler({.init_scale = 64}, device());
    Tensor good = leaf({1, 2}, {2}), bad = leaf({3}, {1});
    std::unique_ptr<Optimizer> optimizer;
    if (is_adam) {
      optimizer = std::make_unique<Adam>(
          std::vector<ParameterGroup>{{.parameters = {good}, .weight_decay = 0.1},
                                      {.parameters = {bad}}},
          AdamOptions{});
    } else {
      optimizer = sgd_of({good, bad}, {.lr = 0.1, .momentum = 0.9}, 0.1);
    }
    const auto step = [&](double gradient) {
      backward(sum(mul(good, 2)), scaler.seed());
      backward(mul(bad, gradient), scaler.seed());
      optimizer->step({.scaler = &scaler, .clip_norm = 1});
      optimizer->zero_grad();
    };
    const auto everything = [&] {
      Values out = values_of(good);
      out.push_back(bad.item());
      for (const OptimizerState& entry : optimizer->state_dict()) {
        for (const double v : values_of(entry.tensor)) out.push_back(v);
      }
      return out;
    };
    step(1);
    const Values before = everything();
    step(INFINITY);
    EXPECT_EQ(everything(), before);
    step(1);
    EXPECT_NE(everything(), before);
    EXPECT_EQ(scaler.current_scale(), 32);
  }
}

}  // namespace
}  // namespace headroom::cases
