// The native convolutions' entry points: which kernel, with which access, in how many parts.
#include <algorithm>
#include <initializer_list>

#include "core/base/settings.h"
#include "core/ops/workspace_rules.h"
#include "kernels/cuda/conv_native.h"
#include "kernels/cuda/conv_native_launch.h"

namespace headroom {
namespace {

using namespace cuda;  // NOLINT: the kernels of this family

// y may be dy, x may be dx, w may be dw: the shapes say what is convolved with what.
NativeConv native_conv(const char* op, const View& x, const View& w, const View& y,
                       const Conv2dParams& params, cudaStream_t stream) {
  for (const View* view : {&x, &w, &y}) {
    CHECK(view->rank() == 4 && view->is_dense() && view->format == MemoryFormat::channels_last, op,
          ": the native kernels need dense channels_last tensors but got ", describe(*view));
  }
  CHECK(x.dtype == y.dtype, op, ": x and y differ in dtype: ", describe(x), ", ", describe(y));
  NativeConv conv;
  conv.shape = conv_shape(x, w, params, y);
  const ConvShape& shape = conv.shape;
  CHECK(shape.groups > 0 && shape.stride_h > 0 && shape.stride_w > 0 && shape.dilation_h > 0 &&
            shape.dilation_w > 0 && shape.c % shape.groups == 0 && shape.k % shape.groups == 0 &&
            w.shape[1] == shape.group_inputs() && w.shape[0] == shape.k && y.shape[0] == shape.n,
        op, ": shapes do not fit together (x ", describe(x), ", w ", describe(w), ", y ",
        describe(y), ")");
  conv.dtype = x.dtype;
  conv.tf32 = settings().tf32 != Tf32::off;
  conv.x = x.data;
  conv.w = w.data;
  conv.y = y.data;
  conv.stream = stream;
  return conv;
}

// 16-byte access along the channels of all that is read (and written in pairs).
bool is_wide(const NativeConv& conv, std::initializer_list<int> channels) {
  const int vector = static_cast<int>(kVectorBytes / size_of(conv.dtype));
  for (const int count : channels) {
    if (count % vector != 0) return false;
  }
  return is_aligned(conv.x) && is_aligned(conv.w) && is_aligned(conv.y);
}

template <class T>
__global__ void add_parts_kernel(const float* parts, int count, int64_t numel, T* sum) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= numel) return;
  float total = 0;
#pragma unroll 8
  for (int part = 0; part < count; ++part) total += parts[part * numel + i];
  sum[i] = from_float<T>(total);
}

void add_parts(const float* parts, int count, const View& sum, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const int64_t numel = sum.numel();
  dispatch_cuda_floating(sum.dtype, "conv2d_backward_weight", [&](auto tag) {
    using T = decltype(tag);
    add_parts_kernel<T><<<static_cast<unsigned>(ceil_div(numel, kThreads)), kThreads, 0, stream>>>(
        parts, count, numel, sum.as<T>());
    check_launch("native_conv2d_add_parts");
  });
}

}  // namespace

void native_conv2d(const View& x, const View& w, const View& bias, const Conv2dParams& params,
                   const View& y, cudaStream_t stream) {
  CHECK(w.dtype == x.dtype, "conv2d: x and w differ in dtype: ", describe(x), ", ", describe(w));
  const NativeConv conv = native_conv("conv2d", x, w, y, params, stream);
  if (y.numel() == 0) return;
  ConvBias added;
  if (bias) {
    CHECK(bias.numel() == y.shape[1] && bias.is_dense() && is_floating(bias.dtype), "conv2d: bias ",
          describe(bias), " does not fit y ", describe(y));
    added = {bias.data, bias.dtype};
  }
  if (is_narrow(conv.shape)) return direct_forward(conv, added, y.data);
  const bool wide = is_wide(conv, {conv.shape.group_inputs(), conv.shape.group_outputs()});
  gemm_forward(conv, added, wide, y.data);
}

void native_conv2d_backward_input(const View& dy, const View& w, const Conv2dParams& params,
                                  const View& dx, cudaStream_t stream) {
  CHECK(w.dtype == dx.dtype, "conv2d_backward_input: dx and w differ in dtype: ", describe(dx),
        ", ", describe(w));
  const NativeConv conv = native_conv("conv2d_backward_input", dx, w, dy, params, stream);
  if (dx.numel() == 0) return;
  if (is_narrow(conv.shape)) return direct_backward_input(conv, dx.data);
  const bool wide = is_wide(conv, {conv.shape.group_inputs(), conv.shape.group_outputs()});
  gemm_backward_input(conv, wide, dx.data);
}

void native_conv2d_backward_weight(const View& x, const View& dy, const Conv2dParams& params,
                                   const View& workspace, const View& dw, cudaStream_t stream) {
  CHECK(dw.dtype == x.dtype || dw.dtype == DType::f32,
        "conv2d_backward_weight: dw must be f32 or of x's dtype: ", describe(dw), ", ",
        describe(x));
  const NativeConv conv = native_conv("conv2d_backward_weight", x, dw, dy, params, stream);
  if (dw.numel() == 0) return;
  const int64_t part_bytes = dw.numel() * static_cast<int64_t>(sizeof(float));
  const int64_t room = workspace && is_aligned(workspace.data) ? workspace.numel() / part_bytes : 0;
  const int64_t wanted = rules::cuda_native_weight_parts(dw, dy, params);
  const int parts =
      static_cast<int>(std::max<int64_t>(1, std::min({wanted, room, int64_t{65535}})));
  WeightTarget target;
  if (parts > 1) {
    target = {workspace.data, true, parts};
  } else {
    target = {dw.data, dw.dtype == DType::f32, 1};
  }
  if (is_narrow(conv.shape)) {
    direct_backward_weight(conv, target);
  } else {
    const bool wide = is_wide(conv, {conv.shape.group_inputs(), conv.shape.group_outputs()});
    gemm_backward_weight(conv, wide, target);
  }
  if (parts > 1) add_parts(workspace.as<const float>(), parts, dw, stream);
}

}  // namespace headroom
