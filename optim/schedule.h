// Learning-rate schedules, as tables: rate k is used by the optimizer's k-th applied step, so a
// step that the loss scaler skipped advances nothing. The device reads the table itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headroom {

enum class ScheduleKind : uint8_t { constant, step, cosine, one_cycle };
const std::vector<std::string>& schedule_names();  // in the order of the enum
// Throws InvalidArgument listing the names.
ScheduleKind parse_schedule(const std::string& name);

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::cosine;
  double lr = 0.1;            // the highest rate
  int64_t total_steps = 1;    // optimizer steps
  int64_t warmup_steps = 0;   // linear: step k of the warm-up has lr * (k + 1) / warmup_steps
  double final_fraction = 0;  // cosine, one_cycle: the last rate is near lr * final_fraction
  int64_t step_every = 0;     // step: multiply by gamma after every so many steps past the warm-up
  double gamma = 0.1;
};

// One rate per optimizer step.
//   constant   lr
//   step       lr * gamma^floor(k / step_every)
//   cosine     lr * (f + (1 - f) * (1 + cos(pi * k / n)) / 2), k counted from the end of the
//              warm-up, n the steps after it (Loshchilov & Hutter 2017)
//   one_cycle  half a cosine from lr / 25 up to lr at the last step of the warm-up (0.3 of the
//              steps if none is given), then one down to lr * max(f, 1 / 25e4) at the last step
//              (Smith & Topin 2018); momentum stays as it is
// Throws InvalidArgument for rates or counts that make no sense.
std::vector<float> make_schedule(const ScheduleOptions& options);

}  // namespace headroom
