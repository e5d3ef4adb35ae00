// Windows of micro-batches at the edges of an epoch, and the meter that gathers their losses.
#include <gtest/gtest.h>

#include <tuple>
#include <utility>

#include "tests/train/trainer_run.h"
#include "train/meters.h"

namespace headroom {
namespace {

using test::Recorder;
using test::small_config;

TEST(TrainerAccumulation, DropLastLeavesTheShortWindowOut) {
  TrainConfig config = small_config();
  config.accum = 3;
  config.drop_last = true;
  Recorder recorder;
  Trainer trainer(config);
  EXPECT_EQ(trainer.info().steps_per_epoch, 2);
  trainer.run(recorder);
  ASSERT_EQ(recorder.steps.size(), 4u);
  for (const StepInfo& step : recorder.steps) EXPECT_EQ(step.images, 24);
}

Tensor sum_of(double mean, int64_t count) { return scalar(mean * static_cast<double>(count)); }

TEST(LossMeter, MicroBatchesOfAWindowAddUpAndReadingMayHappenAnyTime) {
  const auto run = [](bool reads) {
    LossMeter meter;
    meter.open(Device::cpu());
    for (int window = 0; window < 600; ++window) {  // beyond the ring
      for (int i = 0; i < 3; ++i) {
        meter.add(sum_of(0.1 * window + i, 2), 2, i == 0);
        if (reads && window % 7 == 0) {
          EXPECT_NEAR(meter.last_window_mean(), 0.1 * window + 0.5 * i, 1e-4);
        }
      }
    }
    return std::pair(meter.sum(), meter.count());
  };
  EXPECT_EQ(run(true), run(false));
  EXPECT_EQ(run(false).second, 3600);
}

// Also where the ring was read in the middle of what is given up.
TEST(LossMeter, AWindowThatIsGivenUpLeavesNothing) {
  const auto run = [](bool gives_up) {
    LossMeter meter;
    meter.open(Device::cpu());
    for (int window = 0; window < 200; ++window) {
      const LossMeter::Mark before = meter.mark();
      for (int i = 0; gives_up && i < 2 + window % 3; ++i) meter.add(sum_of(7.7, 3), 3, i == 0);
      if (gives_up) meter.restore(before);
      for (int i = 0; i < 3; ++i) meter.add(sum_of(0.1 * window + i, 2), 2, i == 0);
    }
    return std::tuple(meter.last_window_mean(), meter.mean(), meter.sum(), meter.count());
  };
  EXPECT_EQ(run(true), run(false));
  EXPECT_EQ(std::get<3>(run(true)), 1200);
}

}  // namespace
}  // namespace headroom
