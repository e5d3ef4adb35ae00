// The batch normalisation slots on CUDA: chooses layout, vector access and number of launches.
// Statistics and the elementwise pass are two launches, or one where the tensor fits into shared
// memory.
#include <initializer_list>

#include "core/ops/contract.h"
#include "core/ops/workspace_rules.h"
#include "kernels/cuda/batch_norm_internal.h"
#include "kernels/cuda/families.h"

namespace headroom {
namespace {

using namespace cuda::bn;  // NOLINT: the launchers of this family
using cuda::is_aligned;

// 16-byte access needs a multiple of the vector length along the memory and aligned addresses.
bool can_vectorize(const Extent& extent, DType dtype, std::initializer_list<const View*> views) {
  const int64_t along = extent.is_rows() ? extent.channels : extent.inner;
  if (along % headroom::bn::widest_vector(dtype) != 0) return false;
  for (const View* view : views) {
    if (view->defined && !is_aligned(view->data)) return false;
  }
  return true;
}

void check_image(const char* op, const char* name, const View& view, const View& x) {
  if (!view.defined) return;
  CHECK(
      view.shape == x.shape && view.dtype == x.dtype && view.format == x.format && view.is_dense(),
      op, ": ", name, " ", describe(view), " does not lie as x ", describe(x));
}

void check_channels(const char* op, const char* name, const View& view, const View& x) {
  if (!view.defined) return;
  CHECK(view.dtype == DType::f32 && view.rank() == 1 && view.shape[0] == x.shape[1] &&
            view.is_dense(),
        op, ": ", name, " must be f32 with one value per channel of x ", describe(x), " but is ",
        describe(view));
}

// The partial sums in the workspace, checked against the rule.
float2* partials_of(const char* op, const View& x, const View& workspace) {
  const int64_t needed = rules::cuda_batch_norm_workspace_bytes(x);
  CHECK(workspace.defined && workspace.numel() >= needed && is_aligned(workspace.data), op,
        ": needs an aligned workspace of ", needed, " bytes for x ", describe(x));
  return workspace.as<float2>();
}

float* floats(const View& view) { return view.defined ? view.as<float>() : nullptr; }
const void* data_of(const View& view) { return view.defined ? view.data : nullptr; }

ApplyArgs apply_args(const View& x, const View& residual, const View& gamma, const View& beta,
                     const View& mean, const View& rstd, bool relu, const View& y) {
  ApplyArgs args;
  args.dtype = x.dtype;
  args.extent = headroom::bn::extent_of(x);
  args.vector = can_vectorize(args.extent, x.dtype, {&x, &residual, &y});
  args.relu = relu;
  args.x = x.data;
  args.residual = data_of(residual);
  args.channels = {floats(gamma), floats(beta), floats(mean), floats(rstd)};
  args.y = y.data;
  return args;
}

// rstd = 1/sqrt(variance + eps), variance 0 where none is given; mean (optional) = 0.
__global__ void rstd_kernel(const float* variance, double eps, int64_t channels, float* mean,
                            float* rstd) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (channel >= channels) return;
  const double value = variance != nullptr ? variance[channel] : 0.0;
  rstd[channel] = static_cast<float>(1.0 / sqrt(value + eps));
  if (mean != nullptr) mean[channel] = 0.0f;
}

void launch_rstd(const float* variance, double eps, int64_t channels, float* mean, float* rstd) {
  if (channels == 0) return;
  constexpr int kThreads = 256;
  cuda::launch("batch_norm_rstd", &rstd_kernel,
               dim3(static_cast<unsigned>(divide_up(channels, kThreads))), dim3(kThreads), 0,
               variance, eps, channels, mean, rstd);
}

void train(const View& x, const View& residual, const View& gamma, const View& beta,
           const BatchNormParams& params, const View& workspace, const View& y, const View& mean,
           const View& rstd, const View& running_mean, const View& running_var) {
  constexpr const char* kOp = "batch_norm_train";
  check_image(kOp, "x", x, x);
  check_image(kOp, "residual", residual, x);
  check_image(kOp, "y", y, x);
  for (const View* view : {&gamma, &beta, &mean, &rstd, &running_mean, &running_var}) {
    check_channels(kOp, "a per-channel operand", *view, x);
  }
  if (x.numel() == 0) {  // no data, no statistics: the running averages stay
    launch_rstd(nullptr, params.eps, x.shape[1], mean.as<float>(), rstd.as<float>());
    return;
  }
  const ApplyArgs apply = apply_args(x, residual, gamma, beta, mean, rstd, params.relu, y);
  StatisticsArgs statistics;
  statistics.dtype = x.dtype;
  statistics.extent = apply.extent;
  statistics.vector = apply.vector;
  statistics.x = x.data;
  statistics.out = {params.eps,       params.momentum,      mean.as<float>(),
                    rstd.as<float>(), floats(running_mean), floats(running_var)};
  if (apply.extent.is_rows() && small_forward(statistics, apply)) return;
  statistics.partials = partials_of(kOp, x, workspace);
  if (apply.extent.is_rows()) {
    rows_statistics(statistics);
    rows_apply(apply);
  } else {
    planes_statistics(statistics);
    planes_apply(apply);
  }
}

void apply(const View& x, const View& residual, const View& gamma, const View& beta,
           const View& mean, const View& rstd, const BatchNormParams& params, const View& y) {
  constexpr const char* kOp = "batch_norm_apply";
  check_image(kOp, "x", x, x);
  check_image(kOp, "residual", residual, x);
  check_image(kOp, "y", y, x);
  for (const View* view : {&gamma, &beta, &mean, &rstd}) {
    check_channels(kOp, "a per-channel operand", *view, x);
  }
  if (x.numel() == 0) return;
  const ApplyArgs args = apply_args(x, residual, gamma, beta, mean, rstd, params.relu, y);
  if (args.extent.is_rows()) {
    rows_apply(args);
  } else {
    planes_apply(args);
  }
}

void rstd_of_variance(const View& running_var, double eps, const View& rstd) {
  CHECK(running_var.dtype == DType::f32 && rstd.dtype == DType::f32 && running_var.rank() == 1 &&
            running_var.shape == rstd.shape && running_var.is_dense() && rstd.is_dense(),
        "batch_norm_rstd: running_var ", describe(running_var), " and rstd ", describe(rstd),
        " must be f32 [c]");
  launch_rstd(running_var.as<float>(), eps, rstd.shape[0], nullptr, rstd.as<float>());
}

void backward(const View& x, const View& y, const View& dy, const View& gamma, const View& beta,
              const View& mean, const View& rstd, const BatchNormParams& params,
              const View& workspace, const View& dx, const View& dresidual, const View& dgamma,
              const View& dbeta) {
  constexpr const char* kOp = "batch_norm_backward";
  check_image(kOp, "x", x, x);
  check_image(kOp, "y", y, x);
  check_image(kOp, "dy", dy, x);
  check_image(kOp, "dx", dx, x);
  check_image(kOp, "dresidual", dresidual, x);
  for (const View* view : {&gamma, &beta, &mean, &rstd, &dgamma, &dbeta}) {
    check_channels(kOp, "a per-channel operand", *view, x);
  }
  if (x.numel() == 0) {
    for (const View* view : {&dgamma, &dbeta}) {
      if (!view->defined || view->numel() == 0) continue;
      CUDA_CHECK(cudaMemsetAsync(view->data, 0, static_cast<size_t>(view->numel()) * sizeof(float),
                                 cuda::compute_stream()));
    }
    return;
  }
  BackwardArgs args;
  args.dtype = x.dtype;
  args.extent = headroom::bn::extent_of(x);
  args.vector = can_vectorize(args.extent, x.dtype, {&x, &y, &dy, &dx, &dresidual});
  args.mask = !params.relu ? MaskFrom::nothing : y.defined ? MaskFrom::output : MaskFrom::input;
  args.x = x.data;
  args.y = data_of(y);
  args.dy = dy.data;
  args.channels = {floats(gamma), floats(beta), floats(mean), floats(rstd)};
  args.dx = dx.defined ? dx.data : nullptr;
  args.dresidual = dresidual.defined ? dresidual.data : nullptr;
  args.dgamma = floats(dgamma);
  args.dbeta = floats(dbeta);
  // dy' is dy itself where nothing is masked: in place there is nothing to write.
  if (args.mask == MaskFrom::nothing && args.dresidual == args.dy) args.dresidual = nullptr;

  const bool rows = args.extent.is_rows();
  const bool corrects = params.training && dx.defined;
  const bool sums = corrects || dgamma.defined || dbeta.defined;
  if (sums) {
    if (rows && corrects && small_backward(args)) return;
    args.partials = partials_of(kOp, x, workspace);
    if (corrects) {
      const int64_t floats_before =
          rules::cuda_batch_norm_workspace_bytes(x) / static_cast<int64_t>(sizeof(float)) -
          2 * args.extent.channels;
      args.means = workspace.as<float>() + floats_before;
    }
    rows ? rows_backward_sums(args) : planes_backward_sums(args);
    // The residual's gradient is written, and is the masked one.
    if (args.dresidual != nullptr) {
      args.dy = args.dresidual;
      args.mask = MaskFrom::nothing;
      args.dresidual = nullptr;
    }
  }
  if (args.dx == nullptr && args.dresidual == nullptr) return;
  rows ? rows_backward_apply(args) : planes_backward_apply(args);
}

}  // namespace

void register_cuda_batch_norm_kernels() {
  slots::batch_norm_train.set(DeviceType::cuda, &train);
  slots::batch_norm_apply.set(DeviceType::cuda, &apply);
  slots::batch_norm_rstd.set(DeviceType::cuda, &rstd_of_variance);
  slots::batch_norm_backward.set(DeviceType::cuda, &backward);
}

}  // namespace headroom
