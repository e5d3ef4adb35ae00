// Section L, saving and stopping: what full disks, kills and Ctrl-C leave behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "core/ops/ops.h"
#include "tests/cases/program_case.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/safetensors.h"

namespace headroom::cases {
namespace {

using test::bytes_of;
using test::Json;
using test::Process;
using test::ProcessOptions;
using test::ProcessResult;

class CheckpointFileCase : public ProgramCase {
 protected:
  std::string save() const { return folder_.file("run.safetensors"); }
  std::string tiny(const std::string& more) const {
    return flags("--data random:1x28x28:10:64 --batch 16 --no-eval --save " + save() + " " + more);
  }
};
HEADROOM_CASES(CheckpointFileCase);

// Both files of a checkpoint, byte for byte.
struct Files {
  explicit Files(const std::string& path)
      : weights(bytes_of(path)), state(bytes_of(state_path_of(path))) {}
  bool operator==(const Files&) const = default;
  std::string weights, state;
};

// As with `ulimit -f`; a write beyond it fails instead of killing the process.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit{bytes, previous_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &previous_);
    signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit previous_{};
};

TEST_P(CheckpointFileCase, O58_DiskFullWhileSaving) {
  const auto checkpoint = [this](double value, int64_t step) {
    const TensorOptions options{DType::f32, device()};
    Checkpoint out;
    out.model = {{"fc.weight", full({100, 100}, value, options)},
                 {"fc.bias", full({100}, value, options)}};
    out.optimizer = {{"0.momentum", full({100, 100}, value, options)}};
    out.trainer.step = step;
    return out;
  };
  const auto expect_holds = [this](double value, int64_t step) {
    const Checkpoint read = load_checkpoint(save());
    EXPECT_EQ(read.trainer.step, step);
    EXPECT_EQ(values_of(read.model.at(0).tensor), Values(10000, value));
    EXPECT_EQ(values_of(read_safetensors(save()).tensors.at(0).tensor), Values(10000, value));
  };
  save_checkpoint(save(), checkpoint(1, 10));
  const Files before(save());
  for (const size_t limit :
       {size_t{0}, size_t{1}, size_t{20'000}, before.weights.size(), before.state.size() - 1}) {
    SCOPED_TRACE(limit);
    const std::string refusal = message_of([&] {
      const FileSizeLimit full(limit);
      save_checkpoint(save(), checkpoint(2, 20));
    });
    EXPECT_NE(refusal.find("run.state.safetensors"), std::string::npos) << refusal;
    EXPECT_NE(refusal.find("File too large"), std::string::npos) << refusal;
    EXPECT_TRUE(Files(save()) == before);
    EXPECT_EQ(folder_.names().size(), 2u) << "a temporary file was left";
    expect_holds(1, 10);
  }
  {
    const FileSizeLimit just_enough(before.state.size());
    save_checkpoint(save(), checkpoint(2, 20));
  }
  expect_holds(2, 20);
}

TEST_P(CheckpointFileCase, O58_AFullDiskEndsTheProgramWithOneAndKeepsTheOldCheckpoint) {
  ASSERT_EQ(test::train(tiny("--steps 4")).exit_code, 0);
  const Files before(save());
  const auto limited = [](int64_t bytes) {
    ProcessOptions options;
    options.file_size_limit_bytes = bytes;
    return options;
  };
  for (const int64_t limit :
       {int64_t{1}, int64_t{4096}, static_cast<int64_t>(before.state.size()) - 1}) {
    SCOPED_TRACE(limit);
    const ProcessResult result = test::train(tiny("--seed 9 --steps 4"), limited(limit));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find("train: error: " + state_path_of(save()) + ": cannot be written"),
              std::string::npos)
        << result.err;
    EXPECT_TRUE(Files(save()) == before);
    EXPECT_EQ(folder_.names(),
              (std::vector<std::string>{"run.safetensors", "run.state.safetensors"}));
  }
  // The old one is good to go on from, and a file of exactly this size may be written.
  const ProcessResult result = test::train(tiny("--steps 8 --resume " + save()),
                                           limited(static_cast<int64_t>(before.state.size()) + 64));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(load_checkpoint(save()).trainer.step, 8);
}

TEST_P(CheckpointFileCase, O58_AFirstSaveThatFailsLeavesNothing) {
  ProcessOptions options;
  options.file_size_limit_bytes = 4096;
  EXPECT_EQ(test::train(tiny("--steps 4"), options).exit_code, 1);
  EXPECT_EQ(folder_.names(), std::vector<std::string>{});
}

// Every step is an epoch of this run, so that it saves all the time.
TEST_P(CheckpointFileCase, O58_KilledOrStoppedTwiceWhileSavingLeavesAWholeCheckpoint) {
  const std::string run =
      flags("--data random:1x28x28:10:16 --batch 16 --no-eval --steps 200000 --save " + save());
  for (int i = 0; i < 6; ++i) {
    Process process(test::train_command(run));
    ASSERT_TRUE(process.wait_for_output("saved "));
    usleep(static_cast<useconds_t>(1700 * i));
    const bool kills = i % 2 == 0;
    process.send(kills ? SIGKILL : SIGINT);
    if (!kills) process.send(SIGTERM);
    const ProcessResult result = process.wait();
    if (kills) {
      EXPECT_EQ(result.signal, SIGKILL);
    } else {
      EXPECT_EQ(result.exit_code, 130);
    }
    EXPECT_GT(load_checkpoint(save()).trainer.step, 0);
    EXPECT_EQ(read_safetensors(save()).tensors.size(), load_checkpoint(save()).model.size());
  }
}

// A window of some seconds, so that a signal meets it.
std::string long_windows(int64_t passes, int64_t steps) {
  const int64_t images = 16 * passes;
  return "--data random:1x28x28:10:" + std::to_string(images) + " --batch 16 --accum " +
         std::to_string(passes) + " --steps " + std::to_string(steps) + " --no-eval ";
}

TEST_P(CheckpointFileCase, O59_CtrlCOnceFinishesTheStepAndSaves) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    const std::string run = flags(long_windows(40, 50) + "--json --save " + save());
    Process process(test::train_command(run));
    ASSERT_TRUE(process.wait_for_output("50 steps"));
    process.send(signal_number);
    const ProcessResult result = process.wait();
    ASSERT_EQ(result.exit_code, 130) << result.err;
    const Json json = Json::parse(result.out);
    EXPECT_EQ(json["interrupted"], true);
    const int64_t steps = json["steps"];
    ASSERT_GE(steps, 1);
    ASSERT_LT(steps, 50) << "the signal was not obeyed";
    EXPECT_EQ(load_checkpoint(save()).trainer.step, steps);
    EXPECT_EQ(folder_.names().size(), 2u);
    // No part of another window is in it: it is the state of a run that stopped there by itself.
    TrainConfig config = on_backend({});
    config.data = "random:1x28x28:10:640";
    config.batch = 16;
    config.accum = 40;
    config.steps = 50;
    config.evaluate = false;
    config.save = folder_.file("reference/run.safetensors");
    folder_.make_folder("reference");
    test::Recorder recorder;
    Trainer(config).run(recorder,
                        [&] { return static_cast<int64_t>(recorder.steps.size()) == steps; });
    EXPECT_TRUE(Files(save()) == Files(config.save));
    std::filesystem::remove_all(folder_.file("reference"));
  }
}

TEST_P(CheckpointFileCase, O59_CtrlCTwiceStopsAtOnceAndTouchesNoFile) {
  ASSERT_EQ(test::train(tiny("--steps 4")).exit_code, 0);
  const Files before(save());
  Process process(test::train_command(flags(long_windows(20'000, 1) + "--save " + save())));
  ASSERT_TRUE(process.wait_for_output("1 step"));
  const auto begin = std::chrono::steady_clock::now();
  process.send(SIGINT);
  ASSERT_TRUE(process.wait_for_output("stopping after this step"));
  process.send(SIGINT);
  const ProcessResult result = process.wait();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(Files(save()) == before);
  EXPECT_EQ(folder_.names().size(), 2u);
}

// A fifth as many images to evaluate, one by one.
TEST_P(CheckpointFileCase, O59_CtrlCDuringEvaluationSavesTheStepsThatWereDone) {
  Process process(test::train_command(
      flags("--data random:1x28x28:10:100000 --batch 64 --steps 3 --eval-batch 1 --json --save " +
            save())));
  ASSERT_TRUE(process.wait_for_output("step 3/3"));
  process.send(SIGINT);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["interrupted"], true);
  EXPECT_EQ(json["steps"], 3);
  EXPECT_TRUE(json["test_accuracy"].is_null());
  EXPECT_EQ(load_checkpoint(save()).trainer.step, 3);
}

}  // namespace
}  // namespace headroom::cases
