// Dynamic loss scaling (Micikevicius et al. 2018): the loss is multiplied by a scale so that small
// gradients survive half precision; steps whose gradients overflow are skipped and halve it.
#pragma once

#include <vector>

#include "core/ops/params.h"
#include "core/tensor/tensor.h"

namespace headroom {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // clean steps in a row before the scale grows
};

// The state lives on the device, the scale in f32 also where losses are f64, and is read and
// changed by the optimizer's kernels: nothing here waits for the device except the functions that
// say so. The scale stays within [2^-24, 2^40], so it is never 0 or infinite: after an endless run
// of overflows it rests at the floor.
class GradScaler {
 public:
  // Throws InvalidArgument for a scale outside the bounds, a growth factor not above 1, a back-off
  // factor outside (0, 1), or an interval below 1.
  GradScaler(const GradScalerOptions& options, Device device);

  // loss * scale, in the graph; of the wider dtype of loss and f32.
  Tensor scale(const Tensor& loss) const;
  // factor * scale as a device scalar f32 []: the seed for backward(loss, seed), which spares the
  // multiplication of the loss.
  Tensor seed(double factor = 1) const;

  const Tensor& scale_tensor() const { return scale_; }             // f32 []
  const Tensor& growth_tracker_tensor() const { return tracker_; }  // i64 []
  ScalerParams params() const { return params_; }

  // These wait for the device.
  double current_scale() const;
  int64_t growth_tracker() const;  // clean steps in a row since the scale last changed

  // Sets both, as a resumed run does. Throws InvalidArgument, before it writes, for a scale outside
  // the bounds (NaN included) or a growth tracker that is no count.
  void set_state(double scale, int64_t growth_tracker);

  // One decision for all optimizers that stepped with update_scale = false since the last: backs
  // off if any of them found inf or NaN. Waits for nothing. Throws InvalidArgument if none did.
  void update();
  // Feeds one step's verdict without an optimizer: as update() after a step whose found-inf was
  // this.
  void update(bool found_inf);

  // For Optimizer::step(): makes room for the verdicts of several optimizers, and takes one in (f32
  // [], not 0 if inf or NaN was found).
  void prepare_shared_update();
  void add_found_inf(const Tensor& found_inf);

 private:
  Tensor found_inf() const;

  ScalerParams params_;
  Tensor scale_, tracker_;
  Tensor control_, applied_;  // of updates that no optimizer's step makes; undefined until needed
  bool pending_ = false;
};

}  // namespace headroom
