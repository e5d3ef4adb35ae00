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

struct EvaluationOptions {
  InputOptions input;
  // Leaves NoGrad out: each batch's tape is made, and let go unused with the batch. The values stay
  // the same to the bit.
  bool records_tape = false;
};

// Runs the whole set once, in order, in evaluation mode; the modules get back the modes they had.
// `forward` maps images to logits [n, classes]. Nothing if `stop` said so between two batches.
// Waits for the device at the end. Throws OutOfMemory, after which it may be called again: it
// changes nothing.
std::optional<Evaluation> evaluate(Module& model, const Dataset& data,
                                   const EvaluationOptions& options,
                                   const std::function<Tensor(const Tensor&)>& forward,
                                   const std::function<bool()>& stop);

}  // namespace headroom
