// What tests of optimizers share: leaves, gradients set by hand, options of the usual kind.
#pragma once

#include <vector>

#include "optim/optimizer.h"

namespace headroom::testing_optim {

using Floats = std::vector<float>;

inline Tensor leaf(const Floats& values, DType dtype = DType::f32) {
  Tensor w = from_vector(values, {static_cast<int64_t>(values.size())}, {dtype});
  w.set_requires_grad(true);
  return w;
}

inline void set_gradient(Tensor& w, const Floats& values, DType dtype = DType::f32) {
  w.set_grad(from_vector(values, w.shape(), {dtype}));
}

inline void step_with(Optimizer& optimizer, Tensor& w, const Floats& gradient,
                      const StepOptions& options = {}) {
  optimizer.zero_grad();
  set_gradient(w, gradient);
  optimizer.step(options);
}

inline SgdOptions sgd(double lr, double momentum = 0) {
  SgdOptions out;
  out.lr = lr;
  out.momentum = momentum;
  return out;
}

inline AdamOptions adam(double lr, bool decoupled = false) {
  AdamOptions out;
  out.lr = lr;
  out.decoupled = decoupled;
  return out;
}

}  // namespace headroom::testing_optim
