// Sums, means and maxima.
#include "core/ops/reduce.h"

#include "core/autograd/autocast.h"
#include "core/ops/elementwise.h"
#include "core/ops/op_helpers.h"

namespace headroom {
namespace {

using detail::alias;

// The shape with 1 along the reduced axes, and without them.
struct ReducedShapes {
  Shape kept, dropped;
  int64_t count = 1;  // elements that become one
};

ReducedShapes reduced_shapes(const Tensor& x, const ReduceOptions& options, const char* op) {
  bool reduced[kMaxRank] = {};
  for (const int axis : options.axes) reduced[normalize_axis(axis, x.rank(), op)] = true;
  ReducedShapes out;
  for (int i = 0; i < x.rank(); ++i) {
    const bool gone = options.axes.empty() || reduced[i];
    out.kept.push_back(gone ? 1 : x.shape()[i]);
    if (gone) {
      out.count *= x.shape()[i];
    } else {
      out.dropped.push_back(x.shape()[i]);
    }
  }
  return out;
}

Tensor reshaped(const Tensor& x, const Shape& shape) {
  return Tensor::make(x.storage(), x.storage_offset(), shape,
                      dense_strides(shape, MemoryFormat::contiguous), x.dtype(),
                      MemoryFormat::contiguous);
}

// y = sum of x over axes; dx = dy repeated, as a view of stride 0.
struct Sum : Node {
  ReduceOptions options;
  bool average;
  DType out_dtype, in_dtype = DType::f32;
  Shape in_shape;
  ReducedShapes shapes;
  MemoryFormat format = MemoryFormat::contiguous;

  Sum(ReduceOptions options, bool average, DType out_dtype)
      : options(std::move(options)), average(average), out_dtype(out_dtype) {}
  const char* name() const override { return average ? "mean" : "sum"; }

  Tensor forward(const Tensor& x) {
    detail::check_floating(name(), {&x});
    shapes = reduced_shapes(x, options, name());
    in_shape = x.shape();
    in_dtype = x.dtype();
    format = x.format();
    Tensor out = empty(shapes.kept, {out_dtype, x.device()});
    slots::reduce(average ? ReduceOp::mean : ReduceOp::sum, x, out);
    return options.keep_dims ? out : reshaped(out, shapes.dropped);
  }

  Grads backward(Tensor dy) override {
    Tensor small = detail::dense_in(dy, MemoryFormat::contiguous);
    if (average) {
      // Before it becomes half: a scaled loss alone may lie beyond 65504.
      Tensor scaled = empty_like(small);
      slots::unary(UnaryOp::mul_scalar, 1.0 / static_cast<double>(shapes.count), small, scaled);
      small = scaled;
    }
    small = detail::converted(small, in_dtype);
    const Strides strides = dense_strides(shapes.kept, MemoryFormat::contiguous);
    Strides repeated = Strides::filled(in_shape.rank(), 0);
    for (int i = 0; i < in_shape.rank(); ++i) {
      if (shapes.kept[i] == in_shape[i]) repeated[i] = strides[i];
    }
    return {alias(small, small.storage_offset(), in_shape, repeated, format)};
  }
};

// y = max of x along an axis; dy goes to where the maximum was.
struct MaxAlong : Node {
  int axis;
  Tensor indices;  // handed to the caller as well; i64, so no gradient passes through it
  TensorOptions in_options;
  Shape in_shape;

  explicit MaxAlong(int axis) : axis(axis) {}
  const char* name() const override { return "max"; }

  Tensor forward(const Tensor& x) {
    detail::check_floating(name(), {&x});
    in_shape = x.shape();
    in_options = x.options();
    Shape kept = x.shape();
    CHECK_ARG(kept[axis] > 0, "max: axis ", axis, " of ", x.describe(), " is empty");
    kept[axis] = 1;
    Tensor values = empty(kept, {x.dtype(), x.device()});
    indices = empty(kept, {DType::i64, x.device()});
    slots::max_along(x, axis, values, indices);
    return values;
  }

  Grads backward(Tensor dy) override {
    Tensor dx = empty(in_shape, in_options);
    slots::scatter_along(dy, indices, axis, dx);
    return {dx};
  }
};

// Drops (or restores) axes of extent 1: another shape over the same elements.
struct Squeeze : Node {
  Shape to, from;

  explicit Squeeze(Shape to) : to(to) {}
  const char* name() const override { return "squeeze"; }
  Tensor forward(const Tensor& x) {
    from = x.shape();
    return reshaped(x, to);
  }
  Grads backward(Tensor dy) override {
    return {reshaped(detail::dense_in(dy, MemoryFormat::contiguous), from)};
  }
};

Shape without(const Shape& shape, int axis) {
  Shape out;
  for (int i = 0; i < shape.rank(); ++i) {
    if (i != axis) out.push_back(shape[i]);
  }
  return out;
}

DType sum_dtype(const Tensor& x) {
  return autocast_state().enabled && is_half(x.dtype()) ? DType::f32 : x.dtype();
}

}  // namespace

Tensor sum(const Tensor& x, const ReduceOptions& options) {
  return apply(Sum{options, false, sum_dtype(x)}, x);
}

Tensor mean(const Tensor& x, const ReduceOptions& options) {
  return apply(Sum{options, true, sum_dtype(x)}, x);
}

MaxResult max(const Tensor& x, int axis, bool keep_dims) {
  MaxAlong op(normalize_axis(axis, x.rank(), "max"));
  const OpScope scope(op.name());
  auto node = std::make_shared<MaxAlong>(std::move(op));
  node->connect(detail::edges_of({&x}));
  MaxResult out;
  out.values = detail::finish(node, node->forward(x));
  out.indices = node->indices;
  if (!keep_dims) {
    const Shape dropped = without(out.indices.shape(), node->axis);
    out.values = apply(Squeeze{dropped}, out.values);
    out.indices = reshaped(out.indices, dropped);
  }
  return out;
}

Tensor max(const Tensor& x) {
  CHECK_ARG(x.numel() > 0, "max: needs at least one element but got ", x.describe());
  const Tensor flat = apply(Squeeze{Shape{x.numel()}}, contiguous(x));
  return max(flat, 0).values;
}

Tensor argmax(const Tensor& x, int axis, bool keep_dims) {
  const NoGrad no_grad;
  const OpScope scope("argmax");
  detail::check_floating("argmax", {&x});
  axis = normalize_axis(axis, x.rank(), "argmax");
  Shape kept = x.shape();
  CHECK_ARG(kept[axis] > 0, "argmax: axis ", axis, " of ", x.describe(), " is empty");
  kept[axis] = 1;
  const Tensor indices = empty(kept, {DType::i64, x.device()});
  slots::max_along(x, axis, View{}, indices);
  return keep_dims ? indices : reshaped(indices, without(kept, axis));
}

}  // namespace headroom
