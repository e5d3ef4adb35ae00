// Convolution slots of the CPU backend: checks the operands and calls the method planned for their
// shapes.
#include <algorithm>

#include "core/base/error.h"
#include "core/ops/contract.h"
#include "kernels/cpu/conv_kernels.h"
#include "kernels/cpu/families.h"

namespace headroom {
namespace {

using cpu::ConvMethod;

// x and y stand for their gradients in backward passes.
void check_operands(const char* op, const View& x, const View& w, const View& y,
                    const Conv2dParams& params) {
  for (const View* view : {&x, &w, &y}) {
    CHECK(view->rank() == 4 && view->format == MemoryFormat::channels_last && view->is_dense(), op,
          ": the cpu takes dense channels_last operands of rank 4, got ", describe(*view));
  }
  CHECK(x.dtype == y.dtype, op, ": images must have one dtype, got ", x.dtype, " and ", y.dtype);
  CHECK(params.groups > 0 && x.shape[1] == w.shape[1] * params.groups && y.shape[1] == w.shape[0] &&
            w.shape[0] % params.groups == 0 && x.shape[0] == y.shape[0],
        op, ": shapes do not fit: ", x.shape, ", ", w.shape, ", ", y.shape);
  for (int axis = 0; axis < 2; ++axis) {
    CHECK(params.stride[axis] > 0 && params.dilation[axis] > 0 && params.padding[axis] >= 0, op,
          ": strides and dilations must be positive and padding not negative");
    const int64_t reach = params.dilation[axis] * (w.shape[2 + axis] - 1) + 1;
    const int64_t room = x.shape[2 + axis] + 2 * params.padding[axis] - reach;
    CHECK(y.numel() == 0 || (room >= 0 && room / params.stride[axis] + 1 == y.shape[2 + axis]), op,
          ": output extent does not fit: ", x.shape, ", ", w.shape, ", ", y.shape);
  }
}

char* scratch_of(const char* op, const View& workspace, int64_t needed) {
  CHECK(needed == 0 || (workspace && workspace.numel() >= needed), op, ": needs ", needed,
        " bytes of workspace");
  return workspace.as<char>();
}

void zero(const View& view) {
  const size_t bytes = static_cast<size_t>(view.numel()) * size_of(view.dtype);
  std::fill_n(view.as<char>(), bytes, char{0});
}

void run(const cpu::ConvCall& call, const cpu::ConvPlan& plan) {
  switch (plan.method) {
    case ConvMethod::gemm:
      return cpu::conv_gemm(call, plan);
    case ConvMethod::direct:
      return cpu::conv_direct(call, plan);
    case ConvMethod::depthwise:
      return cpu::conv_depthwise(call, plan);
  }
}

void conv2d(const View& x, const View& w, const View& bias, const Conv2dParams& params,
            const View& workspace, const View& y) {
  check_operands("conv2d", x, w, y, params);
  CHECK(w.dtype == x.dtype, "conv2d: weight must be ", x.dtype, ", got ", w.dtype);
  CHECK(!bias || (bias.numel() == w.shape[0] && is_floating(bias.dtype)),
        "conv2d: bias must hold one number per output channel, got ", bias.shape);
  if (y.numel() == 0) return;
  const cpu::ConvPlan plan = cpu::plan_conv2d(ConvDirection::forward, x, w, y, params);
  char* scratch = scratch_of("conv2d", workspace, plan.workspace_bytes());
  run({ConvDirection::forward, x, w, bias, params, y, scratch}, plan);
}

void conv2d_backward_input(const View& dy, const View& w, const Conv2dParams& params,
                           const View& workspace, const View& dx) {
  check_operands("conv2d_backward_input", dx, w, dy, params);
  CHECK(w.dtype == dy.dtype, "conv2d_backward_input: weight must be ", dy.dtype, ", got ", w.dtype);
  if (dx.numel() == 0) return;
  if (dy.numel() == 0) return zero(dx);
  const cpu::ConvPlan plan = cpu::plan_conv2d(ConvDirection::backward_input, dx, w, dy, params);
  char* scratch = scratch_of("conv2d_backward_input", workspace, plan.workspace_bytes());
  run({ConvDirection::backward_input, dy, w, View{}, params, dx, scratch}, plan);
}

void conv2d_backward_weight(const View& x, const View& dy, const Conv2dParams& params,
                            const View& workspace, const View& dw) {
  check_operands("conv2d_backward_weight", x, dw, dy, params);
  CHECK(dw.dtype == x.dtype || (is_half(x.dtype) && dw.dtype == DType::f32),
        "conv2d_backward_weight: cannot write ", dw.dtype, " from ", x.dtype);
  if (dw.numel() == 0) return;
  if (x.numel() == 0 || dy.numel() == 0) return zero(dw);
  const cpu::ConvWeightPlan plan = cpu::plan_conv2d_weight(x, dw, dy, params);
  char* scratch = scratch_of("conv2d_backward_weight", workspace, plan.workspace_bytes());
  const cpu::ConvWeightCall call{x, dy, params, dw, scratch};
  switch (plan.method) {
    case ConvMethod::gemm:
      return cpu::conv_weight_gemm(call, plan);
    case ConvMethod::direct:
      return cpu::conv_weight_direct(call, plan);
    case ConvMethod::depthwise:
      return cpu::conv_weight_depthwise(call, plan);
  }
}

}  // namespace

void register_cpu_conv_kernels() {
  slots::conv2d.set(DeviceType::cpu, &conv2d);
  slots::conv2d_backward_input.set(DeviceType::cpu, &conv2d_backward_input);
  slots::conv2d_backward_weight.set(DeviceType::cpu, &conv2d_backward_weight);
}

}  // namespace headroom
