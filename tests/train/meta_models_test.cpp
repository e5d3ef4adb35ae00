// The prediction: a meta device gives the peaks of the device it stands for, to the byte, for every
// model under every remedy.
#include <gtest/gtest.h>

#include <string>

#include "tests/train/trainer_run.h"

namespace headroom {
namespace {

struct Remedy {
  const char* name;
  int64_t accum;
  std::optional<DType> amp;
  bool checkpoint;
  bool in_place;
  bool eval_with_grad = false;
};
constexpr Remedy kRemedies[] = {
    {"plain", 1, std::nullopt, false, true},      {"accum", 2, std::nullopt, false, true},
    {"amp", 1, DType::f16, false, true},          {"checkpoint", 1, std::nullopt, true, true},
    {"separate", 1, std::nullopt, false, false},  {"everything", 2, DType::f16, true, true},
    {"tape", 1, std::nullopt, false, true, true},
};

struct Workload {
  const char* model;
  const char* data;
  Classifier classifier = Classifier::automatic;
};
// Odd counts of images, so that the last window is short.
constexpr Workload kWorkloads[] = {{"lenet", "random:1x28x28:10:11"},
                                   {"vgg16", "random:3x32x32:10:7"},
                                   {"resnet18", "random:3x32x32:10:7"},
                                   {"resnet50", "random:3x72x72:10:7"},
                                   {"lenet", "random:1x28x28:10:11", Classifier::conv},
                                   {"vgg16", "random:3x32x32:10:7", Classifier::linear},
                                   {"vgg16", "random:3x64x64:10:7", Classifier::conv}};

struct Case {
  Workload work;
  Remedy remedy;
};

TrainConfig config_of(const Case& c, const std::string& device) {
  TrainConfig config = test::small_config(c.work.model, c.work.data);
  config.classifier = c.work.classifier;
  config.device = device;
  config.batch = 2;
  config.eval_batch = 3;
  config.epochs = 0;
  config.steps = 3;
  config.accum = c.remedy.accum;
  config.amp = c.remedy.amp;
  config.checkpoint = c.remedy.checkpoint;
  config.in_place = c.remedy.in_place;
  config.evaluate = true;
  config.eval_with_grad = c.remedy.eval_with_grad;
  return config;
}

RunResult run(const TrainConfig& config) {
  const Device device = parse_device(config.device);
  // What other runs left in the cache would count as reserved.
  empty_cache(device);
  EXPECT_EQ(memory_allocated(device), 0) << "something of an earlier run is alive";
  EXPECT_EQ(memory_reserved(device), 0);
  TrainObserver nobody;
  const RunResult result = Trainer(config).run(nobody);
  EXPECT_EQ(memory_allocated(device), 0) << "the run left something behind";
  return result;
}

int64_t sum_of(const BytesByTag& parts) {
  int64_t sum = 0;
  for (const int64_t bytes : parts) sum += bytes;
  return sum;
}

void expect_same(const PhasePeak& predicted, const PhasePeak& measured, const char* phase) {
  EXPECT_EQ(predicted.allocated, measured.allocated) << phase;
  EXPECT_EQ(predicted.reserved, measured.reserved) << phase;
  EXPECT_EQ(predicted.parts, measured.parts) << phase;
  EXPECT_EQ(sum_of(measured.parts), measured.allocated) << phase;
  EXPECT_GT(measured.allocated, 0) << phase;
}

void expect_prediction_holds(const Case& c, const std::string& device, bool cudnn = true) {
  TrainConfig config = config_of(c, device);
  config.cudnn = cudnn;
  const RunResult measured = run(config);
  config.device = "meta:" + device;
  const RunResult predicted = run(config);
  expect_same(predicted.first_step, measured.first_step, "first step");
  expect_same(predicted.peak, measured.peak, "training");
  expect_same(predicted.evaluation, measured.evaluation, "evaluation");
  EXPECT_EQ(predicted.steps, measured.steps);
  EXPECT_EQ(predicted.skipped_steps, 0);
}

class MetaModels : public testing::TestWithParam<Case> {};

TEST_P(MetaModels, PredictTheCpuToTheByte) { expect_prediction_holds(GetParam(), "cpu"); }

TEST_P(MetaModels, PredictTheGpuToTheByteWithAndWithoutCudnn) {
  if (!has_runtime(Device::cuda())) GTEST_SKIP() << "needs a GPU";
  for (const bool cudnn : {true, false}) {
    SCOPED_TRACE(cudnn ? "cuDNN" : "own kernels");
    expect_prediction_holds(GetParam(), "cuda", cudnn);
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const Workload& work : kWorkloads) {
    for (const Remedy& remedy : kRemedies) out.push_back({work, remedy});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, MetaModels, testing::ValuesIn(cases()), [](const auto& info) {
  const Workload& work = info.param.work;
  const std::string classifier =
      work.classifier == Classifier::automatic ? "" : std::string("_") + name_of(work.classifier);
  return work.model + classifier + "_" + info.param.remedy.name;
});

// What a person asks of it without owning the GPU.
TEST(MetaCuda, PredictsWithoutAGpuAndTheSameEveryTime) {
  TrainConfig config =
      config_of({{"resnet18", "random:3x32x32:10:256"}, kRemedies[0]}, "meta:cuda");
  config.batch = config.eval_batch = 64;
  const auto peak = [&] {
    const PhasePeak out = run(config).peak;
    EXPECT_EQ(sum_of(out.parts), out.allocated);
    EXPECT_GE(out.reserved, out.allocated);
    return out.allocated;
  };
  const int64_t plain = peak();
  EXPECT_EQ(peak(), plain);
  config.threads = 1;
  config.loader_threads = 3;
  config.seed = 5;
  EXPECT_EQ(peak(), plain) << "a peak is a function of the configuration";
  config.amp = DType::f16;
  const int64_t amp = peak();
  EXPECT_LT(amp, plain);
  config.checkpoint = true;
  EXPECT_LT(peak(), amp);
  config.checkpoint = false;
  config.batch = 16;
  config.accum = 4;
  EXPECT_LT(peak(), amp);
  config.batch = 64;
  config.accum = 1;
  config.in_place = false;
  EXPECT_GT(peak(), amp);
}

TEST(MetaCuda, FindsTheBatchThatStillFits) {
  TrainConfig config =
      config_of({{"resnet18", "random:3x32x32:10:256"}, kRemedies[2]}, "meta:cuda");
  config.evaluate = false;
  config.memory_limit_bytes = int64_t{512} << 20;
  const auto fits = [&](int64_t batch) {
    config.batch = batch;
    try {
      const RunResult result = run(config);
      EXPECT_LE(result.first_step.reserved, config.memory_limit_bytes);
      return true;
    } catch (const OutOfMemory&) {
      empty_cache(parse_device(config.device));
      return false;
    }
  };
  EXPECT_TRUE(fits(8));
  EXPECT_FALSE(fits(256));
  allocator_of(parse_device(config.device)).set_memory_limit(0);
}

// The same command line with another --device must not cost the weights of the real run.
TEST(Meta, NeverWritesOverACheckpoint) {
  const test::TemporaryFolder folder;
  TrainConfig config = config_of({kWorkloads[0], kRemedies[2]}, "cpu");
  config.save = folder.file("run.safetensors");
  run(config);
  const std::string saved = test::bytes_of(config.save);
  ASSERT_FALSE(saved.empty());
  config.device = "meta:cpu";
  test::Recorder recorder;
  Trainer trainer(config);
  ASSERT_EQ(trainer.info().warnings.size(), 1u);
  EXPECT_NE(trainer.info().warnings[0].find("--save"), std::string::npos);
  trainer.run(recorder, [&] { return recorder.steps.size() == 2; });
  EXPECT_TRUE(recorder.saves.empty());
  EXPECT_EQ(test::bytes_of(config.save), saved);
}

TEST(Meta, TakesACheckpointToGoOnFrom) {
  const test::TemporaryFolder folder;
  TrainConfig config = config_of({kWorkloads[0], kRemedies[2]}, "cpu");
  config.save = folder.file("run.safetensors");
  run(config);
  config.resume = config.save;
  config.save.clear();
  config.steps = 6;
  const RunResult measured = run(config);
  config.device = "meta:cpu";
  const RunResult predicted = run(config);
  // On the CPU the file's tensors lie in the same segments for a while, and what they leave behind
  // is cut differently later: of the steps, the first compares.
  EXPECT_EQ(predicted.first_step.allocated, measured.first_step.allocated);
  EXPECT_EQ(predicted.first_step.parts, measured.first_step.parts);
}

}  // namespace
}  // namespace headroom
