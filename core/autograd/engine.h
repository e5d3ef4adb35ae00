// Backward: walks the tape from an output in reverse program order, frees every node's saved
// tensors as soon as they are used, and leaves gradients in the leaves.
#pragma once

#include "core/autograd/node.h"

namespace headroom {

struct BackwardOptions {
  bool retain_graph = false;  // keep what nodes saved, so that backward can run again
};

// d(output)/d(leaf) * seed is added to the .grad of every leaf below `output`. seed has output's
// shape or is a single value that stands for all elements, and is taken in output's dtype;
// undefined means 1, and then output must hold one element. Throws InvalidArgument for an output
// that is undefined or outside a graph and for a seed that does not fit; Error for a graph that was
// released by an earlier backward, for a saved tensor that was written in place since, and for
// backward inside backward of the same graph (double backward is not offered). What an op throws on
// the way, OutOfMemory too, passes through: the leaves already reached keep what was added to them,
// and the graph is not to be used again.
void backward(const Tensor& output, const Tensor& seed = {}, const BackwardOptions& options = {});

namespace detail {

// The walk itself, from the gradient of what `root` made. A gradient that nobody else holds may be
// written over, so a caller that is done with it moves it in.
void run_backward(const Edge& root, Tensor gradient, const BackwardOptions& options = {});

// For a node whose backward records a tape of its own: walks the nodes from sequence number `first`
// on. Gradients of earlier nodes, which belong to the graph around it, go to the walk that runs the
// calling node, so that each of those nodes still runs once, after all its consumers.
void run_inner_backward(const Edge& root, Tensor gradient, uint64_t first);

}  // namespace detail

}  // namespace headroom
