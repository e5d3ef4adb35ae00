// O01, O02, O04, O07 and O49 through the trainer: a real model, and the same model trained in a way
// that must come to the same.
#include <algorithm>
#include <functional>

#include "tests/cases/case_test.h"
#include "tests/train/trainer_run.h"

namespace headroom::cases {
namespace {

using test::Recorder;
using test::weights_of;

class TrainingCases : public CaseTest {
 protected:
  TrainConfig config(const std::string& data) const {
    TrainConfig out = test::small_config("lenet", data);
    out.device = name_of(device());
    out.cudnn = GetParam() != Backend::cuda_native;
    out.tf32 = Tf32::off;
    out.deterministic = true;
    return out;
  }

  // Both ways give the same steps: losses, and weights up to the rounding of sums.
  static void expect_same_training(const TrainConfig& a_config, const TrainConfig& b_config,
                                   const std::vector<int64_t>& images) {
    Recorder of_a, of_b;
    Trainer a(a_config), b(b_config);
    const auto before = weights_of(a);
    a.run(of_a);
    b.run(of_b);
    ASSERT_EQ(of_a.losses.size(), images.size());
    ASSERT_EQ(of_b.losses.size(), images.size());
    for (size_t i = 0; i < images.size(); ++i) {
      EXPECT_EQ(of_a.steps[i].images, images[i]);
      EXPECT_EQ(of_b.steps[i].images, images[i]);
      EXPECT_NEAR(of_a.losses[i], of_b.losses[i], 1e-4 * of_b.losses[i]) << i;
    }
    expect_same_weights(before, weights_of(a), weights_of(b));
  }
  static void expect_same_weights(const std::vector<double>& before, const std::vector<double>& a,
                                  const std::vector<double>& b) {
    double moved = 0, apart = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      moved = std::max(moved, std::abs(a[i] - before[i]));
      apart = std::max(apart, std::abs(a[i] - b[i]));
    }
    EXPECT_GT(moved, 0);
    EXPECT_LT(apart, 1e-3 * moved);
  }
};
HEADROOM_CASES(TrainingCases);

// 10 images: micro-batches of 4, 4 and 2 in one window.
TEST_P(TrainingCases, O01_UnevenMicroBatchesMustBeWeightedByTheirSize) {
  TrainConfig small = config("random:1x12x12:4:10");
  small.batch = 4;
  small.accum = 3;
  TrainConfig large = small;
  large.batch = 10;
  large.accum = 1;
  expect_same_training(small, large, {10, 10});
}

// 50 images in windows of 24: micro-batches of 8, 8, 8, then 8, 8, 8, then 2.
TEST_P(TrainingCases, O02_TheLastIncompleteWindowMustBeAppliedAtFullWeight) {
  for (const bool all_options : {false, true}) {
    TrainConfig small = config("random:1x12x12:4:50");
    small.accum = 3;
    small.label_smoothing = all_options ? 0.1 : 0;
    small.clip_norm = all_options ? 0.5 : 0;
    TrainConfig large = small;
    large.batch = 24;
    large.accum = 1;
    expect_same_training(small, large, {24, 24, 2, 24, 24, 2});
  }
}

// Its two images alone, as a whole batch: a run that stops before the window goes on with batch 2.
TEST_P(TrainingCases, O02_TheLastWindowCountsAsABatchOfItsOwnSize) {
  const test::TemporaryFolder folder;
  TrainConfig c = config("random:1x12x12:4:50");
  c.accum = 3;
  c.epochs = 1;
  c.schedule = "constant";
  c.warmup = 0;
  Recorder whole;
  Trainer to_the_end(c);
  to_the_end.run(whole);
  ASSERT_EQ(whole.steps.size(), 3u);

  TrainConfig first = c;
  first.save = folder.file("run.safetensors");
  Recorder two;
  Trainer stopped(first);
  stopped.run(two, [&] { return two.steps.size() == 2; });
  TrainConfig rest = c;
  rest.resume = first.save;
  rest.batch = 2;
  rest.accum = 1;
  Recorder last;
  Trainer resumed(rest);
  const auto before = weights_of(resumed);
  EXPECT_EQ(before, weights_of(stopped));
  resumed.run(last, [] { return true; });
  ASSERT_EQ(last.steps.size(), 1u);
  EXPECT_EQ(last.steps[0].images, 2);
  EXPECT_NEAR(last.losses[0], whole.losses[2], 1e-5);
  expect_same_weights(before, weights_of(to_the_end), weights_of(resumed));
}

TEST_P(TrainingCases, O04_WarmUpCountsOptimizerStepsAndDoesNotWasteStepOne) {
  TrainConfig small = config("random:1x12x12:4:96");
  small.epochs = 1;
  small.accum = 3;
  small.schedule = "constant";
  small.lr = 0.04;
  small.warmup = 4;
  TrainConfig large = small;
  large.batch = 24;
  large.accum = 1;
  expect_same_training(small, large, {24, 24, 24, 24});
  struct Rates : Recorder {
    std::vector<double> rates;
    void on_step(const StepInfo& step) override { rates.push_back(step.read_lr()); }
  } watch;
  Trainer(small).run(watch);
  ASSERT_EQ(watch.rates.size(), 4u);
  for (size_t k = 0; k < 4; ++k) {
    EXPECT_FLOAT_EQ(static_cast<float>(watch.rates[k]), 0.01f * static_cast<float>(k + 1));
  }

  // The first step, at a quarter of the rate.
  TrainConfig constant = small;
  constant.lr = 0.01;
  constant.warmup = 0;
  Trainer warm(small), plain(constant);
  Recorder ignored;
  const auto after_one_step = [] { return true; };
  warm.run(ignored, after_one_step);
  plain.run(ignored, after_one_step);
  EXPECT_EQ(weights_of(warm), weights_of(plain));
}

// At the highest scale the first windows overflow in earnest.
TEST_P(TrainingCases, O07_OneBadMicroBatchSkipsTheWindowHalvesOnceAndClearsEverything) {
  TrainConfig c = config("random:1x12x12:4:32");
  c.accum = 4;  // one window per epoch
  c.epochs = 26;
  c.amp = DType::f16;
  c.init_scale = 0x1p40;
  c.optimizer = "adam";
  c.schedule = "constant";
  c.lr = 0x1p-8;
  c.warmup = 4;
  c.weight_decay = 0;
  struct Watch : Recorder {
    std::function<std::vector<double>()> weights;
    std::vector<std::vector<double>> history;
    void on_step(const StepInfo& step) override {
      Recorder::on_step(step);
      history.push_back(weights());
    }
  } watch;
  Trainer trainer(c);
  watch.weights = [&] { return weights_of(trainer); };
  watch.history.push_back(weights_of(trainer));
  const RunResult result = trainer.run(watch);
  ASSERT_EQ(watch.epochs.size(), 26u);
  double scale = c.init_scale;
  int64_t skipped = 0;
  for (size_t i = 0; i < watch.epochs.size(); ++i) {
    const auto &before = watch.history[i], &after = watch.history[i + 1];
    if (watch.epochs[i].loss_scale == scale) {
      EXPECT_NE(before, after) << "step " << i;
      if (skipped == static_cast<int64_t>(i)) {
        // Adam's first step moves a weight by the rate, here that of the first of four steps of
        // warm-up: neither counter moved while steps were skipped.
        double moved = 0;
        for (size_t k = 0; k < before.size(); ++k) {
          moved = std::max(moved, std::abs(after[k] - before[k]));
        }
        EXPECT_NEAR(moved, 0x1p-10, 1e-3 * 0x1p-10);
      }
      continue;
    }
    EXPECT_EQ(watch.epochs[i].loss_scale, scale / 2) << "step " << i;
    EXPECT_EQ(before, after) << "step " << i;
    scale /= 2;
    ++skipped;
  }
  EXPECT_GT(skipped, 10);
  EXPECT_LT(skipped, 26) << "the scale never came down to where gradients fit";
  EXPECT_EQ(result.skipped_steps, skipped);
}

TEST_P(TrainingCases, O49_EpochAveragesWeighSamples) {
  for (const int64_t accum : {1, 3}) {
    TrainConfig c = config("random:1x12x12:4:50");
    c.accum = accum;
    c.lr = 1e-9;  // losses of two passes over the same weights
    c.evaluate = true;
    Recorder recorder;
    Trainer trainer(c);
    const RunResult result = trainer.run(recorder);
    ASSERT_EQ(recorder.epochs.size(), 2u);
    double sum = 0, count = 0, plain = 0, steps = 0;
    for (size_t i = 0; i < recorder.steps.size(); ++i) {
      if (recorder.steps[i].epoch != 2) continue;
      sum += recorder.losses[i] * static_cast<double>(recorder.steps[i].images);
      count += static_cast<double>(recorder.steps[i].images);
      plain += recorder.losses[i];
      ++steps;
    }
    EXPECT_EQ(count, 50);
    EXPECT_GT(std::abs(plain / steps - sum / count), 1e-5) << "the data cannot tell them apart";
    EXPECT_NEAR(recorder.epochs[1].train_loss, sum / count, 1e-6);
    EXPECT_EQ(result.train_loss, recorder.epochs[1].train_loss);

    // The 10 images held out are cut unevenly or taken at once, which may change the convolutions'
    // algorithm and so the last digits of every logit.
    TrainConfig whole = c;
    whole.eval_batch = 10;
    Recorder of_whole;
    Trainer(whole).run(of_whole);
    EXPECT_NEAR(recorder.epochs[1].test_loss, of_whole.epochs[1].test_loss, 1e-5);
    EXPECT_EQ(recorder.epochs[1].test_accuracy, of_whole.epochs[1].test_accuracy);
  }
}

}  // namespace
}  // namespace headroom::cases
