// Telling a thread's listener.
#include "core/ops/conv_calls.h"

#include <optional>
#include <utility>

#include "core/ops/workspace_cpu.h"

namespace headroom {
namespace {

thread_local ConvCallListener* conv_listener = nullptr;
thread_local std::optional<ConvEngine> noted;

const char* name_of_method(cpu::ConvMethod method) {
  switch (method) {
    case cpu::ConvMethod::gemm:
      return "gemm";
    case cpu::ConvMethod::direct:
      return "direct";
    case cpu::ConvMethod::depthwise:
      break;
  }
  return "depthwise";
}

}  // namespace

const char* words_of(ConvDirection direction) {
  switch (direction) {
    case ConvDirection::forward:
      return "forward";
    case ConvDirection::backward_input:
      return "backward_input";
    case ConvDirection::backward_weight:
      break;
  }
  return "backward_weight";
}

ConvCallListener* set_conv_call_listener(ConvCallListener* listener) {
  return std::exchange(conv_listener, listener);
}

namespace detail {

void note_conv_engine(const ConvEngine& engine) {
  if (conv_listener) noted = engine;
}

ConvEngine conv_engine_by_rule(Device device, ConvDirection direction, const View& x, const View& w,
                               const View& y, const Conv2dParams& params) {
  ConvEngine out;
  if (x.numel() == 0 || w.numel() == 0 || y.numel() == 0) {
    out.name = "none";
  } else if (device.stands_for == DeviceType::cuda) {
    out.name = params.algorithm == ConvAlgorithm::native ? "native" : "cudnn";
  } else if (direction == ConvDirection::backward_weight) {
    out.name = name_of_method(cpu::plan_conv2d_weight(x, w, y, params).method);
  } else {
    out.name = name_of_method(cpu::plan_conv2d(direction, x, w, y, params).method);
  }
  return out;
}

ConvCallScope::ConvCallScope() : listener_(conv_listener) {
  if (!listener_) return;
  noted.reset();
  listener_->on_conv_begin();
}

void ConvCallScope::end(ConvDirection direction, const View& x, const View& w, const View& y,
                        const Conv2dParams& params, int64_t workspace_bytes) {
  if (!listener_) return;
  const MemoryContext& context = memory_context();
  const ConvEngine engine =
      noted ? *noted : conv_engine_by_rule(x.device, direction, x, w, y, params);
  const ConvCallInfo call{direction, context.path, context.phase, x.shape,         w.shape,
                          y.shape,   x.dtype,      x.format,      workspace_bytes, engine};
  listener_->on_conv_end(call);
}

}  // namespace detail
}  // namespace headroom
