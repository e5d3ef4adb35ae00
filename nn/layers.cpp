// Layers.
#include "nn/layers.h"

#include "core/autograd/checkpoint.h"
#include "nn/init.h"

namespace headroom {

Linear::Linear(const Options& options, const TensorOptions& tensor) {
  CHECK_ARG(options.in >= 1 && options.out >= 1, "Linear: sizes must be at least 1, got in ",
            options.in, ", out ", options.out);
  weight_ = register_parameter("weight", empty({options.out, options.in}, tensor));
  if (options.bias) bias_ = register_parameter("bias", empty({options.out}, tensor));
  default_init(weight_, bias_);
}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight_, bias_); }

Conv2d::Conv2d(const Options& options, const TensorOptions& tensor) : conv_(options.conv) {
  const int64_t groups = conv_.groups;
  CHECK_ARG(options.in >= 1 && options.out >= 1 && options.kernel[0] >= 1 && options.kernel[1] >= 1,
            "Conv2d: sizes must be at least 1, got in ", options.in, ", out ", options.out,
            ", kernel ", options.kernel[0], "x", options.kernel[1]);
  CHECK_ARG(groups >= 1 && options.in % groups == 0 && options.out % groups == 0,
            "Conv2d: ", groups, " groups do not divide ", options.in, " and ", options.out,
            " channels");
  weight_ = register_parameter(
      "weight",
      empty({options.out, options.in / groups, options.kernel[0], options.kernel[1]}, tensor));
  if (options.bias) bias_ = register_parameter("bias", empty({options.out}, tensor));
  default_init(weight_, bias_);
}

Tensor Conv2d::forward(const Tensor& x) { return conv2d(x, weight_, bias_, conv_); }

BatchNorm2d::BatchNorm2d(const Options& options, const TensorOptions& tensor) : options_(options) {
  CHECK_ARG(options.channels >= 1, "BatchNorm2d: channels must be at least 1, got ",
            options.channels);
  TensorOptions wide = tensor;
  wide.dtype = tensor.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Shape shape{options.channels};
  state_.gamma = register_parameter("weight", ones(shape, wide));
  state_.beta = register_parameter("bias", zeros(shape, wide));
  state_.running_mean = register_buffer("running_mean", zeros(shape, wide));
  state_.running_var = register_buffer("running_var", ones(shape, wide));
  register_counter("num_batches_tracked", &batches_tracked_);
}

Tensor BatchNorm2d::normalize(const Tensor& x, const Tensor& residual) {
  BatchNormOptions options;
  options.eps = options_.eps;
  options.momentum = options_.momentum;
  options.relu = options_.relu;
  options.training = training();
  Tensor y = batch_norm(x, state_, options, residual);
  if (training() && !in_recomputation()) ++batches_tracked_;
  return y;
}

Tensor BatchNorm2d::forward(const Tensor& x) { return normalize(x, {}); }

Tensor BatchNorm2d::with_residual(const Tensor& x, const Tensor& residual) {
  const PathScope path{std::string_view(name_in_parent())};
  return normalize(x, residual);
}

Activation::Activation(ActivationKind kind, bool in_place, double slope)
    : kind_(kind), in_place_(in_place), slope_(slope) {
  CHECK_ARG(!(in_place && kind == ActivationKind::silu),
            "Activation: silu cannot be in place: its derivative needs the input it overwrites");
}

Tensor Activation::forward(const Tensor& x) {
  Tensor y = x;
  switch (kind_) {
    case ActivationKind::relu:
      return in_place_ ? relu_(y) : relu(x);
    case ActivationKind::leaky_relu:
      return in_place_ ? leaky_relu_(y, slope_) : leaky_relu(x, slope_);
    case ActivationKind::sigmoid:
      return in_place_ ? sigmoid_(y) : sigmoid(x);
    case ActivationKind::tanh:
      return in_place_ ? tanh_(y) : tanh(x);
    case ActivationKind::silu:
      return silu(x);
  }
  return y;
}

Dropout::Dropout(double p) : p_(p) {
  CHECK_ARG(p >= 0 && p <= 1, "Dropout: p must be in [0, 1], got ", p);
}

Sequential::Sequential(std::vector<std::shared_ptr<Module>> modules) {
  for (auto& module : modules) append(std::move(module));
}

void Sequential::append(std::shared_ptr<Module> module) {
  const std::string name = std::to_string(modules_.size());
  append(name, std::move(module));
}

void Sequential::append(const std::string& name, std::shared_ptr<Module> module) {
  CHECK_ARG(module != nullptr, "Sequential: module '", name, "' is null");
  modules_.push_back(register_module(name, std::move(module)));
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor y = x;
  for (const auto& module : modules_) y = (*module)(y);
  return y;
}

}  // namespace headroom
