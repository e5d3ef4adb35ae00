// --snapshot: read back by tests/pytorch/check_snapshot.py, which checks keys, totals and that the
// trace leads to the state; here what it found is held against what the program says.
#include "train/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/python.h"
#include "tests/train/program_run.h"
#include "tests/train/trainer_run.h"

namespace headroom::test {
namespace {

Json check_snapshot(const std::string& file) {
  const std::string script = std::string(HEADROOM_SOURCE_DIR) + "/tests/pytorch/check_snapshot.py";
  return Json::parse(run_python({script, file}), nullptr, false);
}

bool holds(const Json& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

TrainConfig three_steps(const std::string& model, const std::string& data) {
  TrainConfig config = small_config(model, data);
  config.epochs = 0;
  config.steps = 3;
  return config;
}

struct Taken {
  StepRecord record;
  Json found;
};

Taken snapshot_of(TrainConfig config) {
  Trainer trainer(config);
  StepRecorder recorder(trainer.device());
  trainer.run(recorder);
  const TemporaryFolder folder;
  const std::string file = folder.path("run.pickle");
  write_snapshot(file, recorder.record().value());
  return {*recorder.record(), check_snapshot(file)};
}

TEST(Snapshot, HasTheTotalsOfTheRecordAndATraceThatLeadsThere) {
  if (!has_python()) GTEST_SKIP() << "no python3 on this machine";
  for (const char* device : {"cpu", "meta:cuda"}) {
    TrainConfig config = three_steps("resnet18", "random:3x16x16:4:64");
    config.device = device;
    config.accum = 2;
    const auto [record, found] = snapshot_of(config);
    int64_t allocated = 0, requested = 0, reserved = 0;
    for (const LiveBlock& block : record.log.live) allocated += block.bytes;
    for (const SegmentInfo& segment : record.segments) {
      reserved += segment.bytes;
      for (const BlockInfo& block : segment.blocks) requested += block.requested_bytes;
    }
    EXPECT_EQ(found["allocated"], allocated) << device;
    EXPECT_EQ(found["requested"], requested) << device;
    EXPECT_EQ(found["reserved"], reserved) << device;
    EXPECT_GT(found["events"].get<size_t>(), record.log.events.size()) << "a free is two events";
    // Rounding takes at most what one block of 512 B more for each could.
    EXPECT_LE(found["peak_requested"], record.peak.allocated_bytes) << device;
    EXPECT_GT(found["peak_requested"].get<int64_t>() * 10, record.peak.allocated_bytes * 9);
  }
}

TEST(Snapshot, ShowsExpandableSegmentsAsRunsOfPagesWithTheirMapsAndUnmaps) {
  if (!has_python()) GTEST_SKIP() << "no python3 on this machine";
  for (const char* device : {"cpu", "meta:cuda"}) {
    TrainConfig config = three_steps("resnet18", "random:3x16x16:4:64");
    config.device = device;
    config.expandable_segments = true;
    config.memory_threshold = 1e-9;  // pages come and go between all steps
    config.memory_limit_bytes = int64_t{4} << 30;
    config.on_threshold = OnThreshold::empty_cache;
    const auto [record, found] = snapshot_of(config);
    EXPECT_EQ(found["expandable_setting"], true) << device;
    int64_t reserved = 0, expandable = 0, maps = 0;
    for (const SegmentInfo& segment : record.segments) {  // of earlier runs there may be others
      reserved += segment.bytes;
      expandable += segment.expandable;
    }
    EXPECT_GT(expandable, 0) << device;
    EXPECT_EQ(found["expandable"], expandable) << device;
    for (const MemoryEvent& event : record.log.events) {
      maps += event.kind == MemoryEvent::Kind::page_map;
      EXPECT_NE(event.kind, MemoryEvent::Kind::segment_acquire) << device;
    }
    EXPECT_EQ(found["reserved"], reserved) << device;
    EXPECT_GT(maps, 0) << device;
    TrainConfig plain = three_steps("lenet", "random:1x12x12:4:50");
    plain.device = device;
    const Json without = snapshot_of(plain).found;
    EXPECT_EQ(without["expandable_setting"], false) << device;
  }
}

TEST(Snapshot, NamesBlocksFromBeforeTheRecord) {
  if (!has_python()) GTEST_SKIP() << "no python3 on this machine";
  const Json found = snapshot_of(three_steps("lenet", "random:1x12x12:4:50")).found;
  EXPECT_GT(found["blocks_before"], 20) << "parameters, momenta and buffers";
  EXPECT_TRUE(holds(found["modules"], "classifier.0")) << found["modules"];
  for (const char* name : {"parameter", "optimizer_state", "input", "optimizer"}) {
    EXPECT_TRUE(holds(found["names"], name)) << found["names"];
  }
}

TEST(Snapshot, OfTheProgramHasTheStepThatRanOutOfMemory) {
  if (!has_python()) GTEST_SKIP() << "no python3 on this machine";
  const TemporaryFolder folder;
  const std::string file = folder.path("run.pickle"), trace = folder.path("trace.json");
  const ProcessResult result =
      train(tiny_run("--batch 64 --memory-limit 24MiB --snapshot " + file + " --trace " + trace));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  const Json found = check_snapshot(file);
  ASSERT_FALSE(found["device_free_at_oom"].empty());
  constexpr int64_t kLimit = int64_t{24} << 20;
  EXPECT_LT(found["device_free_at_oom"][0], kLimit);
  EXPECT_LE(found["reserved"], kLimit);
  EXPECT_GT(found["peak_requested"], found["requested"]) << "what the failed step had taken";
  EXPECT_FALSE(Json::parse(file_text(trace))["traceEvents"].empty());
}

TEST(Snapshot, OfTheProgramIsWrittenAtItsEnd) {
  if (!has_python()) GTEST_SKIP() << "no python3 on this machine";
  const TemporaryFolder folder;
  const std::string file = folder.path("run.pickle");
  const Json run = train_json(tiny_run("--amp --snapshot " + file));
  const Json found = check_snapshot(file);
  EXPECT_LE(found["peak_requested"], run["peak_allocated"]);
  EXPECT_TRUE(found["device_free_at_oom"].empty());
}

// PyTorch's own viewer code, where PyTorch is installed; segments of both kinds.
TEST(Snapshot, IsReadByPyTorchWithTheSameTotals) {
  if (!has_python() || python_process({"-c", "import torch"}).exit_code != 0) {
    GTEST_SKIP() << "no PyTorch on this machine";
  }
  const TemporaryFolder folder;
  const std::string script = std::string(HEADROOM_SOURCE_DIR) + "/tests/pytorch/check_snapshot.py";
  std::vector<std::string> command = {script, "--torch"};
  for (const char* flags : {"", "--expandable-segments"}) {
    const std::string file = folder.path("run" + std::string(flags) + ".pickle");
    EXPECT_EQ(train(tiny_run(std::string(flags) + " --snapshot " + file)).exit_code, 0);
    command.push_back(file);
  }
  EXPECT_NE(run_python(command).find("finds the same totals"), std::string::npos);
}

TEST(Snapshot, TheCheckerSaysHowItIsUsed) {
  const std::string script = std::string(HEADROOM_SOURCE_DIR) + "/tests/pytorch/check_snapshot.py";
  EXPECT_NE(run_python({script, "--help"}).find("check_snapshot.py --torch FILE.."),
            std::string::npos);
}

TEST(Snapshot, ToAPlaceThatIsNotThereIsRefusedBeforeTheRun) {
  for (const char* flag : {"--snapshot", "--trace", "--memory-report"}) {
    const ProcessResult result = train(tiny_run(std::string(flag) + " /nowhere/file"));
    EXPECT_EQ(result.exit_code, 2) << flag;
    EXPECT_NE(result.err.find(std::string(flag) + " /nowhere/file"), std::string::npos);
  }
}

}  // namespace
}  // namespace headroom::test
