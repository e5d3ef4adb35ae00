// --memory-threshold: what a run does after a step that left the device too full.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/train/trainer_run.h"
#include "train/memory_guard.h"

namespace headroom {
namespace {

using test::Recorder;
using test::small_config;
using test::TemporaryFolder;

class ThresholdRecorder : public Recorder {
 public:
  void on_threshold(const ThresholdInfo& info) override { crossed.push_back(info); }
  std::vector<ThresholdInfo> crossed;
};

class MemoryThreshold : public testing::Test {
 protected:
  void TearDown() override { allocator().set_memory_limit(0); }
  CachingAllocator& allocator() { return allocator_of(Device::cpu()); }

  // Six steps of resnet18, all of which leave more than a thousandth of the limit reserved.
  TrainConfig always_over(OnThreshold action) {
    TrainConfig config = small_config("resnet18", "random:3x16x16:4:64");
    config.epochs = 0;
    config.steps = 6;
    config.memory_limit_bytes = int64_t{4} << 30;
    config.memory_threshold = 0.001;
    config.on_threshold = action;
    return config;
  }
};

TEST_F(MemoryThreshold, MeasuresTheShareOfTheLimitOrOfTheDevice) {
  const Tensor held = zeros({1 << 20});
  allocator().set_memory_limit(int64_t{1} << 30);
  const MemoryUse limited = memory_use(Device::cpu());
  EXPECT_EQ(limited.capacity_bytes, int64_t{1} << 30);
  EXPECT_EQ(limited.used_bytes, allocator().reserved_bytes());
  allocator().set_memory_limit(0);
  const MemoryUse whole = memory_use(Device::cpu());
  EXPECT_GT(whole.capacity_bytes, int64_t{1} << 28);
  EXPECT_GT(whole.share(), 0);
  EXPECT_LT(whole.share(), 1);
}

TEST_F(MemoryThreshold, TellsWhatAProcessHoldsBesidesItsSegments) {
  const std::optional<int64_t> before = bytes_outside(Device::cpu());
  ASSERT_TRUE(before);
  EXPECT_GT(*before, int64_t{1} << 20) << "at least the program itself";
  // Touched, so that they are resident; outside of the allocator, so that it does not know them.
  const std::vector<char> other(size_t{64} << 20, 'x');
  const std::optional<int64_t> after = bytes_outside(Device::cpu());
  ASSERT_TRUE(after);
  EXPECT_GE(*after - *before, int64_t{60} << 20);
  EXPECT_EQ(bytes_outside(parse_device("meta:cuda")), std::nullopt);
  EXPECT_EQ(outside_memory(Device::cpu()).at_most_bytes, std::nullopt) << "of GPUs alone";
}

TEST_F(MemoryThreshold, StaysSilentBelow) {
  TrainConfig config = always_over(OnThreshold::stop);
  config.memory_threshold = 0.99;
  ThresholdRecorder recorder;
  EXPECT_EQ(Trainer(config).run(recorder).steps, 6);
  EXPECT_TRUE(recorder.crossed.empty());
}

TEST_F(MemoryThreshold, WarnsOnceWhileItLasts) {
  ThresholdRecorder recorder;
  Trainer(always_over(OnThreshold::warn)).run(recorder);
  ASSERT_EQ(recorder.crossed.size(), 1u);
  EXPECT_EQ(recorder.crossed[0].step, 1);
  EXPECT_GT(recorder.crossed[0].used_bytes, int64_t{4} << 20);
}

TEST_F(MemoryThreshold, EmptiesTheCacheAfterEveryStepAndChangesNoBit) {
  TrainConfig config = always_over(OnThreshold::empty_cache);
  ThresholdRecorder recorder, undisturbed;
  Trainer(config).run(recorder);
  config.memory_threshold = 0;
  Trainer(config).run(undisturbed);
  ASSERT_EQ(recorder.crossed.size(), 6u);
  for (const ThresholdInfo& info : recorder.crossed) {
    EXPECT_LT(info.used_after_bytes, info.used_bytes) << info.step;
  }
  EXPECT_EQ(recorder.losses, undisturbed.losses);
}

TEST_F(MemoryThreshold, ChecksPointsFromThenOnToTheSameBitsAndALowerPeak) {
  TrainConfig config = always_over(OnThreshold::checkpoint);
  ThresholdRecorder recorder, undisturbed;
  Trainer trainer(config);
  const RunResult result = trainer.run(recorder);
  config.memory_threshold = 0;
  const RunResult plain = Trainer(config).run(undisturbed);
  ASSERT_EQ(recorder.crossed.size(), 2u);
  EXPECT_EQ(recorder.crossed[0].action, OnThreshold::checkpoint);
  EXPECT_EQ(recorder.crossed[1].action, OnThreshold::warn) << "there is nothing left to switch";
  EXPECT_TRUE(trainer.config().checkpoint);
  EXPECT_EQ(recorder.losses, undisturbed.losses);
  EXPECT_LT(result.peak.allocated, plain.peak.allocated);
}

TEST_F(MemoryThreshold, HalvesTheBatchDownToOneAndKeepsTheStepsImages) {
  TrainConfig config = always_over(OnThreshold::halve_batch);
  config.model = "lenet";
  config.data = "random:1x12x12:4:64";
  config.batch = 4;
  ThresholdRecorder recorder, undisturbed;
  Trainer trainer(config);
  trainer.run(recorder);
  config.memory_threshold = 0;
  Trainer(config).run(undisturbed);
  EXPECT_EQ(trainer.config().batch, 1);
  EXPECT_EQ(trainer.config().accum, 4);
  ASSERT_EQ(recorder.crossed.size(), 3u);
  EXPECT_EQ(recorder.crossed[1].batch, 1);
  EXPECT_EQ(recorder.crossed[2].action, OnThreshold::warn);
  for (size_t i = 0; i < recorder.losses.size(); ++i) {
    EXPECT_EQ(recorder.steps[i].images, 4);
    EXPECT_NEAR(recorder.losses[i], undisturbed.losses[i], 1e-5) << i;
  }
}

TEST_F(MemoryThreshold, StopsSavedAndCanBeResumed) {
  const TemporaryFolder folder;
  TrainConfig config = always_over(OnThreshold::stop);
  config.save = folder.file("run.safetensors");
  ThresholdRecorder recorder, rest, undisturbed;
  const RunResult result = Trainer(config).run(recorder);
  EXPECT_TRUE(result.over_threshold);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.steps, 1);
  config.memory_threshold = 0;
  config.resume = config.save;
  Trainer(config).run(rest);
  config.resume = config.save = "";
  Trainer(config).run(undisturbed);
  recorder.losses.insert(recorder.losses.end(), rest.losses.begin(), rest.losses.end());
  EXPECT_EQ(recorder.losses, undisturbed.losses);
}

}  // namespace
}  // namespace headroom
