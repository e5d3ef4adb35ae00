// The record of one step's memory: its course, its peak, and who holds what then.
#include "train/memory_record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/train/trainer_run.h"
#include "train/observers.h"

namespace headroom {
namespace {

using test::Recorder;
using test::small_config;

int64_t sum_of(const BytesByTag& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

struct Recorded {
  StepRecord record;
  RunResult result;
};

Recorded recorded(TrainConfig config) {
  Recorder steps;
  Trainer trainer(config);
  StepRecorder recorder(trainer.device());
  Observers observers;
  observers.add(recorder);
  observers.add(steps);
  const RunResult result = trainer.run(observers);
  EXPECT_TRUE(recorder.record().has_value());
  return {recorder.record().value_or(StepRecord{}), result};
}

TEST(StepRecorder, RecordsTheStepWhosePeakIsTheRuns) {
  for (const bool amp : {false, true}) {
    TrainConfig config = small_config("resnet18", "random:3x16x16:4:64");
    config.epochs = 0;
    config.steps = 4;
    config.accum = 2;
    if (amp) config.amp = DType::f16;
    const auto [record, result] = recorded(config);
    EXPECT_GE(record.step, 2);
    EXPECT_EQ(record.log.dropped, 0);
    EXPECT_EQ(record.peak.allocated_bytes, result.peak.allocated);
    BytesByTag by_tag{};
    for (const PeakPart& part : record.peak.parts) {
      by_tag[static_cast<size_t>(part.tag)] += part.bytes;
    }
    EXPECT_EQ(by_tag, result.peak.parts);
  }
}

TEST(StepRecorder, OfASingleStepRecordsThat) {
  TrainConfig config = small_config();
  config.epochs = 0;
  config.steps = 1;
  EXPECT_EQ(recorded(config).record.step, 1);
}

TEST(StepRecorder, TimelineGoesThroughEveryStateAndEndsWhereItBegan) {
  TrainConfig config = small_config("resnet18", "random:3x16x16:4:64");
  config.epochs = 0;
  config.steps = 3;
  const StepRecord record = recorded(config).record;
  const std::vector<TimelinePoint> points = timeline_of(record.log);
  ASSERT_GT(points.size(), 300u);
  int64_t highest = 0;
  for (const TimelinePoint& point : points) {
    EXPECT_LE(sum_of(point.by_tag), point.reserved_bytes) << point.event;
    for (const int64_t bytes : point.by_tag) ASSERT_GE(bytes, 0) << point.event;
    if (point.event >= 0) {
      const MemoryEvent& event = record.log.events[static_cast<size_t>(point.event)];
      ASSERT_EQ(sum_of(point.by_tag), event.allocated_bytes) << point.event;
    }
    highest = std::max(highest, sum_of(point.by_tag));
  }
  EXPECT_EQ(highest, record.peak.allocated_bytes);
  EXPECT_EQ(points.front().by_tag, points.back().by_tag) << "a step leaves what it found";
}

TEST(StepRecorder, LayersSumToThePeakAndOwnTheirParametersAndState) {
  TrainConfig config = small_config("lenet", "random:1x12x12:4:50");
  config.epochs = 0;
  config.steps = 2;
  const StepRecord record = recorded(config).record;
  const std::vector<LayerRow> layers = layers_at_peak(record.peak);
  int64_t total = 0;
  for (const LayerRow& row : layers) {
    EXPECT_EQ(sum_of(row.by_tag), row.total_bytes) << row.path;
    total += row.total_bytes;
  }
  EXPECT_EQ(total, record.peak.allocated_bytes);
  const auto row = std::find_if(layers.begin(), layers.end(),
                                [](const LayerRow& layer) { return layer.path == "classifier.0"; });
  ASSERT_NE(row, layers.end());
  const auto bytes = [&](Tag tag) { return row->by_tag[static_cast<size_t>(tag)]; };
  constexpr int64_t kWeight = 64 * 9 * 512 * 4, kBias = 512 * 4;  // both multiples of 512 B
  EXPECT_EQ(bytes(Tag::parameter), kWeight + kBias);
  EXPECT_EQ(bytes(Tag::optimizer_state), kWeight + kBias);
}

}  // namespace
}  // namespace headroom
