// The engine: reverse program order through one ordered map of pending gradients.
#include "core/autograd/engine.h"

#include <algorithm>
#include <map>
#include <vector>

#include "core/autograd/offload.h"
#include "core/ops/contract.h"

namespace headroom {
namespace {

class Walk;
thread_local Walk* running_walk = nullptr;

struct Pending {
  std::shared_ptr<Node> node;
  Tensor grad;
};

DType wider(DType a, DType b) {
  if (a == b) return a;
  return a == DType::f64 || b == DType::f64 ? DType::f64 : DType::f32;
}

bool can_receive(const Tensor& sum, const Tensor& other) {
  return sum.is_unique() && sum.is_dense() && sum.dtype() == wider(sum.dtype(), other.dtype());
}

// a + b, in the buffer of one of them where only the engine holds it.
Tensor accumulate(Tensor a, Tensor b) {
  const OpScope op("accumulate");
  if (!can_receive(a, b) && can_receive(b, a)) std::swap(a, b);
  Tensor out = can_receive(a, b) ? a : empty_like(a, wider(a.dtype(), b.dtype()));
  slots::binary(BinaryOp::add, a, b, out);
  return out;
}

class RetainScope {
 public:
  explicit RetainScope(bool retain) : previous_(detail::graph_is_retained()) {
    detail::graph_is_retained() = retain;
  }
  ~RetainScope() { detail::graph_is_retained() = previous_; }
  RetainScope(const RetainScope&) = delete;
  RetainScope& operator=(const RetainScope&) = delete;

 private:
  bool previous_;
};

// One walk over the tape. Edges always lead to earlier nodes, so taking the latest pending node
// first means that all of its consumers have run.
class Walk {
 public:
  Walk(uint64_t first, bool retain_graph)
      : first_(first), retain_graph_(retain_graph), outer_(running_walk) {
    running_walk = this;
  }
  ~Walk() {
    running_walk = outer_;
    if (!outer_) detail::end_prefetch();
  }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  void run(const Edge& root, Tensor gradient) {
    const NoGrad no_grad;
    const RetainScope retain(retain_graph_);
    const PhaseScope phase(Phase::backward);
    deliver(root, std::move(gradient));
    while (!pending_.empty()) {
      auto last = std::prev(pending_.end());
      const std::shared_ptr<Node> node = std::move(last->second.node);
      Tensor grad = std::move(last->second.grad);
      pending_.erase(last);
      const uint64_t sequence = node->sequence();
      run_node(*node, std::move(grad));
      complete_leaves(sequence);
    }
    complete_leaves(0);
  }

 private:
  // Leaves that wait for their gradient are told by the outermost walk: in an inner one, nodes of
  // the graph around it may still add to them.
  Walk& outermost() { return outer_ ? outer_->outermost() : *this; }

  void complete_leaves(uint64_t sequence) {
    if (outer_ || waiting_.empty()) return;
    const auto done = std::partition(waiting_.begin(), waiting_.end(),
                                     [sequence](const std::shared_ptr<Node>& leaf) {
                                       return !leaf->as_leaf()->is_complete_at(sequence);
                                     });
    const std::vector<std::shared_ptr<Node>> complete(done, waiting_.end());
    waiting_.erase(done, waiting_.end());
    for (const std::shared_ptr<Node>& leaf : complete) leaf->as_leaf()->complete();
  }

  void deliver(const Edge& edge, Tensor grad) {
    if (LeafNode* leaf = edge->as_leaf()) {
      leaf->backward(std::move(grad));
      std::vector<std::shared_ptr<Node>>& waiting = outermost().waiting_;
      if (leaf->has_completion() &&
          std::find(waiting.begin(), waiting.end(), edge) == waiting.end()) {
        waiting.push_back(edge);
      }
      return;
    }
    if (edge->sequence() < first_ && outer_) {
      outer_->deliver(edge, std::move(grad));
      return;
    }
    auto [entry, added] = pending_.try_emplace(edge->sequence());
    if (added) {
      entry->second = {edge, std::move(grad)};
    } else {
      entry->second.grad = accumulate(std::move(entry->second.grad), std::move(grad));
    }
  }

  void run_node(Node& node, Tensor grad) {
    if (node.released()) {
      throw Error(detail::concat(node.name(),
                                 ": backward a second time through a graph that the first pass "
                                 "released; keep it with retain_graph"));
    }
    CHECK(grad.shape() == node.output_shape(), node.name(), ": gradient of shape ", grad.shape(),
          " for an output of shape ", node.output_shape());
    const PathScope path(node.path());
    const OpScope op(node.name());
    Grads grads = node.backward(std::move(grad));
    const std::vector<Edge> edges = node.edges();
    CHECK(grads.size() == edges.size(), node.name(), ": ", grads.size(), " gradients for ",
          edges.size(), " inputs");
    if (retain_graph_) {
      node.park_saved();
    } else {
      node.release_saved();
    }
    for (size_t i = 0; i < edges.size(); ++i) {
      if (!edges[i] || !grads[i].defined()) continue;
      deliver(edges[i], std::move(grads[i]));
    }
  }

  uint64_t first_;
  bool retain_graph_;
  Walk* outer_;
  std::map<uint64_t, Pending> pending_;
  std::vector<std::shared_ptr<Node>> waiting_;  // leaves, of the outermost walk
};

Tensor seed_for(const Tensor& output, const Tensor& seed) {
  if (!seed.defined()) {
    CHECK_ARG(output.numel() == 1,
              "backward: an output of more than one element needs a seed gradient, got ",
              output.describe());
    return ones(output.shape(), {output.dtype(), output.device(), output.format()});
  }
  CHECK_ARG(seed.device() == output.device(), "backward: the seed lies on ", seed.device(),
            " and the output on ", output.device());
  CHECK_ARG(is_floating(seed.dtype()) && (seed.shape() == output.shape() || seed.numel() == 1),
            "backward: seed ", seed.describe(), " does not fit output ", output.describe());
  const Tensor typed = detail::converted(seed, output.dtype());
  if (seed.shape() == output.shape()) return typed.detach();
  return detail::alias(typed, typed.storage_offset(), output.shape(),
                       Strides::filled(output.rank(), 0), output.format());
}

}  // namespace

void backward(const Tensor& output, const Tensor& seed, const BackwardOptions& options) {
  CHECK_ARG(output.defined(), "backward: the output is undefined");
  const Edge root = edge_of(output);
  CHECK_ARG(root != nullptr, "backward: the output ", output.describe(),
            " is not part of a graph: no input required a gradient, or it was made under no_grad");
  detail::run_backward(root, seed_for(output, seed), options);
}

void detail::run_backward(const Edge& root, Tensor gradient, const BackwardOptions& options) {
  Walk(0, options.retain_graph).run(root, std::move(gradient));
}

void detail::run_inner_backward(const Edge& root, Tensor gradient, uint64_t first) {
  Walk(first, false).run(root, std::move(gradient));
}

}  // namespace headroom
