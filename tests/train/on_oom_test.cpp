// --on-oom halve-batch: a step that does not fit is taken back whole and done again in smaller
// micro-batches over the same images.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/tensor/generator.h"
#include "tests/train/trainer_run.h"
#include "train/checkpoint/checkpoint.h"
#include "train/rollback.h"

namespace headroom {
namespace {

using test::bytes_of;
using test::Recorder;
using test::small_config;
using test::TemporaryFolder;

CachingAllocator& allocator() { return allocator_of(Device::cpu()); }

// Makes request number `at` of the step behind step `after` fail.
class FailingRecorder : public Recorder {
 public:
  FailingRecorder(int64_t after, int64_t at) : after_(after), at_(at) {}
  ~FailingRecorder() override { allocator().set_failure_hook({}); }
  void on_start(const RunInfo&) override {
    if (after_ == 0) arm();
  }
  void on_step(const StepInfo& step) override {
    Recorder::on_step(step);
    allocator().set_failure_hook({});
    if (step.step == after_) arm();
  }
  void on_evaluation_begin() override {
    if (after_ < 0) arm();
  }
  void on_out_of_memory(const OutOfMemoryInfo& info) override { retries.push_back(info); }

  std::vector<OutOfMemoryInfo> retries;

 private:
  void arm() {
    allocator().set_failure_hook([at = at_](int64_t request, int64_t) { return request == at; });
  }
  int64_t after_, at_;
};

constexpr int64_t kInEvaluation = -1;

TrainConfig halving(const std::string& model, const std::string& data) {
  TrainConfig config = small_config(model, data);
  config.on_oom = OnOutOfMemory::halve_batch;
  config.epochs = 0;
  config.steps = 4;
  return config;
}

// The retried step and all after it are those of a run that was stopped before it and resumed with
// half the batch: weights, running averages, optimizer, scaler, random state, losses.
TEST(OnOom, HalvingInAnyStepIsAsResumingWithHalfTheBatch) {
  const TemporaryFolder folder;
  TrainConfig config = halving("resnet18", "random:3x8x8:4:40");
  config.amp = DType::f16;
  config.optimizer = "adam";
  config.batch = 4;
  config.accum = 2;

  TrainConfig first = config;
  first.save = folder.file("half-way.safetensors");
  Recorder before;
  Trainer(first).run(before, [&] { return before.steps.size() == 2; });
  TrainConfig second = config;
  second.resume = first.save;
  second.save = folder.file("wanted.safetensors");
  second.batch = 2;
  second.accum = 4;
  Recorder after;
  Trainer(second).run(after);
  std::vector<double> wanted = before.losses;
  wanted.insert(wanted.end(), after.losses.begin(), after.losses.end());

  // In the first micro-batch, in the second, in backward, in the optimizer's step: wherever.
  constexpr int64_t kStride = 211;
  int failed = 0;
  for (int64_t at = 1; failed == (at - 1) / kStride; at += kStride) {
    TrainConfig disturbed = config;
    disturbed.save = folder.file("disturbed.safetensors");
    FailingRecorder recorder(2, at);
    Trainer trainer(disturbed);
    const RunResult result = trainer.run(recorder);
    if (recorder.retries.empty()) continue;
    ++failed;
    ASSERT_EQ(recorder.retries.size(), 1u);
    EXPECT_EQ(result.out_of_memory_retries, 1);
    EXPECT_EQ(recorder.retries[0].step, 3);
    EXPECT_EQ(recorder.retries[0].batch_before, 4);
    EXPECT_EQ(recorder.retries[0].accum_before, 2);
    EXPECT_EQ(trainer.config().batch, 2);
    EXPECT_EQ(trainer.config().accum, 4);
    EXPECT_EQ(recorder.losses, wanted) << "request " << at;
    EXPECT_TRUE(bytes_of(state_path_of(disturbed.save)) == bytes_of(state_path_of(second.save)))
        << "request " << at;
  }
  EXPECT_GE(failed, 2);
}

// The first step makes the optimizer's state as well.
TEST(OnOom, HalvingInTheFirstStepIsAsStartingWithHalfTheBatch) {
  TrainConfig config = halving("lenet", "random:1x12x12:4:50");
  config.optimizer = "adamw";
  config.steps = 2;
  TrainConfig smaller = config;
  smaller.batch = 4;
  smaller.accum = 2;
  Recorder wanted;
  Trainer reference(smaller);
  reference.run(wanted);
  int64_t at = 1;
  for (;; ++at) {
    FailingRecorder recorder(0, at);
    Trainer trainer(config);
    trainer.run(recorder);
    if (recorder.retries.empty()) break;
    ASSERT_EQ(recorder.losses, wanted.losses) << "request " << at;
    ASSERT_EQ(test::weights_of(trainer), test::weights_of(reference)) << "request " << at;
  }
  EXPECT_GT(at, 35);
}

TEST(OnOom, AnOddBatchIsHalvedUpwardsAndItsWindowKeepsItsImages) {
  TrainConfig config = halving("lenet", "random:1x12x12:4:50");
  config.batch = 5;
  Recorder undisturbed;
  Trainer(config).run(undisturbed);
  FailingRecorder recorder(1, 3);
  Trainer trainer(config);
  trainer.run(recorder);
  ASSERT_EQ(recorder.retries.size(), 1u);
  EXPECT_EQ(trainer.config().batch, 3);
  EXPECT_EQ(trainer.config().accum, 2);
  ASSERT_EQ(recorder.losses.size(), undisturbed.losses.size());
  for (size_t i = 0; i < recorder.losses.size(); ++i) {
    EXPECT_EQ(recorder.steps[i].images, 5);
    // Sums in another order.
    EXPECT_NEAR(recorder.losses[i], undisturbed.losses[i], 1e-5) << "step " << i + 1;
  }
}

TEST(OnOom, EvaluationIsHalvedByItselfAndMeasuresTheSame) {
  TrainConfig config = halving("lenet", "random:1x12x12:4:50");
  config.evaluate = true;
  config.eval_batch = 7;
  Recorder undisturbed;
  const RunResult wanted = Trainer(config).run(undisturbed);
  FailingRecorder recorder(kInEvaluation, 5);
  Trainer trainer(config);
  const RunResult result = trainer.run(recorder);
  ASSERT_GE(recorder.retries.size(), 1u);
  EXPECT_TRUE(recorder.retries[0].in_evaluation);
  EXPECT_EQ(recorder.retries[0].batch, 4);
  EXPECT_EQ(trainer.config().batch, config.batch);
  EXPECT_EQ(recorder.losses, undisturbed.losses);
  EXPECT_EQ(result.test_accuracy, wanted.test_accuracy);
  EXPECT_NEAR(*result.test_loss, *wanted.test_loss, 1e-6);
}

TEST(OnOom, WithoutItOrWithOneImageTheErrorComesThroughAndNothingStays) {
  const int64_t before = allocator().allocated_bytes();
  TrainConfig config = halving("lenet", "random:1x12x12:4:50");
  for (const auto& [batch, policy] : {std::pair{int64_t{1}, OnOutOfMemory::halve_batch},
                                      std::pair{int64_t{8}, OnOutOfMemory::stop}}) {
    config.batch = batch;
    config.on_oom = policy;
    FailingRecorder recorder(1, 3);
    EXPECT_THROW(Trainer(config).run(recorder), OutOfMemory);
    EXPECT_TRUE(recorder.retries.empty());
    EXPECT_EQ(recorder.steps.size(), 1u);
    EXPECT_EQ(allocator().allocated_bytes(), before);
  }
}

// A limit that a smaller batch fits: the same halvings on meta as on the CPU, and the same peak,
// which is that of a run which had the smaller batch from the start.
TEST(OnOom, MetaForeseesTheHalvings) {
  TrainConfig config = halving("resnet18", "random:3x32x32:4:64");
  config.steps = 2;
  config.batch = 32;
  config.memory_limit_bytes = int64_t{220} << 20;
  struct Outcome {
    std::vector<std::string> messages;
    int64_t batch = 0, accum = 0, first = 0, later = 0;
    bool operator==(const Outcome&) const = default;
  };
  const auto outcome_on = [&](const std::string& device, TrainConfig c) {
    c.device = device;
    allocator_of(parse_device(device)).empty_cache();
    FailingRecorder recorder(-2, 0);
    Trainer trainer(c);
    const RunResult result = trainer.run(recorder);
    allocator_of(parse_device(device)).set_memory_limit(0);
    Outcome out{{},
                trainer.config().batch,
                trainer.config().accum,
                result.first_step.allocated,
                result.peak.allocated};
    for (const OutOfMemoryInfo& retry : recorder.retries) {
      // Up to where the device describes itself.
      out.messages.push_back(retry.message.substr(retry.message.find(": "), 60));
    }
    return out;
  };
  const Outcome real = outcome_on("cpu", config);
  ASSERT_GE(real.messages.size(), 1u);
  EXPECT_LT(real.batch, 32);
  EXPECT_EQ(real.batch * real.accum, 32);
  EXPECT_EQ(outcome_on("meta:cpu", config), real);
  TrainConfig smaller = config;
  smaller.batch = real.batch;
  smaller.accum = real.accum;
  const Outcome direct = outcome_on("meta:cpu", smaller);
  EXPECT_TRUE(direct.messages.empty());
  EXPECT_EQ(direct.later, real.later);
}

TEST(LossMeterMark, TakesBackAWindowAlsoAcrossAFullRing) {
  LossMeter meter;
  meter.open(Device::cpu());
  const auto add = [&](double loss, bool begins) { meter.add(scalar(loss), 2, begins); };
  for (int i = 0; i < 256; ++i) add(1, true);  // as many as the ring takes
  for (int repeat = 0; repeat < 3; ++repeat) {
    const LossMeter::Mark mark = meter.mark();
    add(100, true);
    add(100, false);
    meter.restore(mark);
    EXPECT_EQ(meter.mean(), 0.5) << repeat;
    EXPECT_EQ(meter.last_window_mean(), 0.5) << repeat;
  }
  add(5, true);
  EXPECT_EQ(meter.last_window_mean(), 2.5);
  EXPECT_EQ(meter.sum(), 261);
}

}  // namespace
}  // namespace headroom
