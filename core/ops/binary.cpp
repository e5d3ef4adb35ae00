// Binary ops with broadcasting, out of place and in place.
#include "core/ops/elementwise.h"
#include "core/ops/op_helpers.h"

namespace headroom {
namespace {

using detail::broadcast_view;
using detail::sum_to;

// t = a op b, dense like the first operand that has the whole shape. Outside the graph.
Tensor combine(BinaryOp op, const Tensor& a, const Tensor& b, DType dtype) {
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), name_of(op));
  const MemoryFormat format = a.shape() == shape   ? a.format()
                              : b.shape() == shape ? b.format()
                                                   : MemoryFormat::contiguous;
  Tensor out = empty(shape, {dtype, a.device(), format});
  slots::binary(op, broadcast_view(a, shape), broadcast_view(b, shape), out);
  return out;
}

// y = a op b. Gradients, each summed to its operand's shape:
//   add  dy, dy        sub  dy, -dy      mul  dy*b, dy*a      div  dy/b, -dy*y/b
//   maximum, minimum: to the operand that won, in halves where they tie
struct Binary : Node {
  BinaryOp op;
  Shape shape_a, shape_b;
  DType dtype_a = DType::f32, dtype_b = DType::f32;
  SavedTensor a, b, y;

  explicit Binary(BinaryOp op) : op(op) {}
  const char* name() const override { return name_of(op); }

  void note(const Tensor& in_a, const Tensor& in_b) {
    detail::check_floating(name(), {&in_a, &in_b});
    shape_a = in_a.shape();
    shape_b = in_b.shape();
    dtype_a = in_a.dtype();
    dtype_b = in_b.dtype();
  }

  // What is kept of the operands; in place, before a is overwritten.
  void keep_inputs(const Tensor& in_a, const Tensor& in_b) {
    const bool compares = op == BinaryOp::maximum || op == BinaryOp::minimum;
    if (compares || (op == BinaryOp::mul && wants(1))) a = save(in_a);
    if (compares || op == BinaryOp::div || (op == BinaryOp::mul && wants(0))) b = save(in_b);
  }
  void keep_output(const Tensor& out) {
    if (op == BinaryOp::div && wants(1)) y = save(out);
  }

  Tensor forward(const Tensor& in_a, const Tensor& in_b) {
    note(in_a, in_b);
    Tensor out = combine(op, in_a, in_b, detail::promote(dtype_a, dtype_b));
    keep_inputs(in_a, in_b);
    keep_output(out);
    return out;
  }

  Grads backward(Tensor dy) override {
    Tensor da, db;
    switch (op) {
      case BinaryOp::add:
        if (wants(0)) da = sum_to(dy, shape_a, dtype_a);
        if (wants(1)) db = sum_to(dy, shape_b, dtype_b);
        break;
      case BinaryOp::sub:
        if (wants(0)) da = sum_to(dy, shape_a, dtype_a);
        if (wants(1)) {
          Tensor negative = empty_like(dy);
          slots::unary(UnaryOp::neg, 0, dy, negative);
          db = sum_to(negative, shape_b, dtype_b);
        }
        break;
      case BinaryOp::mul:
        if (wants(0)) da = sum_to(combine(op, dy, b.get(), dy.dtype()), shape_a, dtype_a);
        if (wants(1)) db = sum_to(combine(op, dy, a.get(), dy.dtype()), shape_b, dtype_b);
        break;
      case BinaryOp::div: {
        const Tensor quotient = combine(op, dy, b.get(), dy.dtype());
        if (wants(1)) {
          Tensor negative = combine(BinaryOp::mul, quotient, y.get(), dy.dtype());
          slots::unary(UnaryOp::neg, 0, negative, negative);
          db = sum_to(negative, shape_b, dtype_b);
        }
        if (wants(0)) da = sum_to(quotient, shape_a, dtype_a);
        break;
      }
      case BinaryOp::maximum:
      case BinaryOp::minimum:
        split_by_winner(dy, da, db);
        break;
    }
    return {da, db};
  }

 private:
  void split_by_winner(const Tensor& dy, Tensor& da, Tensor& db) {
    // lead > 0 where a won; relu's derivative [lead > 0] masks dy, and what neither mask takes is a
    // tie.
    const bool larger = op == BinaryOp::maximum;
    Tensor lead = larger ? combine(BinaryOp::sub, a.get(), b.get(), dy.dtype())
                         : combine(BinaryOp::sub, b.get(), a.get(), dy.dtype());
    Tensor to_a = empty_like(lead), to_b = empty_like(lead);
    slots::unary_backward(UnaryOp::relu, 0, lead, dy, to_a);
    slots::unary(UnaryOp::neg, 0, lead, lead);
    slots::unary_backward(UnaryOp::relu, 0, lead, dy, to_b);
    Tensor tie = combine(BinaryOp::sub, dy, to_a, dy.dtype());
    slots::binary(BinaryOp::sub, tie, to_b, tie);
    slots::unary(UnaryOp::mul_scalar, 0.5, tie, tie);
    slots::binary(BinaryOp::add, to_a, tie, to_a);
    slots::binary(BinaryOp::add, to_b, tie, to_b);
    if (wants(0)) da = sum_to(to_a, shape_a, dtype_a);
    if (wants(1)) db = sum_to(to_b, shape_b, dtype_b);
  }
};

Tensor copy_of(const Tensor& x) {
  const Tensor out = empty_like(x);
  slots::copy(x, out);
  return out;
}

Tensor& binary_in_place(BinaryOp op, const char* name, Tensor& x, const Tensor& b) {
  const OpScope scope(name);
  CHECK_ARG(broadcast_shapes(x.shape(), b.shape(), name) == x.shape(), name, ": ", b.describe(),
            " does not broadcast to ", x.describe());
  detail::check_overlap(name, x, b);
  auto node = std::make_shared<Binary>(op);
  node->connect(detail::edges_of({&x, &b}));
  node->note(x, b);
  detail::check_in_place(name, x, node->wants_any());
  // mul_ with a gradient for b needs x as it was, which is about to be overwritten.
  const bool needs_old = op == BinaryOp::mul && edge_of(b) && node->wants_any();
  node->keep_inputs(needs_old ? copy_of(x) : x, b);
  slots::binary(op, x, broadcast_view(b, x.shape()), x);
  x.storage()->bump_version();
  x.impl()->recipe.reset();
  node->keep_output(x);
  detail::finish_in_place(x, node);
  return x;
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return apply(Binary{BinaryOp::add}, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return apply(Binary{BinaryOp::sub}, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return apply(Binary{BinaryOp::mul}, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return apply(Binary{BinaryOp::div}, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return apply(Binary{BinaryOp::maximum}, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return apply(Binary{BinaryOp::minimum}, a, b); }

Tensor& add_(Tensor& x, const Tensor& b) { return binary_in_place(BinaryOp::add, "add_", x, b); }
Tensor& sub_(Tensor& x, const Tensor& b) { return binary_in_place(BinaryOp::sub, "sub_", x, b); }
Tensor& mul_(Tensor& x, const Tensor& b) { return binary_in_place(BinaryOp::mul, "mul_", x, b); }
Tensor& div_(Tensor& x, const Tensor& b) { return binary_in_place(BinaryOp::div, "div_", x, b); }

}  // namespace headroom
