// Remedies that are flags of a run: the peak falls, and the training stays what it was to the bit.
#include <gtest/gtest.h>

#include "tests/train/trainer_run.h"

namespace headroom {
namespace {

using test::Recorder;
using test::small_config;
using test::weights_of;

struct Outcome {
  std::vector<double> losses, weights;
  int64_t peak = 0;
};

Outcome outcome_of(TrainConfig config) {
  Recorder recorder;
  Trainer trainer(config);
  const RunResult result = trainer.run(recorder);
  return {recorder.losses, weights_of(trainer), result.peak.allocated};
}

TrainConfig four_steps(const std::string& model, const std::string& data) {
  TrainConfig config = small_config(model, data);
  config.epochs = 0;
  config.steps = 4;
  return config;
}

void expect_same_training_in_less(const TrainConfig& plain, const TrainConfig& remedy,
                                  double share) {
  const Outcome before = outcome_of(plain), after = outcome_of(remedy);
  EXPECT_EQ(after.losses, before.losses);
  EXPECT_EQ(after.weights, before.weights);
  EXPECT_LT(static_cast<double>(after.peak), share * static_cast<double>(before.peak));
}

TEST(Remedies, AStepInBackwardKeepsNoSetOfGradients) {
  for (const char* optimizer : {"sgd", "adamw"}) {
    for (const int64_t accum : {1, 2}) {
      TrainConfig plain = four_steps("resnet18", "random:3x16x16:4:64");
      plain.optimizer = optimizer;
      plain.accum = accum;
      TrainConfig remedy = plain;
      remedy.step_in_backward = true;
      // With accumulation the gradients are alive all the same until the last micro-batch, and the
      // blocks that come free in another order are split otherwise.
      expect_same_training_in_less(plain, remedy, accum == 1 ? 0.95 : 1.02);
    }
  }
  TrainConfig half = four_steps("resnet18", "random:3x16x16:4:64");
  half.amp = DType::bf16;
  TrainConfig remedy = half;
  remedy.step_in_backward = true;
  expect_same_training_in_less(half, remedy, 0.95);
}

TEST(Remedies, PackedReluMasksShrinkANetWhoseReluNobodyElseKeeps) {
  TrainConfig plain = four_steps("lenet", "random:1x28x28:10:256");
  plain.batch = 64;
  TrainConfig remedy = plain;
  remedy.save_policy = SavePolicy::pack;
  expect_same_training_in_less(plain, remedy, 0.9);
}

TEST(Remedies, RecomputingNormsBeatsKeepingThem) {
  TrainConfig plain = four_steps("vgg16", "random:3x32x32:10:32");
  plain.save_policy = SavePolicy::keep;
  plain.steps = 2;
  TrainConfig remedy = plain;
  remedy.save_policy = SavePolicy::recompute;
  expect_same_training_in_less(plain, remedy, 1);
}

// What NoGrad saves: without it each batch of evaluation keeps a tape, and counts the same.
TEST(Remedies, EvaluationHoldsWhatATapeKeepsOnlyIfAskedTo) {
  for (const auto& [model, data] :
       {std::pair("lenet", "random:1x28x28:10:48"), {"resnet18", "random:3x16x16:4:48"}}) {
    for (const bool amp : {false, true}) {
      SCOPED_TRACE(std::string(model) + (amp ? " amp" : ""));
      TrainConfig without = four_steps(model, data);
      without.steps = 2;
      without.batch = 16;
      without.evaluate = true;
      if (amp) without.amp = DType::f16;
      TrainConfig with = without;
      with.eval_with_grad = true;
      std::vector<RunResult> results;
      std::vector<std::vector<double>> weights;
      for (const TrainConfig* config : {&without, &with}) {
        empty_cache(Device::cpu());  // blocks are cut from what earlier runs left
        Recorder recorder;
        Trainer trainer(*config);
        results.push_back(trainer.run(recorder));
        weights.push_back(weights_of(trainer));
      }
      EXPECT_EQ(results[1].test_loss, results[0].test_loss);
      EXPECT_EQ(results[1].test_accuracy, results[0].test_accuracy);
      EXPECT_EQ(weights[1], weights[0]);
      EXPECT_EQ(results[1].peak.allocated, results[0].peak.allocated);
      const auto saved = [](const RunResult& result) {
        return result.evaluation.parts[static_cast<size_t>(Tag::saved_activation)];
      };
      EXPECT_EQ(saved(results[0]), 0);
      EXPECT_GT(saved(results[1]), 0);
      EXPECT_GT(results[1].evaluation.allocated, results[0].evaluation.allocated);
      with.device = "meta:cpu";
      empty_cache(parse_device(with.device));
      TrainObserver nobody;
      const RunResult predicted = Trainer(with).run(nobody);
      EXPECT_EQ(predicted.evaluation.allocated, results[1].evaluation.allocated);
      EXPECT_EQ(predicted.evaluation.parts, results[1].evaluation.parts);
    }
  }
}

TEST(Remedies, AStepInBackwardRefusesWhatNeedsAllGradients) {
  TrainConfig config = four_steps("lenet", "random:1x12x12:4:50");
  config.step_in_backward = true;
  config.amp = DType::f16;
  EXPECT_THROW(validate(config), InvalidArgument);
  config.amp.reset();
  config.clip_norm = 1;
  EXPECT_THROW(validate(config), InvalidArgument);
  config.clip_norm = 0;
  config.on_oom = OnOutOfMemory::halve_batch;
  EXPECT_THROW(validate(config), InvalidArgument);
}

}  // namespace
}  // namespace headroom
