// Keys and descriptions of convolution calls.
#include "kernels/cuda/cudnn_conv_key.h"

#include "core/base/settings.h"
#include "kernels/cuda/library_call.h"

namespace headroom::cuda {

const char* name_of(ConvDirection direction) {
  switch (direction) {
    case ConvDirection::forward:
      return "conv2d";
    case ConvDirection::backward_input:
      return "conv2d_backward_input";
    default:
      return "conv2d_backward_weight";
  }
}

int64_t conv_alignment(const View& view) {
  constexpr int64_t kMaxAlignment = 16;  // cuDNN asks for no more
  return alignment_of(view.data, kMaxAlignment);
}

PlanKey key_of(const ConvCall& call) {
  PlanKey key{};
  size_t at = 0;
  const auto add = [&](int64_t value) { key.at(at++) = value; };
  add(static_cast<int64_t>(call.direction));
  for (const View* view : {&call.x, &call.w, &call.y}) {
    for (int axis = 0; axis < 4; ++axis) add(view->shape[axis]);
    add(conv_alignment(*view));
  }
  add(static_cast<int64_t>(call.x.format));
  add(static_cast<int64_t>(call.x.dtype));
  add(call.bias ? conv_alignment(call.bias) : 0);
  for (int axis = 0; axis < 2; ++axis) {
    add(call.params.stride[axis]);
    add(call.params.padding[axis]);
    add(call.params.dilation[axis]);
  }
  add(call.params.groups);
  add(call.workspace_bytes);
  add(settings().deterministic);
  add(call.x.dtype == DType::f32 && settings().tf32 != Tf32::off);
  add(settings().cudnn_benchmark);
  return key;
}

std::string describe(const ConvCall& call) {
  std::string out =
      detail::concat(name_of(call.direction), " (x ", headroom::describe(call.x), ", w ",
                     headroom::describe(call.w), ", y ", headroom::describe(call.y));
  if (call.bias) out += detail::concat(", bias ", headroom::describe(call.bias));
  const Conv2dParams& p = call.params;
  out += detail::concat(", stride ", p.stride[0], "x", p.stride[1], ", padding ", p.padding[0], "x",
                        p.padding[1], ", dilation ", p.dilation[0], "x", p.dilation[1], ", groups ",
                        p.groups, ", workspace ", call.workspace_bytes, " B)");
  return out;
}

}  // namespace headroom::cuda
