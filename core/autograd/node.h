// The tape. An op is a struct derived from Node: its members are what it saved in forward, its
// backward returns one gradient per input, and the object itself is the tape's node. Every op has
// one output, so an edge is simply the node that made a tensor (or the leaf's gradient
// accumulator).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace headroom {

class Node;
using Edge = std::shared_ptr<Node>;

// One gradient per input of the op, in order; undefined where none is wanted.
using Grads = std::vector<Tensor>;

// What a producer offers to a consumer that would otherwise keep its output: to make it again, bit
// for bit, from what the producer keeps anyway.
class Recipe {
 public:
  virtual ~Recipe() = default;
  virtual Tensor recompute() = 0;
};

namespace detail {
class OffloadedTensor;
}

// One tensor kept for backward, or the recipe for it, or where it waits on the host. Shared between
// the op's member and the node's list, so that the engine can drop it without knowing the op.
struct SavedState {
  Tensor tensor;  // detached; undefined when released or when something else stands for it
  std::shared_ptr<Recipe> recipe;
  std::unique_ptr<detail::OffloadedTensor> offloaded;
  int64_t version = 0;
  bool released = false;
  const char* op = "";

  SavedState();
  ~SavedState();
  SavedState(const SavedState&) = delete;
  SavedState& operator=(const SavedState&) = delete;
  void release();
};

// A tensor saved for backward.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(std::shared_ptr<SavedState> state) : state_(std::move(state)) {}
  explicit operator bool() const { return state_ != nullptr; }

  // The tensor, made again where a recipe stands for it, brought back where it waits on the host.
  // Throws Error when the graph was released
  // ("backward a second time") and when the storage was written to since ("in place").
  Tensor get() const;
  // The same, giving up what is kept unless the graph is to be kept: the op then holds the last
  // handle and may free the bytes early or write over them.
  Tensor take() const;

 private:
  std::shared_ptr<SavedState> state_;
};

class Node {
 public:
  Node() = default;
  virtual ~Node();
  Node(Node&&) = default;

  // The op's name, as messages and traces show it. A static string.
  virtual const char* name() const = 0;

  // Gradients of the inputs from the gradient of the output. dy is dense in the output's format or
  // not at all strided in it (expanded); is_unique() tells whether it may be overwritten.
  virtual Grads backward(Tensor dy) = 0;

  // How to make the output again, where what the node keeps anyway suffices; else nullptr. Asked
  // once, after forward.
  virtual Recipe* as_recipe() { return nullptr; }

  // The accumulator behind a leaf, or nullptr.
  virtual LeafNode* as_leaf() { return nullptr; }

  const std::vector<Edge>& edges() const { return edges_; }
  uint64_t sequence() const { return sequence_; }
  PathId path() const { return path_; }
  const std::vector<std::shared_ptr<SavedState>>& saved() const { return saved_; }
  bool released() const { return released_; }

  // For apply() and the engine.
  void connect(std::vector<Edge> edges);
  bool wants_any() const;
  void release_saved();
  // After its backward, where the graph is kept: what waits on the host leaves the device again.
  void park_saved();
  // Records the node even if no edge wants a gradient: for checkpoint, whose parameters are inside.
  void record_always() { record_always_ = true; }
  void set_output(const Tensor& out);
  const Shape& output_shape() const { return output_shape_; }

 protected:
  // Whether input i's gradient is wanted. Known before forward runs, so that forward saves only
  // what a wanted gradient needs.
  bool wants(int input) const {
    return input < static_cast<int>(edges_.size()) && edges_[static_cast<size_t>(input)];
  }

  // Keeps a tensor for backward, under the policy in force: as it is, or by its recipe.
  SavedTensor save(const Tensor& tensor);

 private:
  std::vector<Edge> edges_;
  std::vector<std::shared_ptr<SavedState>> saved_;
  uint64_t sequence_ = 0;
  PathId path_ = 0;
  Shape output_shape_;
  bool record_always_ = false;
  bool released_ = false;
};

// Where the gradient of a leaf is gathered: in the leaf's own dtype (f32 for half leaves).
class LeafNode final : public Node {
 public:
  // Gradients are kept in `grad_dtype`, dense in `format`.
  LeafNode(DType grad_dtype, const Shape& shape, MemoryFormat format);
  const char* name() const override { return "leaf"; }
  Grads backward(Tensor dy) override;
  LeafNode* as_leaf() override { return this; }

  Tensor grad;

  // Called by backward once no node that is still to run can add to `grad`. Set it before the
  // forward whose gradient it waits for, and not while a backward runs.
  void set_completion(std::function<void()> hook) {
    completion_ = std::move(hook);
    first_use_ = kUnused;
  }
  bool has_completion() const { return completion_ != nullptr; }
  // For Node::connect and checkpoints: the node of this sequence number takes the leaf.
  void note_use(uint64_t sequence) {
    if (completion_) first_use_ = std::min(first_use_, sequence);
  }
  // For the engine: all nodes from `sequence` on have run.
  bool is_complete_at(uint64_t sequence) const { return first_use_ >= sequence; }
  void complete() {
    first_use_ = kUnused;
    completion_();
  }

 private:
  static constexpr uint64_t kUnused = ~uint64_t{0};
  std::function<void()> completion_;
  uint64_t first_use_ = kUnused;
  DType grad_dtype_;
  Shape shape_;
  MemoryFormat format_;
};

// The edge that an op's input contributes: the node that made it, the accumulator of a leaf that
// requires a gradient, or null.
Edge edge_of(const Tensor& input);

// Whether ops record nodes; true unless a NoGrad is alive on this thread.
bool grad_enabled();

// Ops inside record nothing and save nothing.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool previous_;
};

// Ops inside record again; for a checkpoint's second forward, which runs inside backward.
class EnableGrad {
 public:
  EnableGrad();
  ~EnableGrad();
  EnableGrad(const EnableGrad&) = delete;
  EnableGrad& operator=(const EnableGrad&) = delete;

 private:
  bool previous_;
};

// How saved tensors are kept:
//   recompute  by their producer's recipe where there is one, else as they are
//   keep       as they are
//   pack       as recompute, and relu keeps one bit per element instead of its output. That saves
//              where nobody else keeps the output (before a max pool, say), and costs a bit per
//              element where the next convolution keeps it anyway.
//   offload    as pack, and what is kept then waits in host memory (core/autograd/offload.h). A
//              mask costs a 32nd of the copy that it spares where nobody else keeps the output.
// A checkpoint's second forward keeps tensors on the device under every policy: they are used at
// once.
enum class SavePolicy : uint8_t { recompute, keep, pack, offload };
SavePolicy save_policy();
inline bool packs_relu(SavePolicy policy) {
  return policy == SavePolicy::pack || policy == SavePolicy::offload;
}
class SavePolicyScope {
 public:
  explicit SavePolicyScope(SavePolicy policy);
  ~SavePolicyScope();
  SavePolicyScope(const SavePolicyScope&) = delete;
  SavePolicyScope& operator=(const SavePolicyScope&) = delete;

 private:
  SavePolicy previous_;
};

namespace detail {

// An input of an op that has a place in the graph, as it was when the op took it.
struct GraphInput {
  std::weak_ptr<Storage> storage;
  int64_t version = 0;
  DType dtype = DType::f32;
  Shape shape;
};

// Lists the graph inputs that ops on this thread take while it lives, also where NoGrad is in
// force; checkpoint asks. Scopes nest: the outer one lists what the inner one does.
class GraphInputScope {
 public:
  GraphInputScope();
  ~GraphInputScope();
  GraphInputScope(const GraphInputScope&) = delete;
  GraphInputScope& operator=(const GraphInputScope&) = delete;
  const std::vector<GraphInput>& inputs() const { return inputs_; }

 private:
  friend void note_graph_input(const Tensor& input);
  GraphInputScope* outer_;
  uint64_t sequence_;  // of the node that it was opened for, the latest one
  std::vector<GraphInput> inputs_;
};
void note_graph_input(const Tensor& input);

// The sequence number that the next node gets.
uint64_t upcoming_sequence();
// Whether the backward that runs now keeps the graph.
bool& graph_is_retained();
std::vector<Edge> edges_of(std::initializer_list<const Tensor*> inputs);
std::vector<Edge> edges_of(const std::vector<Tensor>& inputs);
Tensor finish(const std::shared_ptr<Node>& node, Tensor out);

}  // namespace detail

// Runs an op: connects its node, runs forward under the op's name, hangs the node on the output.
// Throws what forward throws.
template <class Op, class... Inputs>
Tensor apply(Op op, const Inputs&... inputs) {
  const OpScope scope(op.name());
  auto node = std::make_shared<Op>(std::move(op));
  node->connect(detail::edges_of({&inputs...}));
  return detail::finish(node, node->forward(inputs...));
}

// The same for an op whose forward takes a list.
template <class Op>
Tensor apply_list(Op op, const std::vector<Tensor>& inputs) {
  const OpScope scope(op.name());
  auto node = std::make_shared<Op>(std::move(op));
  node->connect(detail::edges_of(inputs));
  return detail::finish(node, node->forward(inputs));
}

}  // namespace headroom
