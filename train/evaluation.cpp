// One pass over a data set.
#include "train/evaluation.h"

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "train/meters.h"

namespace headroom {

std::optional<Evaluation> evaluate(Module& model, const Dataset& data,
                                   const EvaluationOptions& options,
                                   const std::function<Tensor(const Tensor&)>& forward,
                                   const std::function<bool()>& stop) {
  const EvalScope modes(model);
  std::optional<NoGrad> no_grad;
  if (!options.records_tape) no_grad.emplace();
  const PhaseScope phase(Phase::evaluation);
  SamplerOptions order;
  order.batch = options.input.max_batch;
  order.shuffle = false;
  Sampler in_order(data.size(), order);
  const int64_t batches = in_order.batches_per_epoch();
  DeviceInput input(data, batch_source(std::move(in_order), batches), options.input);
  LossMeter meter;
  meter.open(options.input.device);
  Tensor correct = zeros({}, {DType::i64, options.input.device});
  CrossEntropyOptions summed;
  summed.reduction = Reduction::sum;
  while (auto batch = input.next()) {
    if (stop()) return std::nullopt;
    const Tensor logits = forward(batch->images);
    meter.add(cross_entropy(logits, batch->labels, summed), batch->count, true);
    count_correct(logits, batch->labels, correct);
  }
  return Evaluation{meter.mean(), correct.item() / static_cast<double>(data.size())};
}

}  // namespace headroom
