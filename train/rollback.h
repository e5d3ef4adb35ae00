// Taking back a window of micro-batches that could not be finished, so that it can be tried again
// from where it began.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/tensor/generator.h"
#include "nn/module.h"
#include "train/meters.h"

namespace headroom {

// What forward passes move before an optimizer step: a module's buffers (running averages), its
// counters, the default generator, the loss meter. Weights, optimizer and loss scaler need no copy:
// only the optimizer's step changes them, and it is whole or nothing.
class Rollback {
 public:
  Rollback() = default;  // keeps nothing
  // Makes room for a copy of the module's buffers, on their device and tagged as they are. Borrows
  // both. Throws OutOfMemory.
  Rollback(Module& module, LossMeter& losses);

  // A window begins: its start is what restore() goes back to. Waits for nothing.
  void mark();
  // Puts everything back as mark() found it, and clears the parameters' gradients. Allocates
  // nothing on the module's device. To be called once nothing of the failed window is alive.
  void restore();

 private:
  struct Counter {
    int64_t* value;
    int64_t marked;
  };
  Module* module_ = nullptr;
  LossMeter* losses_ = nullptr;
  std::vector<std::pair<Tensor, Tensor>> buffers_;  // each one, and its copy
  std::vector<Counter> counters_;
  GeneratorState random_;
  LossMeter::Mark loss_mark_;
};

}  // namespace headroom
