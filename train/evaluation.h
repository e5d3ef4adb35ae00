// Measuring a model on a data set.
#pragma once

#include <functional>
#include <optional>

#include "nn/module.h"
#include "train/data/dataset.h"
#include "train/input.h"

namespace headroom {

struct Evaluation {
  double loss = 0;      // mean cross entropy per sample
  double accuracy = 0;  // fraction of samples whose largest logit is their label's
};

// Runs the whole set once, in order, in evaluation mode and without a tape; the modules get back
// the modes they had. `forward` maps images to logits [n, classes]. Nothing if `stop` said so
// between two batches. Waits for the device at the end. Throws OutOfMemory, after which it may be
// called again: it changes nothing.
std::optional<Evaluation> evaluate(Module& model, const Dataset& data, const InputOptions& input,
                                   const std::function<Tensor(const Tensor&)>& forward,
                                   const std::function<bool()>& stop);

}  // namespace headroom
