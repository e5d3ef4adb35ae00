// Shared parts of the ops.
#include "core/ops/op_helpers.h"

namespace headroom::detail {
namespace {

// Where a tensor's elements lie in its storage, gaps included.
struct ByteRange {
  int64_t begin, end;
};

ByteRange bytes_of(const Tensor& t) {
  const auto width = static_cast<int64_t>(size_of(t.dtype()));
  int64_t last = t.storage_offset();
  for (int i = 0; i < t.rank(); ++i) last += (t.shape()[i] - 1) * t.strides()[i];
  return {t.storage_offset() * width, (last + 1) * width};
}

}  // namespace

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (!is_floating(a) && !is_floating(b)) return DType::i64;
  if (!is_floating(a)) return b;
  if (!is_floating(b)) return a;
  return a == DType::f64 || b == DType::f64 ? DType::f64 : DType::f32;
}

void check_floating(const char* op, std::initializer_list<const Tensor*> operands) {
  for (const Tensor* operand : operands) {
    CHECK_ARG(!operand->defined() || is_floating(operand->dtype()), op,
              ": needs floating operands but got ", operand->describe());
  }
}

Tensor reuse_or_empty(const Tensor& dy, bool unique, MemoryFormat format) {
  if (unique && dy.is_dense()) return dy;
  TensorOptions options = dy.options();
  options.format = format;
  return empty(dy.shape(), options);
}

Tensor sum_to(const Tensor& dy, const Shape& shape, DType dtype) {
  if (dy.shape() == shape) return converted(dy, dtype);
  const int lead = dy.rank() - shape.rank();
  Shape kept = dy.shape();
  for (int i = 0; i < dy.rank(); ++i) kept[i] = i < lead ? 1 : shape[i - lead];
  Tensor out = empty(kept, {dtype, dy.device()});
  slots::reduce(ReduceOp::sum, dy, out);
  if (lead == 0) return out;
  return Tensor::make(out.storage(), 0, shape, dense_strides(shape, MemoryFormat::contiguous),
                      dtype, MemoryFormat::contiguous);
}

View broadcast_view(const Tensor& x, const Shape& shape) {
  View out = x.view();
  const int lead = shape.rank() - x.rank();
  out.shape = shape;
  out.strides = Strides::filled(shape.rank(), 0);
  for (int i = lead; i < shape.rank(); ++i) {
    if (x.shape()[i - lead] == shape[i]) out.strides[i] = x.strides()[i - lead];
  }
  if (lead > 0) out.format = MemoryFormat::contiguous;
  return out;
}

void check_in_place(const char* op, const Tensor& x, bool records) {
  if (!records) return;
  CHECK_ARG(!(x.is_leaf() && x.requires_grad()), op,
            ": in place on a leaf that requires a gradient (", x.describe(),
            "); do it under no_grad, or out of place");
  CHECK_ARG(!x.impl()->is_view, op, ": in place on a view while gradients are recorded (",
            x.describe(), "); clone it first");
  CHECK_ARG(!x.storage()->has_views(), op, ": in place on a tensor that has views in the graph (",
            x.describe(), "); do it out of place");
}

void check_overlap(const char* op, const Tensor& x, const Tensor& from) {
  if (from.storage() != x.storage() || x.numel() == 0 || from.numel() == 0) return;
  const bool same_places = from.dtype() == x.dtype() &&
                           from.storage_offset() == x.storage_offset() &&
                           from.shape() == x.shape() && from.strides() == x.strides();
  const ByteRange written = bytes_of(x), read = bytes_of(from);
  const bool apart = written.end <= read.begin || read.end <= written.begin;
  CHECK_ARG(same_places || apart, op, ": ", from.describe(), " may overlap the ", x.describe(),
            " that is written, element by element elsewhere; clone it first");
}

void finish_in_place(Tensor& x, const std::shared_ptr<Node>& node) {
  x.impl()->recipe.reset();
  if (node->wants_any() && is_floating(x.dtype())) {
    node->set_output(x);
    x.impl()->grad_fn = node;
  }
}

}  // namespace headroom::detail
