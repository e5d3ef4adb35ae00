// Copies that wait on the device until a window has to be taken back.
#include "train/rollback.h"

#include "core/autograd/autograd.h"
#include "core/ops/contract.h"
#include "core/ops/ops.h"

namespace headroom {

Rollback::Rollback(Module& module, LossMeter& losses) : module_(&module), losses_(&losses) {
  const TagScope tag(Tag::buffer);
  for (const NamedTensor& entry : module.named_buffers()) {
    buffers_.emplace_back(entry.tensor, empty_like(entry.tensor));
  }
  for (int64_t* counter : module.counters()) counters_.push_back({counter, *counter});
}

void Rollback::mark() {
  if (!module_) return;
  for (const auto& [buffer, kept] : buffers_) slots::copy(buffer, kept);
  for (Counter& counter : counters_) counter.marked = *counter.value;
  random_ = default_generator().state();
  loss_mark_ = losses_->mark();
}

void Rollback::restore() {
  module_->zero_grad();
  const NoGrad no_grad;
  for (auto& [buffer, kept] : buffers_) copy_(buffer, kept);
  for (const Counter& counter : counters_) *counter.value = counter.marked;
  default_generator().set_state(random_);
  losses_->restore(loss_mark_);
}

}  // namespace headroom
