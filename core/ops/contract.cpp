// The slots themselves, and the list of them.
#include "core/ops/contract.h"

#include "core/memory/scopes.h"

namespace headroom {
namespace {

std::vector<const SlotBase*>& slot_list() {
  static std::vector<const SlotBase*> list;
  return list;
}

}  // namespace

SlotBase::SlotBase(const char* name) : name_(name) { slot_list().push_back(this); }

void SlotBase::fail_devices(Device a, Device b) const {
  // The op, if one runs, is what the caller called.
  const char* op = memory_context().op;
  throw InvalidArgument(detail::concat(*op ? op : name_, ": operands lie on ", a, " and ", b));
}

void SlotBase::fail_missing(Device device) const {
  throw InvalidArgument(
      detail::concat(name_, ": no kernel registered for ", device,
                     " (were kernels registered, and was it built for this device?)"));
}

const std::vector<const SlotBase*>& all_slots() { return slot_list(); }

namespace slots {

#define HEADROOM_SLOT(name) decltype(name) name(#name)
HEADROOM_SLOT(copy);
HEADROOM_SLOT(fill);
HEADROOM_SLOT(fill_uniform);
HEADROOM_SLOT(fill_normal);
HEADROOM_SLOT(unary);
HEADROOM_SLOT(unary_backward);
HEADROOM_SLOT(relu_mask);
HEADROOM_SLOT(relu_mask_backward);
HEADROOM_SLOT(binary);
HEADROOM_SLOT(dropout);
HEADROOM_SLOT(reduce);
HEADROOM_SLOT(max_along);
HEADROOM_SLOT(scatter_along);
HEADROOM_SLOT(matmul);
HEADROOM_SLOT(conv2d);
HEADROOM_SLOT(conv2d_backward_input);
HEADROOM_SLOT(conv2d_backward_weight);
HEADROOM_SLOT(pad_channels);
HEADROOM_SLOT(max_pool2d);
HEADROOM_SLOT(max_pool2d_backward);
HEADROOM_SLOT(avg_pool2d);
HEADROOM_SLOT(avg_pool2d_backward);
HEADROOM_SLOT(batch_norm_train);
HEADROOM_SLOT(batch_norm_apply);
HEADROOM_SLOT(batch_norm_rstd);
HEADROOM_SLOT(batch_norm_backward);
HEADROOM_SLOT(softmax);
HEADROOM_SLOT(log_softmax);
HEADROOM_SLOT(softmax_backward);
HEADROOM_SLOT(log_softmax_backward);
HEADROOM_SLOT(cross_entropy);
HEADROOM_SLOT(cross_entropy_backward);
HEADROOM_SLOT(count_correct);
HEADROOM_SLOT(normalize_images);
HEADROOM_SLOT(gather_rows);
HEADROOM_SLOT(sgd_step);
HEADROOM_SLOT(adam_step);
HEADROOM_SLOT(check_finite);
HEADROOM_SLOT(clip_norm);
HEADROOM_SLOT(prepare_step);
HEADROOM_SLOT(finish_step);
#undef HEADROOM_SLOT

}  // namespace slots
}  // namespace headroom
