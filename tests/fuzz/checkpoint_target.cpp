// The target that restores a run from a state file: everything that the trainer does with one, on
// the smallest run that has state of every kind.
#include <array>

#include "core/ops/ops.h"
#include "nn/layers.h"
#include "optim/optimizer.h"
#include "tests/fuzz/input_file.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/safetensors.h"

namespace headroom::fuzz {

bool checkpoint(Input input) {
  const std::string bytes(input.begin(), input.end());
  Checkpoint state;
  if (!is_accepted([&] { state = checkpoint_from(parse_safetensors(bytes, "fuzz"), "fuzz"); })) {
    return false;
  }
  require(state.trainer.step >= 0, "checkpoint: a negative step");

  BatchNorm2d model({.channels = 2});  // parameters, buffers and a counter
  if (is_accepted([&] { model.load_state_dict(state.model); })) {
    const Tensor x = zeros({1, 2, 1, 2});
    model(x);
    require(model.batches_tracked() > 0, "checkpoint: a counter below zero");
  }

  Tensor weight = zeros({2});
  weight.set_requires_grad(true);
  Sgd sgd({{.parameters = {weight}}}, {.momentum = 0.5});
  sgd.set_schedule({0.5f, 0.25f});
  if (is_accepted([&] { sgd.load_state_dict(state.optimizer); })) {
    weight.set_grad(zeros({2}));
    sgd.step();
    require(sgd.last_lr() == 0.5 || sgd.last_lr() == 0.25, "checkpoint: a rate of no step");
  }

  GradScaler scaler({}, Device::cpu());
  if (is_accepted([&] { scaler.set_state(state.trainer.scale, state.trainer.growth_tracker); })) {
    scaler.update(false);
    require(scaler.current_scale() > 0, "checkpoint: a scale of zero or less");
  }

  constexpr int64_t kImages = 7;
  Sampler sampler(kImages, {.batch = 2, .accum = 2});
  if (is_accepted([&] { sampler.restore(state.trainer.sampler); })) {
    for (const MicroBatch& batch : sampler.next_window()) {
      for (const int64_t index : batch.indices) {
        require(index >= 0 && index < kImages, "checkpoint: an image outside the set");
      }
    }
  }
  return true;
}

}  // namespace headroom::fuzz
