// Views and concatenation.
#include "core/ops/shape_ops.h"

#include "core/ops/elementwise.h"
#include "core/ops/op_helpers.h"

namespace headroom {
namespace {

using detail::alias;

// Notes that x's storage is seen by a differentiable view.
void mark_viewed(const Tensor& x, const Node& node) {
  if (node.wants_any()) x.storage()->mark_viewed();
}

// Elements in logical order under another shape.
struct Reshape : Node {
  Shape to, from;
  MemoryFormat format = MemoryFormat::contiguous;

  explicit Reshape(Shape to) : to(to) {}
  const char* name() const override { return "reshape"; }
  Tensor forward(const Tensor& x) {
    from = x.shape();
    format = x.format();
    mark_viewed(x, *this);
    return alias(x, x.storage_offset(), to, dense_strides(to, MemoryFormat::contiguous),
                 MemoryFormat::contiguous);
  }
  Grads backward(Tensor dy) override {
    const Tensor plain = detail::dense_in(dy, MemoryFormat::contiguous);
    const Tensor dx =
        alias(plain, plain.storage_offset(), from, dense_strides(from, MemoryFormat::contiguous),
              MemoryFormat::contiguous);
    return {detail::dense_in(dx, format)};
  }
};

// y's axis i is x's axis axes[i].
struct Permute : Node {
  std::vector<int> axes;

  explicit Permute(std::vector<int> axes) : axes(std::move(axes)) {}
  const char* name() const override { return "permute"; }
  Tensor forward(const Tensor& x) {
    mark_viewed(x, *this);
    return permuted(x, axes);
  }
  Grads backward(Tensor dy) override {
    std::vector<int> inverse(axes.size());
    for (size_t i = 0; i < axes.size(); ++i)
      inverse[static_cast<size_t>(axes[i])] = static_cast<int>(i);
    return {permuted(dy, inverse)};
  }

  static Tensor permuted(const Tensor& x, const std::vector<int>& axes) {
    Shape shape;
    Strides strides;
    for (const int axis : axes) {
      shape.push_back(x.shape()[axis]);
      strides.push_back(x.strides()[axis]);
    }
    return alias(x, x.storage_offset(), shape, strides, MemoryFormat::contiguous);
  }
};

// y = x[..., begin:end, ...]; dx is dy there and 0 elsewhere.
struct Slice : Node {
  int axis;
  int64_t begin, end;
  Shape from;
  MemoryFormat format = MemoryFormat::contiguous;

  Slice(int axis, int64_t begin, int64_t end) : axis(axis), begin(begin), end(end) {}
  const char* name() const override { return "slice"; }
  Tensor forward(const Tensor& x) {
    from = x.shape();
    format = x.format();
    mark_viewed(x, *this);
    return part(x, x.shape());
  }
  Grads backward(Tensor dy) override {
    const Tensor dx = zeros(from, {dy.dtype(), dy.device(), format});
    slots::copy(dy, part(dx, from));
    return {dx};
  }

 private:
  Tensor part(const Tensor& whole, Shape shape) const {
    shape[axis] = end - begin;
    return alias(whole, whole.storage_offset() + begin * whole.strides()[axis], shape,
                 whole.strides(), whole.format());
  }
};

// Repeats without copying; dx is summed back.
struct Expand : Node {
  Shape to, from;
  DType dtype = DType::f32;

  explicit Expand(Shape to) : to(to) {}
  const char* name() const override { return "expand"; }
  Tensor forward(const Tensor& x) {
    from = x.shape();
    dtype = x.dtype();
    mark_viewed(x, *this);
    const View view = detail::broadcast_view(x, to);
    return alias(x, x.storage_offset(), view.shape, view.strides, view.format);
  }
  Grads backward(Tensor dy) override { return {detail::sum_to(dy, from, dtype)}; }
};

// Parts one after another along an axis; each gets its slice of dy.
struct Concat : Node {
  int axis;
  std::vector<int64_t> sizes;

  explicit Concat(int axis) : axis(axis) {}
  const char* name() const override { return "concat"; }

  Tensor forward(const std::vector<Tensor>& parts) {
    Shape shape = parts[0].shape();
    shape[axis] = 0;
    for (const Tensor& part : parts) {
      sizes.push_back(part.shape()[axis]);
      shape[axis] += sizes.back();
    }
    const Tensor out = empty(shape, parts[0].options());
    int64_t begin = 0;
    for (const Tensor& part : parts) {
      slots::copy(part, section(out, begin, part.shape()[axis]));
      begin += part.shape()[axis];
    }
    return out;
  }

  Grads backward(Tensor dy) override {
    Grads out;
    int64_t begin = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      // Slices share dy's storage; whoever needs one dense copies it.
      out.push_back(wants(static_cast<int>(i)) ? section(dy, begin, sizes[i]) : Tensor());
      begin += sizes[i];
    }
    return out;
  }

 private:
  Tensor section(const Tensor& whole, int64_t begin, int64_t size) const {
    Shape shape = whole.shape();
    shape[axis] = size;
    return alias(whole, whole.storage_offset() + begin * whole.strides()[axis], shape,
                 whole.strides(), whole.format());
  }
};

Shape resolve_shape(const std::vector<int64_t>& wanted, int64_t count, const Tensor& x) {
  int64_t known = 1;
  int open = -1;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == -1) {
      CHECK_ARG(open < 0, "reshape: more than one extent is -1");
      open = static_cast<int>(i);
    } else {
      CHECK_ARG(wanted[i] >= 0, "reshape: extent ", wanted[i], " is negative");
      known *= wanted[i];
    }
  }
  Shape out(wanted);
  if (open >= 0) {
    CHECK_ARG(known > 0 && count % known == 0, "reshape: ", x.describe(), " does not divide into ",
              out);
    out[open] = count / known;
  }
  CHECK_ARG(numel_of(out) == count, "reshape: ", x.describe(), " has ", count, " elements, ", out,
            " needs ", numel_of(out));
  return out;
}

}  // namespace

Tensor reshape(const Tensor& x, const std::vector<int64_t>& shape) {
  const Shape to = resolve_shape(shape, x.numel(), x);
  if (to == x.shape()) return x;
  // A channels_last image whose axes leave no choice (1x1 maps, one channel) is in logical order.
  View as = x.view();
  as.format = MemoryFormat::contiguous;
  const Tensor plain = as.is_dense() ? x : contiguous(x);
  return apply(Reshape{to}, plain);
}

Tensor flatten(const Tensor& x, int first_axis, int last_axis) {
  if (x.rank() == 0) return reshape(x, {1});
  const int first = normalize_axis(first_axis, x.rank(), "flatten");
  const int last = normalize_axis(last_axis, x.rank(), "flatten");
  CHECK_ARG(first <= last, "flatten: first axis ", first, " lies after last axis ", last);
  std::vector<int64_t> shape;
  int64_t joined = 1;
  for (int i = 0; i < x.rank(); ++i) {
    if (i < first || i > last) {
      shape.push_back(x.shape()[i]);
      continue;
    }
    joined *= x.shape()[i];
    if (i == last) shape.push_back(joined);
  }
  return reshape(x, shape);
}

Tensor permute(const Tensor& x, const std::vector<int>& axes) {
  CHECK_ARG(static_cast<int>(axes.size()) == x.rank(), "permute: ", axes.size(),
            " axes for a tensor of rank ", x.rank());
  std::vector<int> order;
  bool seen[kMaxRank] = {};
  for (const int axis : axes) {
    const int place = normalize_axis(axis, x.rank(), "permute");
    CHECK_ARG(!seen[place], "permute: axis ", place, " appears twice");
    seen[place] = true;
    order.push_back(place);
  }
  return apply(Permute{order}, x);
}

Tensor transpose(const Tensor& x, int axis_a, int axis_b) {
  std::vector<int> axes;
  for (int i = 0; i < x.rank(); ++i) axes.push_back(i);
  std::swap(axes[static_cast<size_t>(normalize_axis(axis_a, x.rank(), "transpose"))],
            axes[static_cast<size_t>(normalize_axis(axis_b, x.rank(), "transpose"))]);
  return permute(x, axes);
}

Tensor slice(const Tensor& x, int axis, int64_t begin, int64_t end) {
  const int at = normalize_axis(axis, x.rank(), "slice");
  const int64_t size = x.shape()[at];
  const int64_t from = begin < 0 ? begin + size : begin, to = end < 0 ? end + size : end;
  CHECK_ARG(0 <= from && from <= to && to <= size, "slice: [", begin, ", ", end,
            ") does not lie in axis ", at, " of ", x.describe());
  return apply(Slice{at, from, to}, x);
}

Tensor expand(const Tensor& x, const std::vector<int64_t>& shape) {
  Shape to(shape);
  const int lead = to.rank() - x.rank();
  for (int i = 0; i < to.rank(); ++i) {
    if (to[i] == -1 && i >= lead) to[i] = x.shape()[i - lead];
    CHECK_ARG(to[i] >= 0, "expand: extent ", to[i], " is negative");
  }
  CHECK_ARG(broadcast_shapes(x.shape(), to, "expand") == to, "expand: ", x.describe(),
            " does not expand to ", to);
  return apply(Expand{to}, x);
}

Tensor concat(const std::vector<Tensor>& parts, int axis) {
  CHECK_ARG(!parts.empty(), "concat: needs at least one tensor");
  const int at = normalize_axis(axis, parts[0].rank(), "concat");
  DType dtype = parts[0].dtype();
  for (const Tensor& part : parts) {
    if (is_floating(part.dtype()) && is_floating(dtype)) {
      dtype = detail::promote(dtype, part.dtype());
    }
    bool fits = part.rank() == parts[0].rank() && is_floating(part.dtype()) == is_floating(dtype) &&
                (is_floating(dtype) || part.dtype() == dtype) && part.device() == parts[0].device();
    for (int i = 0; fits && i < part.rank(); ++i) {
      fits = i == at || part.shape()[i] == parts[0].shape()[i];
    }
    CHECK_ARG(fits, "concat: ", part.describe(), " on ", part.device(), " does not join ",
              parts[0].describe(), " on ", parts[0].device(), " along axis ", at);
  }
  std::vector<Tensor> typed;
  for (const Tensor& part : parts) typed.push_back(cast(part, dtype));
  return apply_list(Concat{at}, typed);
}

}  // namespace headroom
