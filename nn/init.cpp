// Initialisers.
#include "nn/init.h"

#include <cmath>

#include "core/autograd/node.h"
#include "core/ops/elementwise.h"

namespace headroom {
namespace {

double kaiming_scale(const Tensor& weight, double slope, FanMode mode) {
  const auto fan = static_cast<double>(fan_of(weight, mode));
  return fan > 0 ? 1.0 / std::sqrt((1 + slope * slope) * fan) : 0.0;
}

double xavier_scale(const Tensor& weight, double gain) {
  const auto fans = static_cast<double>(fan_of(weight, FanMode::in) + fan_of(weight, FanMode::out));
  return fans > 0 ? gain / std::sqrt(fans) : 0.0;
}

void fill_uniform(Tensor& t, double bound) {
  const NoGrad no_grad;
  uniform_(t, -bound, bound);
}

void fill_normal(Tensor& t, double deviation) {
  const NoGrad no_grad;
  normal_(t, 0, deviation);
}

}  // namespace

int64_t fan_of(const Tensor& weight, FanMode mode) {
  CHECK_ARG(weight.rank() >= 2, "init: fan needs a weight of rank 2 or more but got ",
            weight.describe());
  int64_t field = 1;
  for (int i = 2; i < weight.rank(); ++i) field *= weight.size(i);
  return field * weight.size(mode == FanMode::in ? 1 : 0);
}

void kaiming_uniform(Tensor& weight, double slope, FanMode mode) {
  fill_uniform(weight, std::sqrt(6.0) * kaiming_scale(weight, slope, mode));
}
void kaiming_normal(Tensor& weight, double slope, FanMode mode) {
  fill_normal(weight, std::sqrt(2.0) * kaiming_scale(weight, slope, mode));
}
void xavier_uniform(Tensor& weight, double gain) {
  fill_uniform(weight, std::sqrt(6.0) * xavier_scale(weight, gain));
}
void xavier_normal(Tensor& weight, double gain) {
  fill_normal(weight, std::sqrt(2.0) * xavier_scale(weight, gain));
}

void default_init(Tensor& weight, Tensor& bias) {
  kaiming_uniform(weight, std::sqrt(5.0));
  if (!bias.defined()) return;
  const auto fan = static_cast<double>(fan_of(weight, FanMode::in));
  fill_uniform(bias, fan > 0 ? 1 / std::sqrt(fan) : 0.0);
}

}  // namespace headroom
