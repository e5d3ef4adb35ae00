// Section L, going on: a run in two processes is the run in one, counters and modes included.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "optim/schedule.h"
#include "tests/cases/program_case.h"
#include "tests/cases/small_net.h"
#include "train/checkpoint/checkpoint.h"

namespace headroom::cases {
namespace {

using test::bytes_of;
using test::Json;

class ResumeCase : public ProgramCase {};
HEADROOM_CASES(ResumeCase);

// What a program of one's own keeps of a SmallNet between processes.
Checkpoint checkpoint_of(const SmallNet& net, int64_t step) {
  Checkpoint out{net.model->state_dict(), net.optimizer->state_dict(), {}, {}};
  out.trainer.step = step;
  out.trainer.generator_seed = default_generator().state().seed;
  out.trainer.generator_offset = default_generator().state().offset;
  out.trainer.scale = net.scaler->current_scale();
  out.trainer.growth_tracker = net.scaler->growth_tracker();
  return out;
}

void restore(SmallNet& net, const Checkpoint& from) {
  net.model->load_state_dict(from.model);
  net.optimizer->load_state_dict(from.optimizer);
  net.optimizer->keep_half_copies(DType::f16);
  net.scaler->set_state(from.trainer.scale, from.trainer.growth_tracker);
  default_generator().set_state({from.trainer.generator_seed, from.trainer.generator_offset});
}

// Two epochs of three batches in the sampler's order, under a warm-up. Goes on from `path` if it
// starts behind the first step, and saves there; one loss per step.
std::vector<double> train_part(Device device, const std::string& path, int64_t from, int64_t to) {
  constexpr int64_t kImages = 12, kSteps = 6;
  SmallNet net(device);
  ScheduleOptions schedule;
  schedule.lr = 0.01;
  schedule.total_steps = kSteps;
  schedule.warmup_steps = 2;
  net.optimizer->set_schedule(make_schedule(schedule));
  Sampler sampler(kImages, {.batch = 4, .seed = 3});
  if (from > 0) {
    const Checkpoint saved = load_checkpoint(path);
    EXPECT_EQ(saved.trainer.step, from);
    restore(net, saved);
    sampler.restore(saved.trainer.sampler);
  }
  const Values all = values_of(net.images_of(kImages));
  const size_t image = all.size() / kImages;
  std::vector<double> losses;
  for (int64_t step = from; step < to; ++step) {
    Values pixels;
    std::vector<int64_t> labels;
    const MicroBatch batch = sampler.next_window().front();
    for (const int64_t index : batch.indices) {
      const auto begin = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(index) * image);
      pixels.insert(pixels.end(), begin, begin + static_cast<ptrdiff_t>(image));
      labels.push_back(index % 5);
    }
    const Tensor x = from_vector(pixels, {4, 3, SmallNet::kSide, SmallNet::kSide},
                                 {DType::f32, device, MemoryFormat::channels_last});
    losses.push_back(net.step(x, from_vector(labels, {4}, {DType::i64, device})));
  }
  Checkpoint checkpoint = checkpoint_of(net, to);
  checkpoint.trainer.sampler = sampler.state();
  save_checkpoint(path, checkpoint);
  return losses;
}

constexpr const char* kPartVariable = "HEADROOM_CASE_PART";  // "FROM TO PATH"

// Runs in a process of its own, started by the test below.
TEST_P(ResumeCase, DISABLED_PartOfARun) {
  const char* part = std::getenv(kPartVariable);
  ASSERT_NE(part, nullptr);
  std::istringstream words(part);
  int64_t from = 0, to = 0;
  std::string path;
  words >> from >> to >> path;
  settings().deterministic = true;
  for (const double loss : train_part(device(), path, from, to)) std::printf("loss %a\n", loss);
}

TEST_P(ResumeCase, O57_ResumeIsBitIdentical) {
  const std::string suite =
      testing::UnitTest::GetInstance()->current_test_info()->test_suite_name();
  const std::string backend = backend_name(testing::TestParamInfo<Backend>(GetParam(), 0));
  // The losses that a new process prints.
  const auto part = [&](const std::string& file, int64_t from, int64_t to) {
    test::ProcessOptions options;
    options.environment = {std::string(kPartVariable) + "=" + std::to_string(from) + " " +
                               std::to_string(to) + " " + folder_.path(file),
                           "GTEST_TOTAL_SHARDS=1", "GTEST_SHARD_INDEX=0"};  // not this process's
    const test::ProcessResult result =
        test::run_process({test::built_program("headroom_tests"), "--gtest_also_run_disabled_tests",
                           "--gtest_filter=" + suite + ".DISABLED_PartOfARun/" + backend},
                          options);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    std::vector<std::string> losses;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("loss ")) losses.push_back(line);
    }
    EXPECT_EQ(losses.size(), static_cast<size_t>(to - from)) << result.out;
    return losses;
  };
  const std::vector<std::string> whole = part("whole.safetensors", 0, 6);
  for (const int64_t stop : {3, 4}) {  // between the epochs, and inside the second
    std::vector<std::string> pieces = part("parts.safetensors", 0, stop);
    for (const std::string& loss : part("parts.safetensors", stop, 6)) pieces.push_back(loss);
    EXPECT_EQ(pieces, whole);
    // Weights, statistics, moments, counters, scale, tracker, random state.
    EXPECT_TRUE(bytes_of(folder_.file("parts.state.safetensors")) ==
                bytes_of(folder_.file("whole.state.safetensors")))
        << "stopped after " << stop;
  }
}

// The losses of a log, step by step.
std::map<int64_t, double> losses_of(const std::string& log) {
  std::map<int64_t, double> out;
  for (const Json& line : test::json_lines(log)) {
    if (line["event"] == "step") out[line["step"]] = line["loss"];
  }
  return out;
}

TEST_P(ResumeCase, O57_ResumeOfTheProgramIsBitIdentical) {
  const auto run = [&](const std::string& name, const std::string& more) {
    const test::ProcessResult result = test::train(
        flags("--model resnet18 --data random:3x8x8:4:16 --batch 8 --amp --init-scale 1e8 "
              "--optimizer adam --schedule constant --warmup 3 --no-eval --save " +
              folder_.file(name + ".safetensors") + " --log " + folder_.file(name + ".jsonl") +
              " " + more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
  };
  run("whole", "--epochs 2 --threads 2");
  run("parts", "--epochs 1 --threads 1");
  run("parts", "--epochs 2 --threads 3 --resume " + folder_.file("parts.safetensors"));
  const std::map<int64_t, double> losses = losses_of(folder_.file("whole.jsonl"));
  EXPECT_EQ(losses.size(), 4u);
  EXPECT_EQ(losses_of(folder_.file("parts.jsonl")), losses);
  for (const char* ending : {".safetensors", ".state.safetensors"}) {
    EXPECT_TRUE(bytes_of(folder_.file(std::string("parts") + ending)) ==
                bytes_of(folder_.file(std::string("whole") + ending)))
        << ending;
  }
}

TEST_P(ResumeCase, O60_ScalerAndAdamCountersSurvive) {
  const std::string path = folder_.file("run.safetensors");
  const auto adam = [](const Tensor& w) { return Adam({{.parameters = {w}}}, {.lr = 0.01}); };
  const auto step = [](Adam& optimizer, Tensor& w) {
    w.set_grad(full({1}, 1, w.options()));
    optimizer.step();
    optimizer.zero_grad();
  };
  GradScalerOptions scaling{.init_scale = 4096, .growth_interval = 3};
  Tensor w = leaf({0}, {1});
  {
    Adam optimizer = adam(w);
    for (int i = 0; i < 10; ++i) step(optimizer, w);
    GradScaler scaler(scaling, device());
    scaler.update(false);
    scaler.update(false);
    Checkpoint checkpoint{{{"w", w}}, optimizer.state_dict(), {}, {}};
    checkpoint.trainer.scale = scaler.current_scale();
    checkpoint.trainer.growth_tracker = scaler.growth_tracker();
    save_checkpoint(path, checkpoint);
  }
  const Checkpoint saved = load_checkpoint(path);
  const double before = saved.model.at(0).tensor.item();
  EXPECT_NEAR(before, -0.1, 1e-6);
  Tensor again = leaf({before}, {1});
  Adam optimizer = adam(again);
  optimizer.load_state_dict(saved.optimizer);
  EXPECT_EQ(optimizer.applied_steps(), 10);
  step(optimizer, again);
  EXPECT_NEAR(before - again.item(), 0.01, 1e-7);
  scaling.init_scale = 65536;
  GradScaler scaler(scaling, device());
  scaler.set_state(saved.trainer.scale, saved.trainer.growth_tracker);
  EXPECT_EQ(scaler.current_scale(), 4096);
  EXPECT_EQ(scaler.growth_tracker(), 2);
  scaler.update(false);
  EXPECT_EQ(scaler.current_scale(), 8192);
}

std::vector<bool> modes_of(Module& model) {
  std::vector<bool> out;
  for (const auto& [path, module] : model.named_modules()) out.push_back(module->training());
  return out;
}

BatchNorm2d& first_norm(Module& model) {
  for (const auto& [path, module] : model.named_modules()) {
    if (auto* norm = dynamic_cast<BatchNorm2d*>(module)) return *norm;
  }
  throw Error("no batch norm");
}

TEST_P(ResumeCase, O61_EvaluationGivesTheModeBack) {
  SmallNet net(device());
  BatchNorm2d& frozen = first_norm(*net.model);
  frozen.eval();
  const std::vector<bool> before = modes_of(*net.model);
  const auto statistics = [&] { return values_of(frozen.named_buffers().at(0).tensor); };
  const auto output = [&] { return values_of((*net.model)(net.images)); };
  net.step();
  const Values kept = statistics();
  {
    const EvalScope evaluation(*net.model);
    const NoGrad no_grad;
    EXPECT_EQ(output(), output()) << "dropout was active";
  }
  EXPECT_EQ(modes_of(*net.model), before);
  EXPECT_NE(output(), output()) << "dropout stayed off";
  try {
    const EvalScope evaluation(*net.model);
    throw DeviceError("lost");
  } catch (const DeviceError&) {
  }
  EXPECT_EQ(modes_of(*net.model), before);
  net.step();
  EXPECT_EQ(statistics(), kept) << "the frozen norm moved";
  EXPECT_EQ(frozen.batches_tracked(), 0);
  // A parent in evaluation mode with a child that trains, too.
  net.model->eval();
  frozen.train();
  const std::vector<bool> mixed = modes_of(*net.model);
  { const EvalScope evaluation(*net.model); }
  EXPECT_EQ(modes_of(*net.model), mixed);
}

// The modes after each epoch, evaluated or about to be.
class ModeRecorder : public test::Recorder {
 public:
  explicit ModeRecorder(Module& model) : model_(model) {}
  void on_step(const StepInfo& step) override {
    Recorder::on_step(step);
    modes.push_back(modes_of(model_));
  }
  std::vector<std::vector<bool>> modes;

 private:
  Module& model_;
};

TEST_P(ResumeCase, O61_BuiltInEvaluationGivesTheModeBack) {
  TrainConfig config = on_backend(test::small_config("resnet18", "random:3x8x8:4:16"));
  config.evaluate = true;
  Trainer trainer(config);
  BatchNorm2d& frozen = first_norm(trainer.model());
  frozen.eval();
  const std::vector<bool> before = modes_of(trainer.model());
  ModeRecorder recorder(trainer.model());
  trainer.run(recorder);
  ASSERT_EQ(recorder.epochs.size(), 2u);
  EXPECT_TRUE(recorder.epochs[0].evaluated);
  ASSERT_EQ(recorder.modes.size(), 4u);
  for (const std::vector<bool>& modes : recorder.modes) EXPECT_EQ(modes, before);
  EXPECT_EQ(modes_of(trainer.model()), before);
  EXPECT_EQ(frozen.batches_tracked(), 0);
  const int64_t channels = frozen.named_buffers().at(0).tensor.numel();
  EXPECT_EQ(values_of(frozen.named_buffers().at(0).tensor), Values(channels, 0.0));
  EXPECT_EQ(values_of(frozen.named_buffers().at(1).tensor), Values(channels, 1.0));
  // Four training batches went through the others, and none of the evaluation's.
  int64_t others = 0;
  for (const auto& [path, module] : trainer.model().named_modules()) {
    const auto* norm = dynamic_cast<BatchNorm2d*>(module);
    if (norm == nullptr || norm == &frozen) continue;
    EXPECT_EQ(norm->batches_tracked(), 4) << path;
    ++others;
  }
  EXPECT_GT(others, 10);
}

}  // namespace
}  // namespace headroom::cases
