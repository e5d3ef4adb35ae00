// GradScaler: a scale and a tracker on the device.
#include "optim/grad_scaler.h"

#include "core/autograd/node.h"
#include "core/base/count.h"
#include "core/ops/contract.h"
#include "core/ops/elementwise.h"

namespace headroom {

GradScaler::GradScaler(const GradScalerOptions& options, Device device) {
  params_.growth_factor = options.growth_factor;
  params_.backoff_factor = options.backoff_factor;
  params_.growth_interval = options.growth_interval;
  CHECK_ARG(options.growth_factor > 1, "loss scaler: growth factor must be above 1, got ",
            options.growth_factor);
  CHECK_ARG(options.backoff_factor > 0 && options.backoff_factor < 1,
            "loss scaler: back-off factor must lie between 0 and 1, got ", options.backoff_factor);
  CHECK_ARG(options.growth_interval >= 1, "loss scaler: growth interval must be at least 1, got ",
            options.growth_interval);
  const TagScope tag(Tag::optimizer_state);
  scale_ = empty({}, {DType::f32, device});
  tracker_ = zeros({}, {DType::i64, device});
  set_state(options.init_scale, 0);
}

Tensor GradScaler::scale(const Tensor& loss) const { return mul(loss, scale_); }

Tensor GradScaler::seed(double factor) const {
  const NoGrad no_grad;
  return mul(scale_, factor);
}

double GradScaler::current_scale() const { return scale_.item(); }
int64_t GradScaler::growth_tracker() const { return tracker_.to_vector<int64_t>()[0]; }

void GradScaler::set_state(double scale, int64_t growth_tracker) {
  CHECK_ARG(scale >= params_.min_scale && scale <= params_.max_scale,
            "loss scaler: scale must lie in [2^-24, 2^40], got ", scale);
  CHECK_ARG(growth_tracker >= 0 && growth_tracker <= kMaxRestoredCount,
            "loss scaler: growth tracker must lie in 0 .. ", kMaxRestoredCount, ", got ",
            growth_tracker);
  fill_(scale_, scale);
  fill_(tracker_, static_cast<double>(growth_tracker));
}

void GradScaler::prepare_shared_update() {
  if (control_.defined()) return;
  const TagScope tag(Tag::optimizer_state);
  const Tensor applied = zeros({}, {DType::i64, scale_.device()});
  control_ = zeros({kControlFields}, {DType::f32, scale_.device()});
  applied_ = applied;
}

Tensor GradScaler::found_inf() const {
  return detail::alias(control_, kFoundInf, {}, {}, control_.format());
}

void GradScaler::add_found_inf(const Tensor& found_inf_of_one) {
  slots::binary(BinaryOp::maximum, found_inf(), found_inf_of_one, found_inf());
  pending_ = true;
}

void GradScaler::update() {
  CHECK_ARG(pending_, "loss scaler: update() needs an optimizer's step with update_scale = false");
  slots::finish_step(control_, params_, applied_, scale_, tracker_);
  slots::fill(0, found_inf());
  pending_ = false;
}

void GradScaler::update(bool found_inf_now) {
  prepare_shared_update();
  slots::fill(found_inf_now ? 1 : 0, found_inf());
  pending_ = true;
  update();
}

}  // namespace headroom
