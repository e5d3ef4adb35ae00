// Accumulation: one optimizer step sees the mean over all samples of its window, however the window
// is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "optim/optimizer.h"
#include "tests/train/trainer_run.h"
#include "train/meters.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;
using test::Recorder;
using test::small_config;
using test::weights_of;

// y = w * x, loss = mean of y^2 over the window, as the trainer does it: each micro-batch adds its
// sum, scaled by the samples of the whole window.
struct Scalar {
  Tensor w = ones({1});
  std::unique_ptr<Sgd> optimizer;

  Scalar() {
    w.set_requires_grad(true);
    SgdOptions options;
    options.lr = 0.01;
    optimizer = std::make_unique<Sgd>(std::vector<ParameterGroup>{{.parameters = {w}}}, options);
  }
  void window(const std::vector<Floats>& micro_batches) {
    size_t samples = 0;
    for (const Floats& x : micro_batches) samples += x.size();
    for (const Floats& x : micro_batches) {
      const Tensor y = mul(from_vector(x, {static_cast<int64_t>(x.size())}), w);
      backward(sum(mul(y, y)), scalar(1.0 / static_cast<double>(samples)));
    }
  }
  void step() {
    optimizer->step();
    optimizer->zero_grad();
  }
};

// O01.
TEST(Accumulation, WeighsUnevenMicroBatchesByTheirSize) {
  Scalar model;
  model.window({{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10}});
  EXPECT_NEAR(model.w.grad().item(), 77, 1e-4);
  model.step();
  EXPECT_NEAR(model.w.item(), 0.23, 1e-6);
}

// O02.
TEST(Accumulation, AppliesTheLastShortWindowAtFullWeight) {
  Scalar model;
  model.window({{1, 2}, {3, 4}, {5, 6}, {7, 8}});
  model.step();
  EXPECT_NEAR(model.w.item(), 0.49, 1e-6);
  model.window({{9, 10}});
  model.step();
  EXPECT_NEAR(model.w.item(), -0.3969, 1e-6);
  EXPECT_EQ(model.optimizer->applied_steps(), 2);
}

// O05.
TEST(Accumulation, BatchNormSeesEachMicroBatchAlone) {
  const Tensor mean = zeros({1}), var = ones({1});
  for (const Floats& values : {Floats{0, 2}, Floats{4, 6}}) {
    const Floats y =
        batch_norm(from_vector(values, {2, 1}), {{}, {}, mean, var}).to_vector<float>();
    EXPECT_NEAR(y[0], -0.999995, 1e-6);
    EXPECT_NEAR(y[1], 0.999995, 1e-6);
  }
  EXPECT_NEAR(mean.item(), 0.59, 1e-6);
  EXPECT_NEAR(var.item(), 1.19, 1e-6);
}

// 50 images in windows of 24: micro-batches of 8, 8, 8, then 8, 8, 8, then 2.
TEST(TrainerAccumulation, EqualsTheLargeBatchAlsoInTheLastWindow) {
  for (const double smoothing : {0.0, 0.1}) {
    TrainConfig small = small_config();
    small.accum = 3;
    small.label_smoothing = smoothing;
    TrainConfig large = small;
    large.batch = 24;
    large.accum = 1;
    Recorder of_small, of_large;
    Trainer a(small), b(large);
    const auto before = weights_of(a);
    a.run(of_small);
    b.run(of_large);
    ASSERT_EQ(of_small.losses.size(), 6u);
    ASSERT_EQ(of_large.losses.size(), 6u);
    EXPECT_EQ(of_small.steps[2].images, 2);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(of_small.steps[i].images, of_large.steps[i].images);
      EXPECT_NEAR(of_small.losses[i], of_large.losses[i], 1e-4 * of_large.losses[i]) << i;
    }
    const auto x = weights_of(a), y = weights_of(b);
    double moved = 0, apart = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      moved = std::max(moved, std::abs(x[i] - before[i]));
      apart = std::max(apart, std::abs(x[i] - y[i]));
    }
    EXPECT_LT(apart, 1e-3 * moved);
  }
}

TEST(TrainerAccumulation, UnevenMicroBatchesWithinAWindowToo) {
  // Windows of 4 * 16: 16, 16, 16, 2 of the 50 images; the large batch takes them at once.
  TrainConfig small = small_config();
  small.batch = 16;
  small.accum = 4;
  TrainConfig large = small;
  large.batch = 50;
  large.accum = 1;
  Recorder of_small, of_large;
  Trainer(small).run(of_small);
  Trainer(large).run(of_large);
  ASSERT_EQ(of_small.losses.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(of_small.losses[i], of_large.losses[i], 1e-4 * of_large.losses[i]);
  }
}

TEST(TrainerAccumulation, DropLastLeavesTheShortWindowOut) {
  TrainConfig config = small_config();
  config.accum = 3;
  config.drop_last = true;
  Recorder recorder;
  Trainer trainer(config);
  EXPECT_EQ(trainer.info().steps_per_epoch, 2);
  trainer.run(recorder);
  ASSERT_EQ(recorder.steps.size(), 4u);
  for (const StepInfo& step : recorder.steps) EXPECT_EQ(step.images, 24);
}

// O53.
TEST(TrainerAccumulation, FewerImagesThanABatchAreOneStepAtFullWeight) {
  TrainConfig config = small_config("lenet", "random:1x12x12:4:5");
  config.batch = 16;
  config.accum = 4;
  TrainConfig exact = config;
  exact.batch = 5;
  exact.accum = 1;
  Recorder a, b;
  Trainer(config).run(a);
  Trainer(exact).run(b);
  ASSERT_EQ(a.steps.size(), 2u);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.steps[0].images, 5);
  config.drop_last = true;
  EXPECT_THROW(Trainer trainer(config), InvalidArgument);
}

Tensor sum_of(double mean, int64_t count) { return scalar(mean * static_cast<double>(count)); }

// O49.
TEST(LossMeter, EpochMeansWeighSamples) {
  LossMeter meter;
  meter.open(Device::cpu());
  EXPECT_TRUE(std::isnan(meter.mean()));
  meter.add(sum_of(0.7, 256), 256, true);
  meter.add(sum_of(0.8, 256), 256, true);
  meter.add(sum_of(0.9, 10), 10, true);
  EXPECT_NEAR(meter.mean(), 0.7528736, 1e-6);
  EXPECT_NEAR(meter.last_window_mean(), 0.9, 1e-6);
}

TEST(LossMeter, CountsExactlyBeyondWhatAnF32Counts) {
  LossMeter meter;
  meter.open(Device::cpu());
  meter.restore(0, 16'777'216);
  meter.add(scalar(0), 1, true);
  EXPECT_EQ(meter.count(), 16'777'217);
}

TEST(LossMeter, LongSumsStayExact) {
  LossMeter meter;
  meter.open(Device::cpu());
  const Tensor loss = scalar(2.3);
  for (int i = 0; i < 200'000; ++i) meter.add(loss, 1, true);
  EXPECT_NEAR(meter.mean(), 2.3, 1e-6);
}

TEST(LossMeter, MicroBatchesOfAWindowAddUpAndReadingMayHappenAnyTime) {
  const auto run = [](bool reads) {
    LossMeter meter;
    meter.open(Device::cpu());
    for (int window = 0; window < 600; ++window) {  // beyond the ring
      for (int i = 0; i < 3; ++i) {
        // Only between windows: inside one the last entry is still open.
        meter.add(sum_of(0.1 * window + i, 2), 2, i == 0);
      }
      if (reads && window % 7 == 0) {
        EXPECT_NEAR(meter.last_window_mean(), 0.1 * window + 1, 1e-4);
      }
    }
    return std::pair(meter.sum(), meter.count());
  };
  EXPECT_EQ(run(true), run(false));
  EXPECT_EQ(run(false).second, 3600);
}

TEST(Trainer, MeansOfEpochsAreThoseOfTheirSamples) {
  Recorder recorder;
  const RunResult result = Trainer(small_config()).run(recorder);
  ASSERT_EQ(recorder.epochs.size(), 2u);
  double sum = 0, count = 0;
  for (size_t i = 0; i < recorder.steps.size(); ++i) {
    if (recorder.steps[i].epoch != 2) continue;
    sum += recorder.losses[i] * static_cast<double>(recorder.steps[i].images);
    count += static_cast<double>(recorder.steps[i].images);
  }
  EXPECT_EQ(count, 50);
  EXPECT_NEAR(recorder.epochs[1].train_loss, sum / count, 1e-6);
  EXPECT_EQ(result.train_loss, recorder.epochs[1].train_loss);
}

}  // namespace
}  // namespace headroom
