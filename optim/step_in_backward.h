// The optimizer's step taken inside backward, one parameter at a time: each gradient is used and
// freed as soon as it is complete, so no two of them need be alive (Lv et al. 2023, "Full Parameter
// Fine-tuning for Large Language Models with Limited Resources", LOMO, for plain SGD; here for
// every optimizer). Weights and state become the bits that step() would have made.
#pragma once

#include <functional>
#include <vector>

#include "optim/optimizer.h"

namespace headroom {

//   const StepInBackward step(optimizer);      // before the forward pass of a window's last batch
//   backward(cross_entropy(model(x), labels));
//   step.finish();
//
// Nothing that needs all gradients at once goes with it: no loss scaler, no clipping. A failure in
// the middle of backward leaves some parameters stepped and others not.
class StepInBackward {
 public:
  // Called with each parameter whose gradient is complete, before that is used and freed.
  using GradientHook = std::function<void(const Tensor& parameter)>;

  // Borrows the optimizer, which must not be used otherwise until finish(). One at a time per
  // optimizer. Throws InvalidArgument if no learning rate was set.
  explicit StepInBackward(Optimizer& optimizer, GradientHook on_gradient = {});
  ~StepInBackward();  // parameters wait for nothing any more
  StepInBackward(const StepInBackward&) = delete;
  StepInBackward& operator=(const StepInBackward&) = delete;

  // Steps what still has a gradient, and counts the step. Gradients are undefined afterwards.
  void finish();

 private:
  void step_one(size_t index);

  Optimizer& optimizer_;
  GradientHook on_gradient_;
  int joining_ = -1;                // the cohort of parameters whose first gradient this is
  std::vector<int> prepared_ = {};  // cohorts
};

}  // namespace headroom
