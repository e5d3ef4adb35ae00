// SGD, Adam and AdamW on top of the shared step.
#include "core/ops/contract.h"
#include "optim/optimizer.h"

namespace headroom {

Sgd::Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options)
    : Optimizer(std::move(groups)), options_(options) {
  CHECK_ARG(options.momentum >= 0, "sgd: momentum must not be negative, got ", options.momentum);
  CHECK_ARG(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
            "sgd: nesterov needs a momentum above 0 and no dampening, got momentum ",
            options.momentum, ", dampening ", options.dampening);
  set_lr(options.lr);
}

std::vector<std::string> Sgd::state_names() const {
  if (options_.momentum == 0) return {};
  return {"momentum"};
}

void Sgd::update(const Batch& batch, const ParameterGroup& group, const Tensor& control) {
  SgdParams params;
  params.lr_factor = group.lr_factor;
  params.momentum = options_.momentum;
  params.dampening = options_.dampening;
  params.weight_decay = group.weight_decay;
  params.nesterov = options_.nesterov;
  params.maximize = options_.maximize;
  const ViewList momenta = batch.state.empty() ? ViewList(batch.parameters.size()) : batch.state[0];
  slots::sgd_step(batch.parameters, batch.gradients, momenta, batch.half_copies, control, params);
}

Adam::Adam(std::vector<ParameterGroup> groups, const AdamOptions& options)
    : Optimizer(std::move(groups)), options_(options) {
  CHECK_ARG(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1,
            "adam: betas must lie in [0, 1), got ", options.beta1, " and ", options.beta2);
  CHECK_ARG(options.eps >= 0, "adam: eps must not be negative, got ", options.eps);
  set_lr(options.lr);
}

void Adam::update(const Batch& batch, const ParameterGroup& group, const Tensor& control) {
  AdamParams params;
  params.lr_factor = group.lr_factor;
  params.beta1 = options_.beta1;
  params.beta2 = options_.beta2;
  params.eps = options_.eps;
  params.weight_decay = group.weight_decay;
  params.decoupled = options_.decoupled;
  params.maximize = options_.maximize;
  slots::adam_step(batch.parameters, batch.gradients, batch.state[0], batch.state[1],
                   batch.half_copies, control, params);
}

}  // namespace headroom
