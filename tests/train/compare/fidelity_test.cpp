// Labels and the differences behind them.
#include "train/compare/fidelity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "core/tensor/generator.h"
#include "nn/models/models.h"
#include "tests/train/trainer_run.h"
#include "train/compare/first_step.h"

namespace headroom {
namespace {

constexpr double kF32 = 0x1p-24, kF16 = 0x1p-11;

TrainingFacts some_facts() {
  TrainingFacts facts;
  facts.gradient_difference = 1e-5;
  facts.batch_norm_difference = 1e-6;
  facts.has_batch_norm = true;
  facts.loss = 2;
  facts.early_loss = 2;
  facts.fingerprint = "a";
  facts.step_images = facts.micro_batch = 64;
  facts.depth = 4;
  facts.unit_roundoff = kF32;
  for (const char* key : {"model", "classifier", "data", "image_size", "augment", "drop_last",
                          "optimizer", "lr", "momentum", "nesterov", "schedule", "warmup",
                          "weight_decay", "clip_norm", "seed", "label_smoothing"}) {
    facts.config[key] = 1;
  }
  return facts;
}

FidelityLabel label_of(const std::function<void(TrainingFacts&)>& change) {
  TrainingFacts row = some_facts();
  row.fingerprint = "b";
  change(row);
  return fidelity_of(row, some_facts()).label;
}

TEST(Fidelity, TheBoundGrowsWithTheRoundoffAndTheDepthUpToOne) {
  // 6 * sqrt(u) * L^0.75, worked out by hand.
  EXPECT_NEAR(gradient_bound(kF32, 4), 4.1432e-3, 1e-6);
  EXPECT_NEAR(gradient_bound(kF16, 4), 0.37500, 1e-4);
  EXPECT_NEAR(gradient_bound(kF32, 54), 2.918e-2, 2e-5);
  EXPECT_EQ(gradient_bound(kF16, 54), 1);
  EXPECT_EQ(loss_bound(kF32, 4), gradient_bound(kF32, 4));
  EXPECT_EQ(loss_bound(kF16, 4), 0.25);
  // 16 u sqrt(2 L)
  EXPECT_NEAR(batch_norm_bound(kF16, 8), 0x1p-5, 1e-9);
}

TEST(Fidelity, IsBitIdenticalOnlyIfEveryBitIs) {
  const auto identical = [](TrainingFacts& row) {
    row.first_step_identical = true;
    row.fingerprint = "a";
  };
  EXPECT_EQ(label_of(identical), FidelityLabel::bit_identical);
  EXPECT_EQ(label_of([&](TrainingFacts& row) { identical(row), row.fingerprint = "b"; }),
            FidelityLabel::rounding);
  EXPECT_EQ(label_of([&](TrainingFacts& row) { identical(row), row.first_step_identical = false; }),
            FidelityLabel::rounding);
  EXPECT_EQ(label_of([&](TrainingFacts& row) { identical(row), row.loss += 1e-9; }),
            FidelityLabel::rounding);
}

TEST(Fidelity, EachDifferenceBeyondTheBoundChangesTheTraining) {
  EXPECT_EQ(label_of([](TrainingFacts&) {}), FidelityLabel::rounding);
  const double beyond = 1.01 * gradient_bound(kF32, 4);
  EXPECT_EQ(label_of([&](TrainingFacts& row) { row.gradient_difference = beyond; }),
            FidelityLabel::changes_training);
  EXPECT_EQ(label_of([&](TrainingFacts& row) {
              row.batch_norm_difference = 1.01 * batch_norm_bound(kF32, 4);
            }),
            FidelityLabel::changes_training);
  EXPECT_EQ(label_of([&](TrainingFacts& row) { row.early_loss *= 1 + beyond; }),
            FidelityLabel::changes_training);
  EXPECT_EQ(label_of([](TrainingFacts& row) { row.early_loss = NAN; }),
            FidelityLabel::changes_training);
  // In a deep network in half precision gradients tell nothing.
  EXPECT_EQ(label_of([&](TrainingFacts& row) {
              row.gradient_difference = 1.98;
              row.unit_roundoff = 0x1p-5;
            }),
            FidelityLabel::rounding);
  // Many steps magnify any difference.
  EXPECT_EQ(label_of([](TrainingFacts& row) { row.loss *= 2; }), FidelityLabel::rounding);
  EXPECT_EQ(label_of([](TrainingFacts& row) { row.gradient_difference.reset(); }),
            FidelityLabel::changes_training);
  // Half precision in one of both is allowed more.
  EXPECT_EQ(label_of([&](TrainingFacts& row) {
              row.gradient_difference = beyond;
              row.unit_roundoff = kF16;
            }),
            FidelityLabel::rounding);
}

TEST(Fidelity, AChangedTrainingSaysWhichMeasureTellsIt) {
  const auto reason_of = [](const std::function<void(TrainingFacts&)>& change) {
    TrainingFacts row = some_facts();
    row.fingerprint = "b";
    change(row);
    return fidelity_of(row, some_facts()).reason;
  };
  EXPECT_EQ(reason_of([](TrainingFacts&) {}), "");
  EXPECT_EQ(reason_of([](TrainingFacts& row) { row.gradient_difference = 0.5; }),
            "gradients differ by 5.0e-01, rounding explains 4.1e-03");
  EXPECT_EQ(reason_of([](TrainingFacts& row) { row.gradient_difference.reset(); }),
            "gradients cannot be compared: other shapes, or not finite");
  EXPECT_EQ(reason_of([](TrainingFacts& row) { row.early_loss *= 2; }),
            "early losses differ by 1.0e+00, rounding explains 4.1e-03");
  EXPECT_EQ(reason_of([](TrainingFacts& row) { row.batch_norm_difference = 1; }),
            "running statistics differ by 1.0e+00, rounding explains 2.7e-06");
  EXPECT_EQ(reason_of([](TrainingFacts& row) {
              row.config["lr"] = 2;
              row.gradient_difference = 0.5;
            }),
            "lr");
}

TEST(Fidelity, AnotherTrainingIsOneWhateverItsFirstNumbersSay) {
  const TrainingFacts usual = some_facts();
  for (const auto& [key, value] : usual.config.items()) {
    EXPECT_EQ(label_of([&](TrainingFacts& row) { row.config[key] = 2; }),
              FidelityLabel::changes_training)
        << key;
  }
  EXPECT_EQ(label_of([](TrainingFacts& row) { row.step_images = 32; }),
            FidelityLabel::changes_training);
  EXPECT_EQ(label_of([](TrainingFacts& row) { row.skipped_steps = 1; }),
            FidelityLabel::changes_training);
  // A micro-batch of another size matters where batch norm sees it.
  EXPECT_EQ(label_of([](TrainingFacts& row) { row.micro_batch = 16; }),
            FidelityLabel::changes_training);
  TrainingFacts first = some_facts(), row = some_facts();
  first.has_batch_norm = row.has_batch_norm = false;
  row.micro_batch = 16;
  row.fingerprint = "b";
  EXPECT_EQ(fidelity_of(row, first).label, FidelityLabel::rounding);
}

NamedValues values(const std::string& name, std::vector<float> v) {
  return {name, {static_cast<int64_t>(v.size())}, std::move(v)};
}

TEST(FirstStep, TheLargestDifferenceIsRelativeToEachTensorsLargestValue) {
  EXPECT_EQ(largest_difference({values("a", {100, -4}), values("b", {1, 0.5f})},
                               {values("a", {101, -4}), values("b", {1, 0.25f})}),
            0.25);
  EXPECT_EQ(largest_difference({values("a", {0, 0})}, {values("a", {0, 0})}), 0.0);
  EXPECT_FALSE(largest_difference({values("a", {1, 0})}, {values("a", {0, 0})}).has_value());
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(largest_difference({values("a", {inf})}, {values("a", {1})}).has_value());
  EXPECT_FALSE(largest_difference({values("a", {inf})}, {values("a", {inf})}).has_value());
  EXPECT_FALSE(largest_difference({values("a", {1})}, {values("b", {1})}).has_value());
  EXPECT_FALSE(largest_difference({values("a", {1})}, {values("a", {1, 2})}).has_value());
  EXPECT_FALSE(largest_difference({}, {}).has_value());
}

TEST(FirstStep, ValuesDoNotDependOnTheLayoutNorOnTheWayThroughAFile) {
  const test::TemporaryFolder folder;
  std::vector<FirstStep> steps;
  for (const MemoryFormat layout : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    ModelOptions options;
    options.channels = 3;
    options.image_size = 32;
    options.tensor = {DType::f32, Device::cpu(), layout};
    manual_seed(3);
    const auto model = make_model("resnet18", options);
    for (const NamedTensor& entry : model->named_parameters()) {
      Tensor parameter = entry.tensor;
      parameter.set_grad(parameter.detach());
    }
    const int64_t before = memory_allocated(Device::cpu());
    const int64_t peak_before = (reset_peak_memory_stats(Device::cpu()), before);
    steps.push_back(first_step_of({1, model.get(), [] { return 2.0; }}));
    EXPECT_EQ(max_memory_allocated(Device::cpu()), peak_before) << "it would count in the peak";
    steps.back().gradients[0].values[0] = -0.0f;
    const std::string file = folder.file("step");
    write_first_step(file, steps.back());
    EXPECT_TRUE(are_identical(read_first_step(file), steps.back()));
  }
  EXPECT_TRUE(are_identical(steps[0], steps[1]));
  EXPECT_GT(steps[0].buffers.size(), 30u);
  EXPECT_EQ(largest_difference(steps[0].gradients, steps[1].gradients), 0.0);
  FirstStep other = steps[0];
  other.gradients[0].values[0] = 0.0f;  // equal, and other bits
  EXPECT_FALSE(are_identical(other, steps[0]));
  EXPECT_EQ(largest_difference(other.gradients, steps[0].gradients), 0.0);
}

}  // namespace
}  // namespace headroom
