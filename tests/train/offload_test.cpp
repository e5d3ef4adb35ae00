// --saved offload in a run: the training keeps its bits, the peak falls as predicted, the host's
// bytes are reported.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/memory/caching_allocator.h"
#include "tests/train/trainer_run.h"
#include "train/report.h"

namespace headroom {
namespace {

using test::Recorder;
using test::small_config;
using test::weights_of;

struct Outcome {
  std::vector<double> losses, weights;
  RunResult result;
};

Outcome outcome_of(const TrainConfig& config) {
  const Device device = parse_device(config.device);
  for (CachingAllocator* allocator : {&allocator_of(device), &host_allocator_of(device)}) {
    allocator->empty_cache();
    EXPECT_EQ(allocator->allocated_bytes(), 0) << "something of an earlier run is alive";
  }
  Recorder recorder;
  Outcome out;
  {
    Trainer trainer(config);
    out.result = trainer.run(recorder);
    out.losses = recorder.losses;
    if (!device.is_meta()) out.weights = weights_of(trainer);
  }
  EXPECT_EQ(memory_allocated(device), 0) << "the run left something behind";
  EXPECT_EQ(host_allocator_of(device).allocated_bytes(), 0) << "and on the host";
  return out;
}

TrainConfig steps_of(const std::string& model, const std::string& data, int64_t batch) {
  TrainConfig config = small_config(model, data);
  config.batch = batch;
  config.threads = 1;
  config.epochs = 0;
  config.steps = 2;
  return config;
}

std::vector<TrainConfig> workloads() {
  return {steps_of("lenet", "random:1x28x28:10:256", 128),
          steps_of("resnet18", "random:3x16x16:10:64", 32),
          steps_of("vgg16", "random:3x32x32:10:16", 8)};
}

TrainConfig with(TrainConfig config, SavePolicy policy) {
  config.save_policy = policy;
  return config;
}

// The same bits, predicted by meta with the host's bytes, and at most `share` of the peak.
void expect_offloads(const TrainConfig& config, double share = 1) {
  const Outcome kept = outcome_of(with(config, SavePolicy::recompute));
  TrainConfig offloads = with(config, SavePolicy::offload);
  const Outcome offloaded = outcome_of(offloads);
  EXPECT_EQ(offloaded.losses, kept.losses);
  EXPECT_EQ(offloaded.weights, kept.weights);
  EXPECT_LE(static_cast<double>(offloaded.result.peak.allocated),
            share * static_cast<double>(kept.result.peak.allocated));
  EXPECT_EQ(kept.result.peak.host_allocated, 0);
  EXPECT_GT(offloaded.result.peak.host_allocated, 0);
  EXPECT_GE(offloaded.result.peak.host_reserved, offloaded.result.peak.host_allocated);
  offloads.device = "meta:" + offloads.device;
  const Outcome predicted = outcome_of(offloads);
  for (const auto phase : {&RunResult::peak, &RunResult::first_step}) {
    const PhasePeak &a = predicted.result.*phase, &b = offloaded.result.*phase;
    EXPECT_EQ(a.allocated, b.allocated);
    EXPECT_EQ(a.reserved, b.reserved);
    EXPECT_EQ(a.parts, b.parts);
    EXPECT_EQ(a.host_allocated, b.host_allocated);
    EXPECT_EQ(a.host_reserved, b.host_reserved);
  }
}

class OffloadRun : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!has_runtime(parse_device(GetParam()))) GTEST_SKIP() << "no " << GetParam();
  }
  static std::vector<TrainConfig> here() {
    std::vector<TrainConfig> out = workloads();
    for (TrainConfig& config : out) {
      config.device = GetParam();
      config.deterministic = true;
    }
    return out;
  }
};

TEST_P(OffloadRun, TrainsTheModelsToTheSameBitsInLessMemory) {
  for (const TrainConfig& config : here()) {
    SCOPED_TRACE(config.model);
    // Small batches: of vgg16's peak nearly all is weights, and blocks that come free in another
    // order are split otherwise.
    expect_offloads(config, config.model == "vgg16" ? 1.02 : 0.95);
    // Against plain keeping too: outputs of norms are made again, not copied.
    EXPECT_EQ(outcome_of(with(config, SavePolicy::keep)).weights,
              outcome_of(with(config, SavePolicy::offload)).weights);
  }
}

TEST_P(OffloadRun, GoesWithEveryOtherRemedy) {
  const TrainConfig plain = here()[1];
  TrainConfig config = plain;
  config.amp = DType::f16;
  config.accum = 2;
  expect_offloads(config);
  config = plain;
  config.amp = DType::bf16;
  config.step_in_backward = true;
  expect_offloads(config);
  config = plain;
  config.in_place = false;
  config.layout = MemoryFormat::contiguous;
  // In nchw cuDNN's workspace copies are in both peaks, and are most of what is left on a GPU.
  expect_offloads(config, parse_device(GetParam()).is_cuda() ? 0.92 : 0.9);
}

// Block inputs wait on the host; the peak is in one block's second run, which stays.
TEST_P(OffloadRun, GoesWithCheckpoints) {
  TrainConfig config = here()[1];
  config.checkpoint = true;
  expect_offloads(config, 1.02);
}

INSTANTIATE_TEST_SUITE_P(On, OffloadRun, testing::Values("cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

// At usual batches, as a GPU would see them.
TEST(OffloadRunOnMeta, TakesMostOfWhatActivationsTake) {
  struct Row {
    const char *model, *data;
    int64_t batch;
    double share;
  };
  for (const Row& row :
       {Row{"lenet", "random:1x28x28:10", 64, 0.9}, Row{"resnet18", "random:3x32x32:10", 64, 0.75},
        Row{"vgg16", "random:3x32x32:10", 128, 0.9},
        Row{"resnet50", "random:3x224x224:1000", 64, 0.3}}) {
    TrainConfig config = steps_of(row.model, row.data, row.batch);
    config.device = "meta:cuda";
    const auto peak = [&](SavePolicy policy) {
      return static_cast<double>(outcome_of(with(config, policy)).result.peak.allocated);
    };
    EXPECT_LT(peak(SavePolicy::offload), row.share * peak(SavePolicy::recompute)) << row.model;
  }
}

TEST(OffloadRunOnCpu, PinsNothingAfterTheFirstStepAndEvaluatesWithoutTheHost) {
  TrainConfig config = with(workloads()[1], SavePolicy::offload);
  config.evaluate = true;
  config.steps = 4;
  struct Watch : TrainObserver {
    static int64_t pinned() {
      return host_allocator_of(Device::cpu()).stats()[Pool::all].segment_count.total_allocated;
    }
    void on_step(const StepInfo&) override { after_step.push_back(pinned()); }
    std::vector<int64_t> after_step;
  } watch;
  const RunResult result = Trainer(config).run(watch);
  ASSERT_EQ(watch.after_step.size(), 4u);
  EXPECT_EQ(watch.after_step.back(), watch.after_step.front());
  EXPECT_EQ(result.evaluation.host_allocated, 0);
}

// Running out of host memory is running out of memory: the batch is halved.
TEST(OffloadRunOnCpu, HalvesTheBatchWhereTheHostIsTooSmall) {
  TrainConfig config = with(workloads()[1], SavePolicy::offload);
  const int64_t needed = outcome_of(config).result.peak.host_reserved;
  config.on_oom = OnOutOfMemory::halve_batch;
  CachingAllocator& host = host_allocator_of(Device::cpu());
  host.set_memory_limit(needed - 1);
  const Outcome out = outcome_of(config);
  host.set_memory_limit(0);
  EXPECT_GT(out.result.out_of_memory_retries, 0);
  EXPECT_EQ(out.result.steps, 2);
  EXPECT_LT(out.result.peak.host_reserved, needed);
}

TEST(OffloadReport, HasTheHostsBytesBesideThePeak) {
  Report report;
  report.info.device_name = "cuda";
  report.result.peak.allocated = 3 << 20;
  report.result.peak.host_allocated = 5 << 20;
  report.result.peak.host_reserved = 20 << 20;
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json["host_peak_allocated"], 5 << 20);
  EXPECT_EQ(json["host_peak_reserved"], 20 << 20);
  EXPECT_EQ(json["peak_allocated"], 3 << 20);
  const std::string line = "peak on the host  5.00 MiB allocated, 20.00 MiB reserved";
  EXPECT_NE(to_table(report).find(line), std::string::npos) << to_table(report);
  report.result.peak.host_allocated = 0;
  EXPECT_EQ(to_table(report).find("on the host"), std::string::npos);
}

}  // namespace
}  // namespace headroom
