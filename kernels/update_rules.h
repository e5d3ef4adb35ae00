// The optimizers' and the loss scaler's arithmetic, each rule once, for host and device. T is the
// type arithmetic is done in: float, or double for f64 parameters. `control` is the f32 tensor
// described by ControlField in core/ops/params.h.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/base/philox.h"
#include "core/ops/params.h"

namespace headroom {

// What one step of SGD needs, read once per launch.
template <class T>
struct SgdRule {
  T lr, grad_scale, momentum, dampening, weight_decay;
  bool nesterov, first;
};

template <class T>
HEADROOM_HOST_DEVICE inline SgdRule<T> sgd_rule(const float* control, const SgdParams& params) {
  SgdRule<T> rule;
  rule.lr = static_cast<T>(control[kLr]) * static_cast<T>(params.lr_factor);
  rule.grad_scale = static_cast<T>(control[kInvScale]) * static_cast<T>(control[kClip]);
  if (params.maximize) rule.grad_scale = -rule.grad_scale;
  rule.momentum = static_cast<T>(params.momentum);
  rule.dampening = static_cast<T>(params.dampening);
  rule.weight_decay = static_cast<T>(params.weight_decay);
  rule.nesterov = params.nesterov;
  rule.first = control[kBias1] == 0.0f;
  return rule;
}

// The parameter after the step; `buffer` (its momentum, nullptr without momentum) is updated.
template <class T>
HEADROOM_HOST_DEVICE inline T sgd_update(const SgdRule<T>& rule, T parameter, T gradient,
                                         T* buffer) {
  const T g = gradient * rule.grad_scale + rule.weight_decay * parameter;
  T update = g;
  if (buffer != nullptr) {
    // The first buffer is the gradient itself, undampened.
    *buffer = rule.first ? g : rule.momentum * *buffer + (T(1) - rule.dampening) * g;
    update = rule.nesterov ? g + rule.momentum * *buffer : *buffer;
  }
  return parameter - rule.lr * update;
}

template <class T>
struct AdamRule {
  T step_size;  // lr / (1 - beta1^t)
  T inv_root;   // 1 / sqrt(1 - beta2^t)
  T shrink;     // 1 - lr * decay when decoupled, else 1
  T l2;         // decay added to the gradient when not decoupled
  T grad_scale, one_minus_beta1, beta2, one_minus_beta2, eps;
};

template <class T>
HEADROOM_HOST_DEVICE inline AdamRule<T> adam_rule(const float* control, const AdamParams& params) {
  AdamRule<T> rule;
  const double lr = static_cast<double>(control[kLr]) * params.lr_factor;
  rule.step_size = static_cast<T>(lr / static_cast<double>(control[kBias1]));
  rule.inv_root = static_cast<T>(1.0 / std::sqrt(static_cast<double>(control[kBias2])));
  rule.shrink = static_cast<T>(params.decoupled ? 1.0 - lr * params.weight_decay : 1.0);
  rule.l2 = static_cast<T>(params.decoupled ? 0.0 : params.weight_decay);
  rule.grad_scale = static_cast<T>(control[kInvScale]) * static_cast<T>(control[kClip]);
  if (params.maximize) rule.grad_scale = -rule.grad_scale;
  rule.one_minus_beta1 = static_cast<T>(1.0 - params.beta1);
  rule.beta2 = static_cast<T>(params.beta2);
  rule.one_minus_beta2 = static_cast<T>(1.0 - params.beta2);
  rule.eps = static_cast<T>(params.eps);
  return rule;
}

// The parameter after the step; both moments are updated. Decoupled decay comes before the step.
// eps is added in T: 1e-8 would be 0 in f16, and a zero gradient 0/0.
template <class T>
HEADROOM_HOST_DEVICE inline T adam_update(const AdamRule<T>& rule, T parameter, T gradient,
                                          T& first_moment, T& second_moment) {
  const T g = gradient * rule.grad_scale + rule.l2 * parameter;
  first_moment += rule.one_minus_beta1 * (g - first_moment);
  second_moment = rule.beta2 * second_moment + rule.one_minus_beta2 * g * g;
  const T denominator = std::sqrt(second_moment) * rule.inv_root + rule.eps;
  return parameter * rule.shrink - rule.step_size * (first_moment / denominator);
}

// Fills control before an update. applied: updates made so far. scale: the loss scale, nullptr for
// none. rates[rate_count] holds the learning rate of each applied step; its last entry stays.
HEADROOM_HOST_DEVICE inline void prepare_control(const float* rates, int64_t rate_count,
                                                 int64_t applied, const float* scale,
                                                 const PrepareParams& params, float* control) {
  control[kLr] = rates[applied < rate_count ? applied : rate_count - 1];
  control[kInvScale] = scale != nullptr ? 1.0f / *scale : 1.0f;
  control[kFoundInf] = 0.0f;
  control[kClip] = 1.0f;
  control[kGradNorm] = 0.0f;
  if (params.adam) {
    // 1 - beta^t as -expm1(t log beta): for beta near 1 the subtraction would lose digits.
    const double t = static_cast<double>(applied + 1);
    control[kBias1] = static_cast<float>(-std::expm1(t * std::log(params.beta1)));
    control[kBias2] = static_cast<float>(-std::expm1(t * std::log(params.beta2)));
  } else {
    control[kBias1] = applied == 0 ? 0.0f : 1.0f;
    control[kBias2] = 1.0f;
  }
}

// The clipping factor of a gradient norm: min(1, max_norm / (norm + 1e-6)). NaN stays NaN.
HEADROOM_HOST_DEVICE inline float clip_factor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return static_cast<float>(factor > 1.0 ? 1.0 : factor);
}

// One decision of the loss scaler: back off after an overflow, grow after growth_interval clean
// steps in a row, and stay in [min_scale, max_scale].
HEADROOM_HOST_DEVICE inline void update_scale(const ScalerParams& params, bool found_inf,
                                              float* scale, int64_t* growth_tracker) {
  double next = *scale;
  if (found_inf) {
    next *= params.backoff_factor;
    *growth_tracker = 0;
  } else if (++*growth_tracker >= params.growth_interval) {
    next *= params.growth_factor;
    *growth_tracker = 0;
  }
  if (next < params.min_scale) next = params.min_scale;
  if (next > params.max_scale) next = params.max_scale;
  *scale = static_cast<float>(next);
}

}  // namespace headroom
