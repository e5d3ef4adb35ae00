// Steps of single parameters, and the count of them all.
#include "optim/step_in_backward.h"

#include <algorithm>
#include <utility>

#include "core/autograd/node.h"
#include "core/ops/contract.h"

namespace headroom {

StepInBackward::StepInBackward(Optimizer& optimizer, GradientHook on_gradient)
    : optimizer_(optimizer), on_gradient_(std::move(on_gradient)) {
  CHECK_ARG(optimizer.rates_.defined(), "step in backward: no learning rate was set");
  for (size_t i = 0; i < optimizer.entries_.size(); ++i) {
    Optimizer::Entry& entry = optimizer.entries_[i];
    entry.steps = false;
    if (LeafNode* leaf = entry.parameter.leaf()) {
      leaf->set_completion([this, i] { step_one(i); });
    }
  }
}

StepInBackward::~StepInBackward() {
  for (Optimizer::Entry& entry : optimizer_.entries_) {
    if (LeafNode* leaf = entry.parameter.leaf()) leaf->set_completion({});
  }
}

void StepInBackward::step_one(size_t index) {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  const OpScope op("optimizer_step");
  Optimizer& o = optimizer_;
  Optimizer::Entry& entry = o.entries_[index];
  const Tensor grad = entry.parameter.grad();
  if (!grad.defined()) return;
  CHECK_ARG(!entry.steps, "step in backward: a second backward before finish()");
  if (on_gradient_) on_gradient_(entry.parameter);
  if (prepared_.empty()) {
    slots::prepare_step(o.rates_, o.cohorts_[0].applied, {}, o.prepare_params(),
                        o.cohorts_[0].control);
    prepared_.push_back(0);
  }
  if (entry.cohort < 0) {
    if (entry.state.empty()) entry.state = o.make_state(entry);
    if (joining_ < 0) {
      const bool first =
          std::all_of(o.entries_.begin(), o.entries_.end(),
                      [](const Optimizer::Entry& other) { return other.cohort < 0; });
      if (!first) o.cohorts_.push_back(o.make_cohort());
      joining_ = first ? 0 : static_cast<int>(o.cohorts_.size()) - 1;
    }
    entry.cohort = joining_;
  }
  if (std::find(prepared_.begin(), prepared_.end(), entry.cohort) == prepared_.end()) {
    o.prepare_cohort(entry.cohort);
    prepared_.push_back(entry.cohort);
  }
  Optimizer::Batch batch;
  const Tensor dense = detail::dense_in(grad, entry.parameter.format());
  o.add_to(batch, entry, dense);
  o.update(batch, o.groups_[static_cast<size_t>(entry.group)],
           o.cohorts_[static_cast<size_t>(entry.cohort)].control);
  o.mark_written(entry);
  entry.parameter.set_grad({});
  entry.steps = true;
}

void StepInBackward::finish() {
  Optimizer& o = optimizer_;
  for (size_t i = 0; i < o.entries_.size(); ++i) step_one(i);
  if (prepared_.empty()) return;  // no gradient came
  const PhaseScope phase(Phase::optimizer);
  const OpScope op("optimizer_step");
  std::vector<Optimizer::Cohort> cohorts = o.cohorts_;
  const auto moved = o.split_cohorts(cohorts);
  for (const int c : prepared_) {
    slots::finish_step(o.cohorts_[static_cast<size_t>(c)].control, {},
                       o.cohorts_[static_cast<size_t>(c)].applied, {}, {});
  }
  for (const auto& [entry, cohort] : moved) entry->cohort = cohort;
  o.cohorts_ = std::move(cohorts);
  for (Optimizer::Entry& entry : o.entries_) entry.steps = false;
  prepared_.clear();
  joining_ = -1;
}

}  // namespace headroom
