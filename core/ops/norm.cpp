// Batch normalisation with its recipe.
#include "core/ops/norm.h"

#include "core/autograd/checkpoint.h"
#include "core/ops/elementwise.h"
#include "core/ops/op_helpers.h"
#include "core/ops/scratch.h"

namespace headroom {
namespace {

DType statistics_dtype(const Tensor& x) {
  return x.dtype() == DType::f64 ? DType::f64 : DType::f32;
}

// xhat = (x - mean) * rstd;  y = relu?(gamma * xhat + beta + residual).
// With dy' = dy * [y > 0] (dy without relu):
//   dgamma = sum dy' * xhat,  dbeta = sum dy',  dresidual = dy',
//   dx = gamma * rstd * (dy' - mean(dy') - xhat * mean(dy' * xhat))     in training
//   dx = gamma * rstd * dy'                                             with running statistics
// Kept: x, the statistics, and y only where a residual hides the sign that ReLU needs.
struct BatchNorm final : Node, Recipe {
  BatchNormState state;
  BatchNormParams params;
  SavedTensor x, y, gamma, beta, mean, rstd;
  bool has_residual = false;
  MemoryFormat format = MemoryFormat::contiguous;

  BatchNorm(const BatchNormState& state, const BatchNormParams& params)
      : state(state), params(params) {}
  const char* name() const override { return "batch_norm"; }
  Recipe* as_recipe() override { return x && !has_residual ? this : nullptr; }

  Tensor forward(const Tensor& in_x, const Tensor& residual_in, const Tensor& in_gamma,
                 const Tensor& in_beta) {
    const Tensor dense = detail::dense_in(in_x, in_x.format());
    format = dense.format();
    has_residual = residual_in.defined();
    const Tensor residual = has_residual ? detail::dense_in(residual_in, format) : Tensor();
    const TensorOptions per_channel{statistics_dtype(dense), dense.device()};
    Tensor out = empty_like(dense);
    Tensor rstd_now = empty({dense.size(1)}, per_channel);
    Tensor mean_now;
    if (params.training) {
      mean_now = empty({dense.size(1)}, per_channel);
      const Tensor workspace =
          detail::scratch(dense.device(), batch_norm_workspace_bytes(dense.device(), dense));
      slots::batch_norm_train(dense, residual, in_gamma, in_beta, params, workspace, out, mean_now,
                              rstd_now, state.running_mean, state.running_var);
      if (state.running_mean.defined()) state.running_mean.storage()->bump_version();
      if (state.running_var.defined()) state.running_var.storage()->bump_version();
    } else {
      slots::batch_norm_rstd(state.running_var, params.eps, rstd_now);
      mean_now = state.running_mean;
      slots::batch_norm_apply(dense, residual, in_gamma, in_beta, mean_now, rstd_now, params, out);
    }
    state = {};
    if (wants_any()) {
      x = save(dense);
      mean = save(mean_now);
      rstd = save(rstd_now);
      gamma = save(in_gamma);
      beta = save(in_beta);
      if (params.relu && has_residual) y = save(out);
    }
    return out;
  }

  Tensor recompute() override {
    const OpScope op("batch_norm");
    const Tensor in = x.get();
    Tensor out = empty_like(in);
    slots::batch_norm_apply(in, View{}, optional(gamma), optional(beta), mean.get(), rstd.get(),
                            params, out);
    return out;
  }

  Grads backward(Tensor dy) override {
    Tensor gradient = detail::dense_in(dy, format);
    dy = {};
    Tensor in = x.take();
    const Tensor scale = optional(gamma);
    const Tensor workspace =
        detail::scratch(in.device(), batch_norm_workspace_bytes(in.device(), in));
    Tensor dgamma, dbeta, dresidual, dx;
    if (wants(2)) dgamma = empty_like(scale);
    if (wants(3)) dbeta = empty_like(optional(beta));
    // dresidual and dx go over what is dead once they are written: dy, and x if only this node kept
    // it.
    const bool dy_is_free = gradient.is_unique();
    if (has_residual && wants(1)) {
      dresidual = !params.relu || dy_is_free ? gradient : empty_like(gradient);
    }
    if (wants(0)) {
      const bool dy_is_taken = dresidual.defined() && dresidual.impl() == gradient.impl();
      if (dy_is_free && !dy_is_taken) {
        dx = gradient;
      } else if (in.is_unique() && in.dtype() == gradient.dtype()) {
        dx = in;
      } else {
        dx = empty_like(gradient);
      }
    }
    // Without ReLU the residual's gradient is dy itself and needs no writing.
    const View write_residual = params.relu && dresidual.defined() ? dresidual.view() : View{};
    slots::batch_norm_backward(in, y ? y.take().view() : View{}, gradient, scale, optional(beta),
                               mean.get(), rstd.get(), params, workspace, dx, write_residual,
                               dgamma, dbeta);
    return {dx, dresidual, dgamma, dbeta};
  }

 private:
  static Tensor optional(const SavedTensor& saved) { return saved ? saved.get() : Tensor(); }
};

void check_channel_vector(const char* what, const Tensor& t, const Tensor& x) {
  if (!t.defined()) return;
  CHECK_ARG(t.rank() == 1 && t.size(0) == x.size(1) && t.dtype() == statistics_dtype(x) &&
                t.device() == x.device() && t.is_dense(),
            "batch_norm: ", what, " must be ", name_of(statistics_dtype(x)), "[", x.size(1),
            "] on ", x.device(), " but is ", t.describe(), " on ", t.device(), " (x ", x.describe(),
            ")");
}

}  // namespace

Tensor batch_norm(const Tensor& x, const BatchNormState& state, const BatchNormOptions& options,
                  const Tensor& residual) {
  const bool training = detail::mode_of_first_run(options.training);
  detail::check_floating("batch_norm", {&x});
  CHECK_ARG(x.rank() == 4 || x.rank() == 2, "batch_norm: needs x [n,c,h,w] or [n,c] but got ",
            x.describe());
  check_channel_vector("gamma", state.gamma, x);
  check_channel_vector("beta", state.beta, x);
  check_channel_vector("running_mean", state.running_mean, x);
  check_channel_vector("running_var", state.running_var, x);
  CHECK_ARG(!residual.defined() || (residual.shape() == x.shape() && is_floating(residual.dtype())),
            "batch_norm: residual ", describe(residual), " does not match x ", x.describe());
  CHECK_ARG(options.eps >= 0, "batch_norm: eps must not be negative, got ", options.eps);
  CHECK_ARG(training || (state.running_mean.defined() && state.running_var.defined()),
            "batch_norm: evaluation needs running averages");
  const int64_t values = x.size(1) > 0 ? x.numel() / x.size(1) : 0;
  CHECK_ARG(!training || values != 1,
            "batch_norm: training needs more than one value per channel but got ", x.describe());
  if (residual.defined() && residual.dtype() != x.dtype()) {
    // As the separate ops would: the sum is in the wider of the two.
    BatchNormOptions alone = options;
    alone.relu = false;
    Tensor y = add(batch_norm(x, state, alone, {}), residual);
    return options.relu ? relu(y) : y;
  }
  BatchNormState used = state;
  if (in_recomputation() && training) {
    used.running_mean = {};
    used.running_var = {};
  }
  const BatchNormParams params{options.eps, options.momentum, options.relu, training};
  return apply(BatchNorm{used, params}, x, residual, state.gamma, state.beta);
}

}  // namespace headroom
