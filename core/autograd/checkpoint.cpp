// Checkpoint: one node that stands for a whole function.
#include "core/autograd/checkpoint.h"

#include "core/autograd/autocast.h"
#include "core/autograd/engine.h"
#include "core/tensor/generator.h"

namespace headroom {
namespace {

// Modes of the ops of a first run, in order of their calls.
using Modes = std::vector<bool>;

thread_local int recomputation_depth = 0;
thread_local Modes* recorded_modes = nullptr;
thread_local const Modes* replayed_modes = nullptr;
thread_local size_t replayed_count = 0;

class RecordScope {
 public:
  explicit RecordScope(Modes& modes) : previous_(recorded_modes) { recorded_modes = &modes; }
  ~RecordScope() { recorded_modes = previous_; }
  RecordScope(const RecordScope&) = delete;
  RecordScope& operator=(const RecordScope&) = delete;

 private:
  Modes* previous_;
};

// Sets random state and modes for the second forward and puts the present ones back.
class ReplayScope {
 public:
  ReplayScope(const GeneratorState& state, const Modes& modes)
      : state_(default_generator().state()), modes_(replayed_modes), count_(replayed_count) {
    default_generator().set_state(state);
    replayed_modes = &modes;
    replayed_count = 0;
    ++recomputation_depth;
  }
  ~ReplayScope() {
    default_generator().set_state(state_);
    replayed_modes = modes_;
    replayed_count = count_;
    --recomputation_depth;
  }
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  GeneratorState state_;
  const Modes* modes_;
  size_t count_;
};

struct Checkpoint final : Node {
  std::function<Tensor(const Tensor&)> fn;
  SavedTensor x;
  GeneratorState random;
  AutocastState autocast;
  Modes modes;
  std::vector<detail::GraphInput> others;  // what the first run used besides x

  const char* name() const override { return "checkpoint"; }

  // Called before the function runs, so that a write to its own input is noticed.
  void keep_input(const Tensor& input) {
    record_always();
    x = save(input);
  }

  // The tensor that was written since the first run took it, or nullptr.
  const detail::GraphInput* written_since() const {
    for (const detail::GraphInput& other : others) {
      const std::shared_ptr<Storage> storage = other.storage.lock();
      if (storage && storage->version() != other.version) return &other;
    }
    return nullptr;
  }

  Grads backward(Tensor dy) override {
    std::shared_ptr<LeafNode> leaf;
    const uint64_t first = detail::upcoming_sequence();
    // Only the tape of the second run is kept: its input and output go when their last reader ran.
    const Edge root = run_again(dy.shape(), leaf);
    // It may hold tensors by value, and a kept loss would hold them on.
    if (!detail::graph_is_retained()) fn = nullptr;
    detail::run_inner_backward(root, std::move(dy), first);
    if (!leaf || !leaf->grad.defined()) return {Tensor()};
    // It is on its way through the graph again, not the gradient of a parameter.
    leaf->grad.storage()->set_tag(Tag::temporary);
    return {std::move(leaf->grad)};
  }

 private:
  // Runs the function with its tape on; returns the tape's end, and where the input's gradient will
  // gather if it is wanted.
  Edge run_again(const Shape& output_shape, std::shared_ptr<LeafNode>& leaf) {
    if (const detail::GraphInput* other = written_since()) {
      throw Error(detail::concat(
          "checkpoint: a tensor ", other->dtype, other->shape,
          " that the function uses was written in place since its first run, so a second run "
          "would compute something else"));
    }
    const Tensor input = x.take().detach();
    if (wants(0)) {
      // The gradient of an activation stays in the activation's own dtype.
      leaf = std::make_shared<LeafNode>(input.dtype(), input.shape(), input.format());
      input.impl()->requires_grad = true;
      input.impl()->leaf = leaf;
    }
    const EnableGrad enable;
    const ReplayScope replay(random, modes);
    const Autocast region(autocast.dtype, autocast.enabled);
    const PhaseScope phase(Phase::forward);
    const Tensor y = fn(input);
    Edge root = edge_of(y);
    CHECK_ARG(root != nullptr && y.shape() == output_shape,
              "checkpoint: the second run of the function gave ", describe(y.view()),
              " where the first gave shape ", output_shape);
    return root;
  }
};

}  // namespace

bool in_recomputation() { return recomputation_depth > 0; }

bool detail::mode_of_first_run(bool training) {
  if (replayed_modes && replayed_count < replayed_modes->size()) {
    training = (*replayed_modes)[replayed_count++];
  }
  if (recorded_modes) recorded_modes->push_back(training);
  return training;
}

Tensor checkpoint(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x) {
  CHECK_ARG(x.defined(), "checkpoint: the input is undefined");
  if (!grad_enabled()) return fn(x);
  auto node = std::make_shared<Checkpoint>();
  node->connect(detail::edges_of({&x}));
  node->random = default_generator().state();
  node->autocast = autocast_state();
  node->fn = fn;
  node->keep_input(x);
  const int64_t version = x.storage()->version();
  Tensor out;
  {
    const NoGrad no_grad;
    const detail::GraphInputScope inputs;
    const RecordScope record(node->modes);
    out = fn(x);
    node->others = inputs.inputs();
  }
  CHECK_ARG(out.defined(), "checkpoint: the function returned an undefined tensor");
  if (node->others.empty() && !edge_of(x)) return out;
  // x is kept with its version already, or by a recipe that an in-place write does not touch.
  std::erase_if(node->others,
                [&](const detail::GraphInput& in) { return in.storage.lock() == x.storage(); });
  CHECK_ARG(x.storage()->version() == version, "checkpoint: the function wrote its own input ",
            x.describe(), " in place, so it cannot run again from it; clone the input first");
  const detail::GraphInput* written = node->written_since();
  CHECK_ARG(!written, "checkpoint: the function wrote a tensor ", written->dtype, written->shape,
            " that it uses in place, so it cannot run again from it; clone it first");
  // A handle of its own carries the node: the function may have handed back its input, or a tensor
  // that others hold.
  return detail::finish(node, out.detach());
}

}  // namespace headroom
