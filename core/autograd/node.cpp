// Nodes, saved tensors, gradient modes.
#include "core/autograd/node.h"

#include <atomic>

#include "core/autograd/autocast.h"
#include "core/autograd/checkpoint.h"
#include "core/autograd/offload.h"
#include "core/ops/contract.h"

namespace headroom {
namespace {

thread_local bool grad_is_enabled = true;
thread_local SavePolicy current_policy = SavePolicy::recompute;
thread_local detail::GraphInputScope* graph_inputs = nullptr;
std::atomic<uint64_t> next_sequence{1};

// Recipes of dying nodes hold the nodes that made their inputs, and those hold recipes again. They
// wait here and die one after another in the outermost destructor, so that destructors do not nest.
void bury_recipes(std::vector<std::shared_ptr<SavedState>>& saved) {
  thread_local std::vector<std::shared_ptr<Recipe>> waiting;
  thread_local bool draining = false;
  for (const auto& state : saved) {
    if (state.use_count() == 1 && state->recipe) waiting.push_back(std::move(state->recipe));
  }
  if (draining) return;
  draining = true;
  while (!waiting.empty()) {
    const std::shared_ptr<Recipe> last = std::move(waiting.back());
    waiting.pop_back();
  }
  draining = false;
}

}  // namespace

SavedState::SavedState() = default;
SavedState::~SavedState() { release(); }

void SavedState::release() {
  if (tensor.defined()) tensor.storage()->end_saved();
  tensor = {};
  recipe.reset();
  offloaded.reset();
  released = true;
}

Tensor SavedTensor::get() const {
  CHECK(state_, "a tensor that was never saved is read");
  if (state_->released) {
    throw Error(detail::concat(state_->op,
                               ": backward a second time through a graph that the first pass "
                               "released; keep it with retain_graph"));
  }
  if (state_->recipe) return state_->recipe->recompute();
  const detail::OffloadedTensor* offloaded = state_->offloaded.get();
  const int64_t version = offloaded ? offloaded->version() : state_->tensor.storage()->version();
  if (version != state_->version) {
    throw Error(detail::concat(state_->op, ": the tensor ",
                               offloaded ? offloaded->describe() : state_->tensor.describe(),
                               " saved for backward was written in place since: it was at version ",
                               state_->version, " and is at version ", version));
  }
  return offloaded ? offloaded->bring_back() : state_->tensor;
}

Tensor SavedTensor::take() const {
  Tensor out = get();
  if (!detail::graph_is_retained()) state_->release();
  return out;
}

Node::~Node() {
  bury_recipes(saved_);
  // A long tape is released iteratively: each node that only this chain holds gives its edges to
  // the list before it dies, so that destructors do not nest.
  std::vector<Edge> pending = std::move(edges_);
  while (!pending.empty()) {
    const Edge node = std::move(pending.back());
    pending.pop_back();
    if (node && node.use_count() == 1) {
      for (Edge& edge : node->edges_) {
        if (edge) pending.push_back(std::move(edge));
      }
      node->edges_.clear();
    }
  }
}

void Node::connect(std::vector<Edge> edges) {
  edges_ = std::move(edges);
  sequence_ = next_sequence.fetch_add(1, std::memory_order_relaxed);
  path_ = memory_context().path;
  for (const Edge& edge : edges_) {
    if (LeafNode* leaf = edge ? edge->as_leaf() : nullptr) leaf->note_use(sequence_);
  }
}

bool Node::wants_any() const {
  if (record_always_) return true;
  for (const Edge& edge : edges_) {
    if (edge) return true;
  }
  return false;
}

void Node::set_output(const Tensor& out) { output_shape_ = out.shape(); }

void Node::release_saved() {
  for (const auto& state : saved_) state->release();
  saved_.clear();
  edges_.clear();
  released_ = true;
}

void Node::park_saved() {
  for (const auto& state : saved_) {
    if (state->offloaded) state->offloaded->leave_device();
  }
}

SavedTensor Node::save(const Tensor& tensor) {
  if (!tensor.defined() || !wants_any()) return {};
  const TensorImpl& impl = *tensor.impl();
  auto state = std::make_shared<SavedState>();
  state->op = name();
  state->version = impl.storage->version();
  if (impl.recipe && impl.recipe_version == impl.storage->version() &&
      save_policy() != SavePolicy::keep) {
    state->recipe = impl.recipe;
  } else if (save_policy() == SavePolicy::offload && !in_recomputation()) {
    state->offloaded = detail::offload(tensor);
  }
  if (!state->recipe && !state->offloaded) {
    state->tensor = tensor.detach();
    tensor.storage()->begin_saved();
  }
  saved_.push_back(state);
  return SavedTensor(std::move(state));
}

LeafNode::LeafNode(DType grad_dtype, const Shape& shape, MemoryFormat format)
    : grad_dtype_(grad_dtype), shape_(shape), format_(format) {}

Grads LeafNode::backward(Tensor dy) {
  const TagScope tag(Tag::gradient);
  const OpScope op("accumulate_grad");
  CHECK(dy.shape() == shape_, "a gradient of shape ", dy.shape(), " for a leaf of shape ", shape_);
  if (grad.defined()) {
    slots::binary(BinaryOp::add, grad, dy, grad);
    grad.storage()->bump_version();
  } else if (dy.is_unique() && dy.dtype() == grad_dtype_ && dy.format() == format_ &&
             dy.is_dense() && dy.nbytes() == dy.storage()->bytes()) {
    // A part of a larger storage would keep all of it.
    dy.storage()->set_tag(Tag::gradient);
    grad = std::move(dy);
  } else {
    grad = empty(shape_, {grad_dtype_, dy.device(), format_});
    slots::copy(dy, grad);
  }
  return {};
}

Edge edge_of(const Tensor& input) {
  if (!input.defined()) return nullptr;
  const TensorImpl& impl = *input.impl();
  if (impl.grad_fn) return impl.grad_fn;
  return impl.requires_grad ? impl.leaf : nullptr;
}

bool grad_enabled() { return grad_is_enabled; }
NoGrad::NoGrad() : previous_(grad_is_enabled) { grad_is_enabled = false; }
NoGrad::~NoGrad() { grad_is_enabled = previous_; }
EnableGrad::EnableGrad() : previous_(grad_is_enabled) { grad_is_enabled = true; }
EnableGrad::~EnableGrad() { grad_is_enabled = previous_; }

SavePolicy save_policy() { return current_policy; }
SavePolicyScope::SavePolicyScope(SavePolicy policy) : previous_(current_policy) {
  current_policy = policy;
}
SavePolicyScope::~SavePolicyScope() { current_policy = previous_; }

namespace detail {

GraphInputScope::GraphInputScope() : outer_(graph_inputs), sequence_(upcoming_sequence() - 1) {
  graph_inputs = this;
}
GraphInputScope::~GraphInputScope() { graph_inputs = outer_; }

void note_graph_input(const Tensor& input) {
  for (GraphInputScope* scope = graph_inputs; scope; scope = scope->outer_) {
    scope->inputs_.push_back(
        {input.storage(), input.storage()->version(), input.dtype(), input.shape()});
    const Edge edge = edge_of(input);
    if (LeafNode* leaf = edge ? edge->as_leaf() : nullptr) leaf->note_use(scope->sequence_);
  }
}

uint64_t upcoming_sequence() { return next_sequence.load(std::memory_order_relaxed); }

bool& graph_is_retained() {
  thread_local bool retained = false;
  return retained;
}

std::vector<Edge> edges_of(std::initializer_list<const Tensor*> inputs) {
  std::vector<Edge> out;
  for (const Tensor* input : inputs) {
    Edge edge = edge_of(*input);
    if (edge) note_graph_input(*input);
    if (grad_is_enabled) out.push_back(std::move(edge));
  }
  return out;
}

std::vector<Edge> edges_of(const std::vector<Tensor>& inputs) {
  std::vector<Edge> out;
  for (const Tensor& input : inputs) {
    Edge edge = edge_of(input);
    if (edge) note_graph_input(input);
    if (grad_is_enabled) out.push_back(std::move(edge));
  }
  return out;
}

Tensor finish(const std::shared_ptr<Node>& node, Tensor out) {
  note_autocast_op(node->name(), out);
  // Integers (a cast to labels) carry no gradient.
  if (node->wants_any() && is_floating(out.dtype())) {
    node->set_output(out);
    out.impl()->grad_fn = node;
    if (Recipe* recipe = node->as_recipe()) {
      out.impl()->recipe = std::shared_ptr<Recipe>(node, recipe);
      out.impl()->recipe_version = out.storage()->version();
    }
  }
  return out;
}

}  // namespace detail
}  // namespace headroom
