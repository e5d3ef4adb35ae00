// Checkpoint: one node that stands for a whole function.
#include "core/autograd/checkpoint.h"

#include "core/autograd/autocast.h"
#include "core/autograd/engine.h"
#include "core/tensor/generator.h"

namespace headroom {
namespace {

thread_local int recomputation_depth = 0;

// Sets the random state for the second forward and puts the present one back.
class ReplayScope {
 public:
  explicit ReplayScope(const GeneratorState& state) : previous_(default_generator().state()) {
    default_generator().set_state(state);
    ++recomputation_depth;
  }
  ~ReplayScope() {
    default_generator().set_state(previous_);
    --recomputation_depth;
  }
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  GeneratorState previous_;
};

struct Checkpoint final : Node {
  std::function<Tensor(const Tensor&)> fn;
  SavedTensor x;
  GeneratorState random;
  AutocastState autocast;

  const char* name() const override { return "checkpoint"; }

  // Called before the function runs, so that a write to its own input is noticed.
  void keep_input(const Tensor& input) {
    record_always();
    x = save(input);
  }

  Grads backward(Tensor dy) override {
    const Tensor input = x.take().detach();
    const bool wanted = wants(0);
    if (wanted) {
      // The gradient of an activation stays in the activation's own dtype.
      input.impl()->requires_grad = true;
      input.impl()->leaf = std::make_shared<LeafNode>(input.dtype(), input.shape(), input.format());
    }
    Tensor y;
    {
      const EnableGrad enable;
      const ReplayScope replay(random);
      const Autocast region(autocast.dtype, autocast.enabled);
      const PhaseScope phase(Phase::forward);
      y = fn(input);
    }
    CHECK_ARG(edge_of(y) != nullptr && y.shape() == dy.shape(),
              "checkpoint: the second run of the function gave ", y.describe(),
              " where the first gave shape ", dy.shape());
    headroom::backward(y, dy);
    return {wanted ? input.grad() : Tensor()};
  }
};

}  // namespace

bool in_recomputation() { return recomputation_depth > 0; }

Tensor checkpoint(const std::function<Tensor(const Tensor&)>& fn, const Tensor& x) {
  CHECK_ARG(x.defined(), "checkpoint: the input is undefined");
  if (!grad_enabled()) return fn(x);
  auto node = std::make_shared<Checkpoint>();
  node->connect(detail::edges_of({&x}));
  node->random = default_generator().state();
  node->autocast = autocast_state();
  node->fn = fn;
  node->keep_input(x);
  Tensor out;
  bool& seen = detail::gradient_input_seen();
  const bool seen_before = seen;
  seen = false;
  {
    const NoGrad no_grad;
    out = fn(x);
  }
  const bool wanted = seen || edge_of(x) != nullptr;
  seen = seen_before || seen;
  CHECK_ARG(out.defined(), "checkpoint: the function returned an undefined tensor");
  if (!wanted) return out;
  // A function that hands its input back gets a handle of its own, which can carry the node.
  if (out.impl() == x.impl() || out.grad_fn()) out = out.detach();
  return detail::finish(node, out);
}

}  // namespace headroom
