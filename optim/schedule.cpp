// Schedules.
#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace headroom {
namespace {

constexpr double kOneCycleStartDivisor = 25;
constexpr double kOneCycleEndDivisor = 25e4;
constexpr double kOneCycleRise = 0.3;  // of all steps

// From `begin` to `end` along half a cosine; t in [0, 1].
double half_cosine(double begin, double end, double t) {
  return end + (begin - end) * (1 + std::cos(std::numbers::pi * t)) / 2;
}

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

}  // namespace

const std::vector<std::string>& schedule_names() {
  static const std::vector<std::string> names = {"constant", "step", "cosine", "one-cycle"};
  return names;
}

ScheduleKind parse_schedule(const std::string& name) {
  const auto& names = schedule_names();
  const auto found = std::find(names.begin(), names.end(), name);
  CHECK_ARG(found != names.end(),
            "schedule: allowed are constant, step, cosine and one-cycle, got '", name, "'");
  return static_cast<ScheduleKind>(found - names.begin());
}

std::vector<float> make_schedule(const ScheduleOptions& o) {
  CHECK_ARG(std::isfinite(o.lr) && o.lr >= 0,
            "schedule: the rate must be finite and at least 0, got ", o.lr);
  CHECK_ARG(o.total_steps >= 1, "schedule: needs at least one step, got ", o.total_steps);
  CHECK_ARG(o.warmup_steps >= 0, "schedule: warm-up steps must be at least 0, got ",
            o.warmup_steps);
  CHECK_ARG(o.kind != ScheduleKind::step || o.step_every >= 1,
            "schedule: step needs a period of at least 1, got ", o.step_every);
  int64_t warmup = std::min(o.warmup_steps, o.total_steps);
  if (o.kind == ScheduleKind::one_cycle && warmup == 0)
    warmup = std::max<int64_t>(
        1, static_cast<int64_t>(kOneCycleRise * static_cast<double>(o.total_steps)));
  const int64_t rest = o.total_steps - warmup;
  std::vector<float> rates;
  rates.reserve(static_cast<size_t>(o.total_steps));
  for (int64_t k = 0; k < o.total_steps; ++k) {
    const int64_t after = k - warmup;
    double rate = o.lr;
    switch (o.kind) {
      case ScheduleKind::constant:
        break;
      case ScheduleKind::step:
        if (after > 0) rate *= std::pow(o.gamma, static_cast<double>(after / o.step_every));
        break;
      case ScheduleKind::cosine:
        if (after > 0) rate = half_cosine(o.lr, o.lr * o.final_fraction, ratio(after, rest));
        break;
      case ScheduleKind::one_cycle:
        // The last step of the rise has the highest rate, the last of all the lowest.
        if (after < -1) {
          rate = half_cosine(o.lr / kOneCycleStartDivisor, o.lr, ratio(k, warmup - 1));
        } else {
          rate = half_cosine(o.lr, std::max(o.lr * o.final_fraction, o.lr / kOneCycleEndDivisor),
                             ratio(after + 1, rest));
        }
        break;
    }
    if (after < 0 && o.kind != ScheduleKind::one_cycle) rate = o.lr * ratio(k + 1, warmup);
    rates.push_back(static_cast<float>(rate));
  }
  return rates;
}

}  // namespace headroom
