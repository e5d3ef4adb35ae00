// Optimizers: SGD, Adam and AdamW as fused multi-tensor steps that wait for nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/ops/params.h"
#include "core/tensor/tensor.h"
#include "optim/grad_scaler.h"

namespace headroom {

// Parameters that share settings.
struct ParameterGroup {
  std::vector<Tensor> parameters;  // leaves, f32, f64 or half; frozen ones are left alone
  // For every optimizer, AdamW as well (where PyTorch's default is 1e-2). At least 0.
  double weight_decay = 0;
  double lr_factor = 1;  // multiplies the learning rate
};

// Splits parameters as recipes commonly do: weight decay for those of two or more dimensions, none
// for biases and norms.
std::vector<ParameterGroup> decay_groups(const std::vector<Tensor>& parameters,
                                         double weight_decay);

struct StepOptions {
  GradScaler* scaler = nullptr;  // gradients are divided by its scale; overflow skips the step
  double clip_norm = 0;          // > 0: limits the norm of all (unscaled) gradients together
  // Several optimizers that share a scaler step with false, and scaler->update() decides once for
  // all of them: each skips its own step if its own gradients overflowed, any of them halves the
  // scale.
  bool update_scale = true;
};

// A named scalar or tensor of optimizer state.
struct OptimizerState {
  // "0.momentum" for the parameter of index 0 over all groups, "0.cohort" for when it joined, or
  // "applied_steps.0" for the count of the first cohort.
  std::string name;
  Tensor tensor;  // of the parameter's shape, f32 (f64 for f64); counts are i64 scalars
};

class Optimizer {
 public:
  // A parameter given twice counts once, in its first group. One that does not require a gradient
  // may be given and set free later. Throws InvalidArgument for tensors that an op made, that are
  // not floating or that lie on different devices, for no parameters at all, and for a weight decay
  // that is negative or NaN.
  explicit Optimizer(std::vector<ParameterGroup> groups);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Applies the gradients. A parameter without one is left alone, decay, state and its count of
  // steps included; with a scaler that finds inf or NaN the whole step is skipped: weights, state,
  // counters. Running out of memory leaves everything as it was, so the same step may be tried
  // again. Waits for nothing. Throws InvalidArgument for a clip norm below 0 or NaN, and if
  // unscale() was given another scaler.
  void step(const StepOptions& options = {});
  // Gradients become undefined (none is alive between steps).
  void zero_grad();
  // Divides all gradients by the scaler's scale, for code that looks at them before step(); step()
  // then does not divide again. The scaler must be the one that step() is given. In place, but half
  // gradients become f32: divided in f16 they would vanish again. Throws InvalidArgument the second
  // time before a step.
  void unscale(const GradScaler& scaler);

  // One rate for all steps, or a table indexed by applied steps (the last entry stays in force).
  // set_lr throws InvalidArgument for a rate that is negative or not finite, set_schedule for an
  // empty table.
  void set_lr(double lr);
  void set_schedule(const std::vector<float>& rates);
  // Keeps a half copy of every parameter of rank 2 or more, written in the same pass as the update,
  // for autocast to use. Throws InvalidArgument unless dtype is f16 or bf16.
  void keep_half_copies(DType dtype);

  // These wait for the device.
  int64_t applied_steps() const;
  double last_lr() const;
  double last_grad_norm() const;  // as clipping saw it; 0 without clipping
  bool last_step_skipped() const;

  // Makes the state of all parameters that require a gradient now instead of at their first one, so
  // that it lies together. Changes no result. Throws OutOfMemory, having changed nothing.
  void reserve_state();

  // All state by name; tensors share storage with the optimizer. load throws InvalidArgument for
  // missing, unknown or misshapen entries and counts that are no i64 >= 0, before it writes.
  std::vector<OptimizerState> state_dict() const;
  void load_state_dict(const std::vector<OptimizerState>& state);

  const std::vector<ParameterGroup>& groups() const { return groups_; }

 protected:
  // One parameter with its state.
  struct Entry {
    Tensor parameter;
    int group = 0;
    int index = 0;
    int cohort = -1;     // see Cohort; -1 until its first gradient
    bool steps = false;  // in the step that is being made
    std::vector<Tensor> state;
  };
  // Kernel operands of the entries of one group that have a gradient now.
  struct Batch {
    std::vector<View> parameters, gradients, half_copies;
    std::vector<std::vector<View>> state;  // [state slot][entry]
  };
  virtual std::vector<std::string> state_names() const = 0;
  virtual PrepareParams prepare_params() const = 0;
  virtual void update(const Batch& batch, const ParameterGroup& group, const Tensor& control) = 0;

 private:
  // Parameters that took the same steps: Adam's bias correction and SGD's first momentum count
  // these, as if each parameter counted its own. Cohort 0's count is the optimizer's as well, with
  // or without members. A member that misses a step of its cohort founds another.
  struct Cohort {
    Tensor control;  // f32 [kControlFields]
    Tensor applied;  // i64 []
  };

  friend class StepInBackward;
  Cohort make_cohort() const;
  std::vector<Tensor> make_state(const Entry& entry) const;
  std::vector<std::pair<Entry*, int>> split_cohorts(std::vector<Cohort>& cohorts);
  void join_cohorts();
  bool steps_now(int cohort) const;
  void prepare_cohort(int cohort);
  void add_to(Batch& batch, const Entry& entry, const Tensor& gradient) const;
  static void mark_written(Entry& entry);
  std::vector<Tensor> gradients() const;

  std::vector<ParameterGroup> groups_;
  std::vector<Entry> entries_;
  std::vector<Cohort> cohorts_;
  Device device_;
  Tensor rates_;
  const GradScaler* unscaled_by_ = nullptr;
};

struct SgdOptions {
  double lr = 0.1;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  bool maximize = false;
};

// g += decay * w; buf = g at first, then momentum * buf + (1 - dampening) * g; w -= lr * (nesterov
// ? g + momentum * buf : buf): Sutskever et al. 2013 in PyTorch's form. State: "momentum", if there
// is one. Throws InvalidArgument for a negative or infinite rate, a negative momentum, and for
// Nesterov without momentum or with dampening.
class Sgd : public Optimizer {
 public:
  Sgd(std::vector<ParameterGroup> groups, const SgdOptions& options);

 protected:
  std::vector<std::string> state_names() const override;
  PrepareParams prepare_params() const override { return {}; }
  void update(const Batch& batch, const ParameterGroup& group, const Tensor& control) override;

 private:
  SgdOptions options_;
};

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool decoupled = false;  // AdamW: w *= 1 - lr * decay before the step, instead of decay in g
  bool maximize = false;
};

// Kingma & Ba 2015, Loshchilov & Hutter 2019. m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 -
// beta2) * g^2; at a parameter's step t, w -= lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) +
// eps). State: "first_moment", "second_moment", f32 (f64 for f64) also for half parameters. Throws
// InvalidArgument for a negative or infinite rate, betas outside [0, 1) and a negative eps.
class Adam : public Optimizer {
 public:
  Adam(std::vector<ParameterGroup> groups, const AdamOptions& options);

 protected:
  std::vector<std::string> state_names() const override {
    return {"first_moment", "second_moment"};
  }
  PrepareParams prepare_params() const override { return {true, options_.beta1, options_.beta2}; }
  void update(const Batch& batch, const ParameterGroup& group, const Tensor& control) override;

 private:
  AdamOptions options_;
};

// Scales gradients in place so that their common norm is at most max_norm, and returns the norm
// before (waits for the device). Parameters without a gradient do not count; 0 without any. Throws
// InvalidArgument unless max_norm is above 0, and for gradients on different devices.
double clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm);

}  // namespace headroom
