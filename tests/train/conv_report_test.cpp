// The table of a run's convolutions: what it lists, that the workspaces are those of the rule, and
// that listening changes nothing.
#include "train/conv_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/base/settings.h"
#include "tests/train/program_run.h"
#include "tests/train/trainer_run.h"

namespace headroom {
namespace {

using test::Json;
using test::small_config;

struct Recorded {
  std::vector<ConvRow> rows;
  RunResult result;
  std::vector<double> weights;
};

Recorded recorded(const TrainConfig& config) {
  empty_cache(parse_device(config.device));
  Trainer trainer(config);
  ConvRecorder recorder(trainer.device());
  Recorded out;
  out.result = trainer.run(recorder);
  out.rows = recorder.rows();
  if (!trainer.device().is_meta()) out.weights = test::weights_of(trainer);
  return out;
}

TrainConfig steps_of(const std::string& model, const std::string& data, int64_t steps) {
  TrainConfig config = small_config(model, data);
  config.epochs = 0;
  config.steps = steps;
  return config;
}

// Layers by path and direction.
std::map<std::pair<std::string, ConvDirection>, ConvRow> by_place(
    const std::vector<ConvRow>& rows) {
  std::map<std::pair<std::string, ConvDirection>, ConvRow> out;
  for (const ConvRow& row : rows) {
    const bool is_new =
        out.emplace(std::pair(path_name(row.call.path), row.call.direction), row).second;
    EXPECT_TRUE(is_new) << path_name(row.call.path) << " twice";
  }
  return out;
}

TEST(ConvReport, HasEveryLayerInEveryDirectionButTheFirstOnesInput) {
  const Recorded run = recorded(steps_of("resnet18", "random:3x16x16:4:64", 3));
  const auto rows = by_place(run.rows);
  std::set<std::string> paths;
  for (const auto& [place, row] : rows) {
    paths.insert(place.first);
    EXPECT_EQ(row.calls, 3) << place.first;
    EXPECT_EQ(row.timed_calls, 2) << "the first step is not timed";
    EXPECT_GT(row.ms(), 0) << place.first;
    EXPECT_TRUE(row.call.engine.name == "gemm" || row.call.engine.name == "direct");
    EXPECT_EQ(row.call.engine.searched_plans, 0);
  }
  EXPECT_EQ(paths.size(), 20u) << "one stem, sixteen in blocks, three that shorten";
  EXPECT_EQ(rows.size(), 3 * 20u - 1) << "images want no gradient";
  EXPECT_TRUE(paths.count("blocks.2.down.0")) << "with the path of the model's tree";
  EXPECT_EQ(rows.count({"stem.0", ConvDirection::backward_input}), 0u);
}

// The workspace of each row is what the rule gives, here as on the device that meta stands for.
TEST(ConvReport, OnAMetaDeviceHasTheSameRowsWithoutTimes) {
  for (const bool checkpoint : {false, true}) {
    TrainConfig config = steps_of("lenet", "random:1x28x28:10:64", 2);
    config.checkpoint = checkpoint;
    config.accum = 2;
    const Recorded measured = recorded(config);
    config.device = "meta:cpu";
    const Recorded predicted = recorded(config);
    ASSERT_EQ(predicted.rows.size(), measured.rows.size());
    for (size_t i = 0; i < predicted.rows.size(); ++i) {
      const ConvRow &a = predicted.rows[i], &b = measured.rows[i];
      EXPECT_EQ(a.call.path, b.call.path);
      EXPECT_EQ(a.call.engine.name, b.call.engine.name);
      EXPECT_EQ(a.call.workspace_bytes, b.call.workspace_bytes);
      EXPECT_EQ(a.calls, b.calls);
      // A checkpoint runs its forward again.
      const bool twice = checkpoint && a.call.direction == ConvDirection::forward;
      EXPECT_EQ(a.calls, twice ? 8 : 4);
      EXPECT_EQ(a.timed_calls, 0);
      EXPECT_EQ(b.timed_calls, b.calls / 2);
    }
  }
}

TEST(ConvReport, SaysWhichEngineASwitchLeavesOnAGpu) {
  TrainConfig config = steps_of("lenet", "random:1x28x28:10:64", 2);
  config.device = "meta:cuda";
  const auto rows = by_place(recorded(config).rows);
  for (const auto& [place, row] : rows) {
    EXPECT_EQ(row.call.engine.name, "cudnn");
    EXPECT_GT(row.call.workspace_bytes, 0);
  }
  config.workspace_limit_bytes = 4096;
  for (const ConvRow& row : recorded(config).rows) EXPECT_EQ(row.call.workspace_bytes, 4096);
  config.cudnn = false;
  for (const ConvRow& row : recorded(config).rows) EXPECT_EQ(row.call.engine.name, "native");
  config.amp = DType::f16;
  for (const ConvRow& row : recorded(config).rows) EXPECT_EQ(row.call.dtype, DType::f16);
  settings() = Settings{};
}

TEST(ConvReport, ChangesNeitherTheTrainingNorThePeakAndStopsAfterAFewSteps) {
  const TrainConfig config = steps_of("lenet", "random:1x12x12:4:50", ConvRecorder::kSteps + 3);
  const Recorded with = recorded(config);
  empty_cache(Device::cpu());
  Trainer trainer(config);
  TrainObserver nobody;
  const RunResult without = trainer.run(nobody);
  EXPECT_EQ(with.result.peak.allocated, without.peak.allocated);
  EXPECT_EQ(with.weights, test::weights_of(trainer));
  int64_t calls = 0;
  for (const ConvRow& row : with.rows) calls += row.calls;
  EXPECT_EQ(calls, 5 * ConvRecorder::kSteps);
}

// What a GPU's library chose, and what its search took.
TEST(ConvReport, NamesThePlanOfCudnnAndItsSearch) {
  if (!has_runtime(Device::cuda())) GTEST_SKIP() << "needs a GPU";
  TrainConfig config = steps_of("resnet18", "random:3x32x32:10:64", 3);
  config.device = "cuda";
  config.amp = DType::f16;
  config.batch = 32;
  config.cudnn_benchmark = true;
  for (const ConvRow& row : recorded(config).rows) {
    const ConvEngine& engine = row.call.engine;
    EXPECT_NE(engine.name, "cudnn");
    EXPECT_GT(row.ms(), 0);
    if (engine.name == "native") continue;
    EXPECT_GE(engine.used_bytes, 0);
    EXPECT_LE(engine.used_bytes, row.call.workspace_bytes);
    EXPECT_GT(engine.searched_plans, 0);
    EXPECT_GT(engine.search_ms, engine.best_ms);
    EXPECT_GT(engine.best_ms, 0);
  }
  config.cudnn_benchmark = false;
  config.cudnn = false;
  for (const ConvRow& row : recorded(config).rows) EXPECT_EQ(row.call.engine.name, "native");
  settings() = Settings{};
}

TEST(ConvReport, IsAFileOfTextOrJson) {
  const test::TemporaryFolder folder;
  const std::string text = folder.path("conv.txt"), json = folder.path("conv.json");
  for (const std::string& file : {text, json}) {
    const test::ProcessResult result =
        test::train(test::tiny_run("--no-eval --conv-report " + file));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  const std::string table = test::file_text(text);
  for (const char* part : {"features.3", "backward_weight", "workspace", "peak, first step",
                           "16x32x14x14", "lenet, 16 images per pass, on cpu"}) {
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  }
  const Json report = Json::parse(test::file_text(json));
  EXPECT_EQ(report["rows"].size(), 5u);
  EXPECT_EQ(report["steps"], 4);
  EXPECT_EQ(report["run"]["model"], "lenet");
  EXPECT_EQ(report["peak"]["peak_allocated"], report["run"]["peak_allocated"]);
  EXPECT_EQ(report["first_step"]["peak_allocated"], report["run"]["first_step"]["peak_allocated"]);
  const Json& row = report["rows"][0];
  EXPECT_EQ(row["path"], "features.0");
  EXPECT_EQ(row["direction"], "forward");
  EXPECT_EQ(row["x"], Json({16, 1, 28, 28}));
  EXPECT_EQ(row["calls"], 4);
  EXPECT_TRUE(row["used_bytes"].is_null());
  EXPECT_TRUE(row["search_ms"].is_null());
  EXPECT_GT(row["ms"].get<double>(), 0);
  const test::ProcessResult refused =
      test::train(test::tiny_run("--conv-report " + text + "/below"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.err.find("--conv-report"), std::string::npos);
}

}  // namespace
}  // namespace headroom
