// Learning-rate tables against their formulas.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/base/error.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

ScheduleOptions of(ScheduleKind kind, double lr, int64_t total, int64_t warmup = 0) {
  ScheduleOptions out;
  out.kind = kind;
  out.lr = lr;
  out.total_steps = total;
  out.warmup_steps = warmup;
  return out;
}

TEST(Schedule, ConstantStaysAfterTheWarmUp) {
  EXPECT_EQ(make_schedule(of(ScheduleKind::constant, 0.5, 4, 2)), (Floats{0.25, 0.5, 0.5, 0.5}));
}

TEST(Schedule, StepMultipliesAfterEveryPeriod) {
  ScheduleOptions options = of(ScheduleKind::step, 1, 7, 1);
  options.step_every = 2;
  options.gamma = 0.5;
  EXPECT_EQ(make_schedule(options), (Floats{1, 1, 1, 0.5, 0.5, 0.25, 0.25}));
}

TEST(Schedule, CosineFallsFromTheRateToItsFinalFraction) {
  ScheduleOptions options = of(ScheduleKind::cosine, 2, 12, 2);
  options.final_fraction = 0.1;
  const Floats rates = make_schedule(options);
  EXPECT_FLOAT_EQ(rates[0], 1);
  EXPECT_FLOAT_EQ(rates[1], 2);
  for (int k = 0; k < 10; ++k) {
    const double wanted = 0.2 + 1.8 * (1 + std::cos(M_PI * k / 10)) / 2;
    EXPECT_NEAR(rates[static_cast<size_t>(k) + 2], wanted, 1e-6) << k;
  }
}

// The values of PyTorch's OneCycleLR(max_lr=1, total_steps=10, pct_start=0.3,
// cycle_momentum=False).
TEST(Schedule, OneCycleIsPyTorchs) {
  const Floats wanted = {0.04f,       0.52f,       1.0f,        0.95048463f,  0.81174565f,
                         0.61126202f, 0.38874198f, 0.18825835f, 0.049519368f, 0.000004f};
  const Floats rates = make_schedule(of(ScheduleKind::one_cycle, 1, 10));
  ASSERT_EQ(rates.size(), wanted.size());
  for (size_t k = 0; k < wanted.size(); ++k) EXPECT_NEAR(rates[k], wanted[k], 1e-6) << k;
}

TEST(Schedule, OneCycleWithAWarmupOfOneStepBeginsAtTheTop) {
  const Floats rates = make_schedule(of(ScheduleKind::one_cycle, 1, 5, 1));
  EXPECT_FLOAT_EQ(rates[0], 1);
  EXPECT_TRUE(std::is_sorted(rates.begin(), rates.end(), std::greater<>()));
  EXPECT_NEAR(rates[4], 1 / 25e4, 1e-9);
}

TEST(Schedule, EveryKindGivesOnePositiveRatePerStepForAnyLength) {
  for (const std::string& name : schedule_names()) {
    for (const int64_t total : {1, 2, 3, 100}) {
      for (const int64_t warmup : {0, 1, 50, 1000}) {
        ScheduleOptions options = of(parse_schedule(name), 0.1, total, warmup);
        options.step_every = 1;
        const Floats rates = make_schedule(options);
        ASSERT_EQ(static_cast<int64_t>(rates.size()), total);
        for (const float rate : rates) {
          EXPECT_TRUE(std::isfinite(rate)) << name;
          EXPECT_GE(rate, 0) << name;
          EXPECT_LE(rate, 0.1f) << name;
        }
        EXPECT_GT(rates[0], 0) << name;
      }
    }
  }
}

TEST(Schedule, RefusesWhatMakesNoSense) {
  EXPECT_THROW(parse_schedule("linear"), InvalidArgument);
  EXPECT_THROW(make_schedule(of(ScheduleKind::cosine, -1, 10)), InvalidArgument);
  EXPECT_THROW(make_schedule(of(ScheduleKind::cosine, std::nan(""), 10)), InvalidArgument);
  EXPECT_THROW(make_schedule(of(ScheduleKind::cosine, 1, 0)), InvalidArgument);
  EXPECT_THROW(make_schedule(of(ScheduleKind::cosine, 1, 10, -1)), InvalidArgument);
  EXPECT_THROW(make_schedule(of(ScheduleKind::step, 1, 10)), InvalidArgument);
}

}  // namespace
}  // namespace headroom
