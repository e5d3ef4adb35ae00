// The convolution slots on CUDA: cuDNN where params.algorithm says library and it has a plan that
// fits the workspace, else the native kernels. Those read channels_last alone, so nchw goes to
// cuDNN whatever params say. (The op converts to channels_last where no workspace may be had.)
#include "core/ops/contract.h"
#include "core/ops/conv_calls.h"
#include "kernels/cuda/conv_native.h"
#include "kernels/cuda/conv_pad_channels.h"
#include "kernels/cuda/cuda_common.h"
#include "kernels/cuda/cudnn_conv.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/library_call.h"

namespace headroom {
namespace {

using cuda::add_bias;
using cuda::ConvCall;
using cuda::Scratch;
using cuda::zero;

ConvCall library_call(ConvDirection direction, const View& x, const View& w, const View& y,
                      const Conv2dParams& params, const Scratch& scratch) {
  ConvCall call;
  call.direction = direction;
  call.x = x;
  call.w = w;
  call.y = y;
  call.params = params;
  call.workspace = scratch.data;
  call.workspace_bytes = scratch.bytes;
  return call;
}

bool uses_library(const Conv2dParams& params, const View& image) {
  return params.algorithm == ConvAlgorithm::library || image.format == MemoryFormat::contiguous;
}

// The call goes to the native kernels, which take channels_last alone.
void take_native(ConvDirection direction, const View& x, const View& w, const View& y,
                 const View& workspace) {
  detail::note_conv_engine({"native"});
  if (x.format == MemoryFormat::channels_last) return;
  throw DeviceError(detail::concat(cuda::name_of(direction), ": cuDNN has no plan within ",
                                   workspace ? workspace.numel() : 0,
                                   " B of workspace, and our own kernels need channels_last (x ",
                                   describe(x), ", w ", describe(w), ", y ", describe(y), ")"));
}

void conv2d(const View& x, const View& w, const View& bias, const Conv2dParams& params,
            const View& workspace, const View& y) {
  if (y.numel() == 0) return;
  if (x.numel() == 0 || w.numel() == 0) {
    zero(y);
    if (bias) add_bias(bias, y);
    return;
  }
  if (uses_library(params, x)) {
    Scratch scratch(workspace);
    View fused = bias;
    if (bias && bias.dtype != y.dtype) {  // cuDNN's fast engines add a bias of y's dtype only
      fused = scratch.take(bias, y.dtype);
      if (fused) slots::copy(bias, fused);
    }
    ConvCall call = library_call(ConvDirection::forward, x, w, y, params, scratch);
    call.bias = fused;
    if (cuda::run_cudnn_conv(call)) {
      if (bias && !fused) add_bias(bias, y);
      return;
    }
    if (fused) {
      call.bias = {};
      if (cuda::run_cudnn_conv(call)) return add_bias(bias, y);
    }
  }
  take_native(ConvDirection::forward, x, w, y, workspace);
  native_conv2d(x, w, bias, params, y, cuda::compute_stream());
}

void conv2d_backward_input(const View& dy, const View& w, const Conv2dParams& params,
                           const View& workspace, const View& dx) {
  if (dx.numel() == 0) return;
  if (dy.numel() == 0 || w.numel() == 0) return zero(dx);
  if (uses_library(params, dx) &&
      cuda::run_cudnn_conv(
          library_call(ConvDirection::backward_input, dx, w, dy, params, Scratch(workspace)))) {
    return;
  }
  take_native(ConvDirection::backward_input, dx, w, dy, workspace);
  native_conv2d_backward_input(dy, w, params, dx, cuda::compute_stream());
}

void conv2d_backward_weight(const View& x, const View& dy, const Conv2dParams& params,
                            const View& workspace, const View& dw) {
  if (dw.numel() == 0) return;
  if (x.numel() == 0 || dy.numel() == 0) return zero(dw);
  if (uses_library(params, x)) {
    Scratch scratch(workspace);
    // No engine of cuDNN writes an f32 gradient from half images: it is widened afterwards.
    const View narrow = dw.dtype == x.dtype ? dw : scratch.take(dw, x.dtype);
    if (narrow && cuda::run_cudnn_conv(library_call(ConvDirection::backward_weight, x, narrow, dy,
                                                    params, scratch))) {
      if (dw.dtype != x.dtype) slots::copy(narrow, dw);
      return;
    }
  }
  take_native(ConvDirection::backward_weight, x, dw, dy, workspace);
  native_conv2d_backward_weight(x, dy, params, workspace, dw, cuda::compute_stream());
}

}  // namespace

void register_cuda_conv_kernels() {
  slots::conv2d.set(DeviceType::cuda, &conv2d);
  slots::conv2d_backward_input.set(DeviceType::cuda, &conv2d_backward_input);
  slots::conv2d_backward_weight.set(DeviceType::cuda, &conv2d_backward_weight);
  slots::pad_channels.set(DeviceType::cuda, &cuda_pad_channels);
}

}  // namespace headroom
