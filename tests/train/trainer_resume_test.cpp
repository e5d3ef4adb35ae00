// Stopping and going on: the same bits as a run that was never interrupted, whatever was in
// between, and however many threads work.
#include <gtest/gtest.h>

#include "tests/train/trainer_run.h"
#include "train/checkpoint/checkpoint.h"

namespace headroom {
namespace {

using test::bytes_of;
using test::Recorder;
using test::small_config;
using test::TemporaryFolder;

class TrainerResume : public testing::Test {
 protected:
  // The losses of the steps, and the state file at the end.
  struct Run {
    std::vector<double> losses;
    std::string state;
    RunResult result;
  };

  Run whole(TrainConfig config) {
    config.save = folder.file("whole.safetensors");
    Recorder recorder;
    Run out;
    out.result = Trainer(config).run(recorder);
    out.losses = recorder.losses;
    out.state = bytes_of(state_path_of(config.save));
    return out;
  }

  // In pieces that stop after each of `steps`.
  Run in_pieces(TrainConfig config, const std::vector<int64_t>& steps) {
    config.save = folder.file("pieces.safetensors");
    Run out;
    for (size_t piece = 0; piece <= steps.size(); ++piece) {
      Recorder recorder;
      Trainer trainer(config);
      const auto stop = [&] {
        return piece < steps.size() && !recorder.steps.empty() &&
               recorder.steps.back().step >= steps[piece];
      };
      out.result = trainer.run(recorder, stop);
      EXPECT_EQ(out.result.interrupted, piece < steps.size());
      EXPECT_EQ(trainer.info().first_step, piece == 0 ? 0 : steps[piece - 1]);
      out.losses.insert(out.losses.end(), recorder.losses.begin(), recorder.losses.end());
      config.resume = config.save;
    }
    out.state = bytes_of(state_path_of(config.save));
    return out;
  }

  void expect_same(const Run& a, const Run& b) {
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.result.train_loss, b.result.train_loss);
    EXPECT_EQ(a.result.steps, b.result.steps);
    ASSERT_FALSE(a.state.empty());
    EXPECT_TRUE(a.state == b.state) << "the state files differ";
  }

  TemporaryFolder folder;
};

TEST_F(TrainerResume, InsideAnEpochWithAdamAmpAndAccumulationIsBitForBit) {
  TrainConfig config = small_config("lenet", "random:3x12x12:4:50");  // cropped and mirrored
  config.optimizer = "adam";
  config.amp = DType::f16;
  config.accum = 3;
  config.clip_norm = 1;
  config.warmup = 2;
  config.init_scale = 0x1p40;  // overflows for a while: skipped steps count too
  config.epochs = 4;
  const Run uninterrupted = whole(config);
  EXPECT_GT(uninterrupted.result.skipped_steps, 0);
  expect_same(uninterrupted, in_pieces(config, {1, 4, 5, 8}));
}

// Evaluation only looks: a run that is evaluated ends as one that is not, norms included.
TEST_F(TrainerResume, OfANetWithBatchNormIsBitForBitAlsoWithEvaluationInBetween) {
  TrainConfig config = small_config("resnet18", "random:3x8x8:4:16");
  config.epochs = 0;
  config.steps = 3;
  const Run plain = whole(config);
  config.evaluate = true;
  const Run evaluated = in_pieces(config, {2});
  expect_same(plain, evaluated);
  EXPECT_FALSE(plain.result.test_accuracy.has_value());
  EXPECT_TRUE(evaluated.result.test_accuracy.has_value());
}

TEST_F(TrainerResume, DoesNotDependOnThreads) {
  TrainConfig config = small_config("lenet", "random:3x12x12:4:50");
  config.threads = 1;
  config.loader_threads = 0;
  const Run one = whole(config);
  config.threads = 3;
  config.loader_threads = 3;
  expect_same(one, whole(config));
  config.resident = true;
  expect_same(one, whole(config));
}

TEST_F(TrainerResume, SavesAfterEveryEpochAndOnceWhenStopped) {
  TrainConfig config = small_config();
  config.save = folder.file("run.safetensors");
  Recorder recorder;
  Trainer(config).run(recorder);
  EXPECT_EQ(recorder.saves, (std::vector<int64_t>{7, 14}));
  Recorder stopped;
  Trainer(config).run(stopped, [&] { return stopped.steps.size() >= 9; });
  EXPECT_EQ(stopped.saves, (std::vector<int64_t>{7, 9}));
  Recorder at_the_end_of_an_epoch;
  Trainer(config).run(at_the_end_of_an_epoch,
                      [&] { return at_the_end_of_an_epoch.steps.size() >= 7; });
  EXPECT_EQ(at_the_end_of_an_epoch.saves, (std::vector<int64_t>{7})) << "twice the same state";
}

// The state file lies beside the weights, so people name it.
TEST_F(TrainerResume, TakesTheNameOfTheStateFileItselfAsWell) {
  TrainConfig config = small_config();
  config.epochs = 1;
  config.save = folder.file("run.safetensors");
  Recorder nobody;
  Trainer(config).run(nobody);
  config.epochs = 2;
  config.resume = folder.file("run.state.safetensors");
  EXPECT_EQ(Trainer(config).info().first_step, 7) << "and may save over it";
  // A checkpoint of such a name has a state file of its own.
  config.resume.clear();
  config.save = folder.file("run.state.safetensors");
  Trainer(config).run(nobody);
  EXPECT_EQ(load_checkpoint(config.save).trainer.step, 14);
}

TEST_F(TrainerResume, RefusesAStateOfAnotherRunOrOneThatIsDone) {
  TrainConfig config = small_config();
  config.save = folder.file("run.safetensors");
  Recorder nobody;
  Trainer(config).run(nobody);
  config.resume = config.save;
  const auto message_of = [](const TrainConfig& changed) -> std::string {
    try {
      Trainer trainer(changed);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_NE(message_of(config).find("stands at step 14"), std::string::npos);
  config.epochs = 3;
  TrainConfig changed = config;
  changed.optimizer = "adam";
  EXPECT_NE(message_of(changed).find("optimizer sgd"), std::string::npos) << message_of(changed);
  changed = config;
  changed.seed = 5;
  EXPECT_NE(message_of(changed).find("seed"), std::string::npos);
  changed = config;
  changed.amp = DType::f16;
  EXPECT_NE(message_of(changed).find("amp"), std::string::npos);
  changed = config;
  changed.classifier = Classifier::conv;
  EXPECT_NE(message_of(changed).find("model lenet, this run has lenet (classifier conv)"),
            std::string::npos)
      << message_of(changed);
  changed = config;
  changed.data = "random:1x12x12:5:50";
  EXPECT_NE(message_of(changed).find("classes"), std::string::npos);
  changed = config;
  changed.resume = folder.file("missing.safetensors");
  EXPECT_NE(message_of(changed).find("missing"), std::string::npos);
  Recorder goes_on;
  EXPECT_EQ(Trainer(config).run(goes_on).steps, 21);
}

}  // namespace
}  // namespace headroom
