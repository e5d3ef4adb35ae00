// Unary ops, casts, copies and dropout.
#include "core/autograd/autocast.h"
#include "core/autograd/checkpoint.h"
#include "core/ops/elementwise.h"
#include "core/ops/op_helpers.h"
#include "core/tensor/generator.h"

namespace headroom {
namespace {

using detail::check_in_place;
using detail::finish_in_place;
using detail::reuse_or_empty;

// y = f(x; alpha); dx = dy * f'(x or y; alpha).
struct Unary : Node {
  UnaryOp op;
  double alpha = 0;
  SavedTensor saved;  // x or y; or relu's mask, where packs_relu()
  bool packed = false;
  MemoryFormat format = MemoryFormat::contiguous;  // of the packed y

  Unary(UnaryOp op, double alpha) : op(op), alpha(alpha) {}
  const char* name() const override { return name_of(op); }

  Tensor forward(const Tensor& x) {
    detail::check_floating(name(), {&x});
    Tensor out = empty_like(x);
    slots::unary(op, alpha, x, out);
    if (wants(0) && unary_saves(op) != UnarySaves::nothing) {
      keep(unary_saves(op) == UnarySaves::input ? x : out);
    }
    return out;
  }

  void keep_written(const Tensor& x) {
    if (unary_saves(op) != UnarySaves::nothing) keep(x);
  }

  void keep(const Tensor& t) {
    packed = op == UnaryOp::relu && packs_relu(save_policy()) && wants(0) && t.is_dense();
    if (!packed) {
      saved = save(t);
      return;
    }
    constexpr int64_t kBits = 8;
    format = t.format();
    const Tensor mask = empty({(t.numel() + kBits - 1) / kBits}, {DType::u8, t.device()});
    slots::relu_mask(t, mask);
    saved = save(mask);
  }

  Grads backward(Tensor dy) override {
    if (packed) return {unpack(std::move(dy))};
    const bool unique = dy.is_unique();
    Tensor dx = reuse_or_empty(dy, unique, dy.format());
    slots::unary_backward(op, alpha, saved ? saved.get() : dy, dy, dx);
    return {dx};
  }

  Tensor unpack(Tensor dy) const {
    const Tensor gradient = detail::dense_in(dy, format);
    dy = Tensor();
    const bool unique = gradient.is_unique();
    Tensor dx = reuse_or_empty(gradient, unique, format);
    slots::relu_mask_backward(saved.get(), gradient, dx);
    return dx;
  }
};

// Whether the derivative needs the input and nothing else will do. The output of leaky_relu has its
// input's sign unless the slope is negative.
bool needs_input(UnaryOp op, double alpha) {
  if (op == UnaryOp::leaky_relu) return !(alpha >= 0);
  return unary_saves(op) == UnarySaves::input;
}

// The same over x itself.
Tensor& unary_in_place(UnaryOp op, double alpha, Tensor& x) {
  const OpScope scope(name_of(op));
  detail::check_floating(name_of(op), {&x});
  auto node = std::make_shared<Unary>(op, alpha);
  node->connect(detail::edges_of({&x}));
  check_in_place(name_of(op), x, node->wants_any());
  CHECK_ARG(
      !node->wants_any() || !needs_input(op, alpha), name_of(op), ": in place on ", x.describe(),
      " while its gradient is recorded, which needs the input that is overwritten; do it under "
      "no_grad, or out of place");
  slots::unary(op, alpha, x, x);
  x.storage()->bump_version();
  x.impl()->recipe.reset();
  node->keep_written(x);
  finish_in_place(x, node);
  return x;
}

// y = x in another dtype; dx = dy in x's.
struct Cast : Node {
  DType from = DType::f32, to;

  explicit Cast(DType to) : to(to) {}
  const char* name() const override { return "cast"; }
  Tensor forward(const Tensor& x) {
    from = x.dtype();
    return detail::converted(x, to);
  }
  Grads backward(Tensor dy) override { return {detail::converted(dy, from)}; }
};

// y = x on another device; dx = dy on x's.
struct ToDevice : Node {
  Device from, to;

  explicit ToDevice(Device to) : to(to) {}
  const char* name() const override { return "to_device"; }
  Tensor forward(const Tensor& x) {
    from = x.device();
    return detail::moved(x, to);
  }
  Grads backward(Tensor dy) override { return {detail::moved(dy, from)}; }
};

// A dense copy in another memory format (or the same); the gradient passes as it is.
struct Contiguous : Node {
  MemoryFormat format;

  explicit Contiguous(MemoryFormat format) : format(format) {}
  const char* name() const override { return "contiguous"; }
  Tensor forward(const Tensor& x) {
    TensorOptions options = x.options();
    options.format = format;
    Tensor out = empty(x.shape(), options);
    slots::copy(x, out);
    return out;
  }
  Grads backward(Tensor dy) override { return {dy}; }
};

// y = x * mask / (1 - p), Srivastava et al. 2014, inverted form. The mask is a function of the
// draw.
struct Dropout : Node {
  double p;
  GeneratorState draw;

  explicit Dropout(double p) : p(p) {}
  const char* name() const override { return "dropout"; }
  Tensor forward(const Tensor& x) {
    detail::check_floating(name(), {&x});
    Tensor out = empty_like(x);
    draw =
        default_generator().next();  // once there is room, so that an op that fails draws nothing
    slots::dropout(p, draw.seed, draw.offset, x, out);
    return out;
  }
  Grads backward(Tensor dy) override {
    const bool unique = dy.is_unique();
    Tensor dx = reuse_or_empty(dy, unique, dy.format());
    slots::dropout(p, draw.seed, draw.offset, dy, dx);
    return {dx};
  }
};

// x = value or another tensor's contents: nothing of the old x reaches the result.
struct Overwrite : Node {
  DType from_dtype = DType::f32;

  const char* name() const override { return "copy_"; }
  Grads backward(Tensor dy) override {
    if (edges().size() < 2) return {Tensor()};
    return {Tensor(), detail::converted(dy, from_dtype)};
  }
};

template <class Write>
Tensor& overwrite(const char* op, Tensor& x, const Tensor* from, Write write) {
  const OpScope scope(op);
  auto node = std::make_shared<Overwrite>();
  if (from) {
    node->from_dtype = from->dtype();
    node->connect(detail::edges_of({&x, from}));
  } else {
    node->connect(detail::edges_of({&x}));
  }
  check_in_place(op, x, node->wants_any());
  write();
  x.storage()->bump_version();
  finish_in_place(x, node);
  return x;
}

}  // namespace

Tensor neg(const Tensor& x) { return apply(Unary{UnaryOp::neg, 0}, x); }
Tensor exp(const Tensor& x) { return apply(Unary{UnaryOp::exp, 0}, autocast::to_float(x)); }
Tensor log(const Tensor& x) { return apply(Unary{UnaryOp::log, 0}, autocast::to_float(x)); }
Tensor sqrt(const Tensor& x) { return apply(Unary{UnaryOp::sqrt, 0}, x); }
Tensor abs(const Tensor& x) { return apply(Unary{UnaryOp::abs, 0}, x); }
Tensor relu(const Tensor& x) { return apply(Unary{UnaryOp::relu, 0}, x); }
Tensor leaky_relu(const Tensor& x, double slope) {
  return apply(Unary{UnaryOp::leaky_relu, slope}, x);
}
Tensor sigmoid(const Tensor& x) { return apply(Unary{UnaryOp::sigmoid, 0}, x); }
Tensor tanh(const Tensor& x) { return apply(Unary{UnaryOp::tanh, 0}, x); }
Tensor silu(const Tensor& x) { return apply(Unary{UnaryOp::silu, 0}, x); }
Tensor pow(const Tensor& x, double exponent) {
  return apply(Unary{UnaryOp::pow_scalar, exponent}, autocast::to_float(x));
}
Tensor add(const Tensor& x, double addend) { return apply(Unary{UnaryOp::add_scalar, addend}, x); }
Tensor mul(const Tensor& x, double factor) { return apply(Unary{UnaryOp::mul_scalar, factor}, x); }

Tensor& neg_(Tensor& x) { return unary_in_place(UnaryOp::neg, 0, x); }
Tensor& exp_(Tensor& x) { return unary_in_place(UnaryOp::exp, 0, x); }
Tensor& sqrt_(Tensor& x) { return unary_in_place(UnaryOp::sqrt, 0, x); }
Tensor& relu_(Tensor& x) { return unary_in_place(UnaryOp::relu, 0, x); }
Tensor& sigmoid_(Tensor& x) { return unary_in_place(UnaryOp::sigmoid, 0, x); }
Tensor& tanh_(Tensor& x) { return unary_in_place(UnaryOp::tanh, 0, x); }
Tensor& leaky_relu_(Tensor& x, double slope) {
  return unary_in_place(UnaryOp::leaky_relu, slope, x);
}
Tensor& log_(Tensor& x) { return unary_in_place(UnaryOp::log, 0, x); }
Tensor& abs_(Tensor& x) { return unary_in_place(UnaryOp::abs, 0, x); }
Tensor& silu_(Tensor& x) { return unary_in_place(UnaryOp::silu, 0, x); }
Tensor& pow_(Tensor& x, double exponent) {
  return unary_in_place(UnaryOp::pow_scalar, exponent, x);
}
Tensor& add_(Tensor& x, double addend) { return unary_in_place(UnaryOp::add_scalar, addend, x); }
Tensor& mul_(Tensor& x, double factor) { return unary_in_place(UnaryOp::mul_scalar, factor, x); }

Tensor& fill_(Tensor& x, double value) {
  return overwrite("fill_", x, nullptr, [&] { slots::fill(value, x); });
}
Tensor& zero_(Tensor& x) { return fill_(x, 0); }

Tensor& copy_(Tensor& x, const Tensor& from) {
  CHECK_ARG(x.shape() == from.shape(), "copy_: shapes differ: ", x.describe(), " from ",
            from.describe());
  detail::check_overlap("copy_", x, from);
  return overwrite("copy_", x, &from, [&] { slots::copy(from, x); });
}

Tensor& uniform_(Tensor& x, double low, double high) {
  detail::check_floating("uniform_", {&x});
  const GeneratorState draw = default_generator().next();
  return overwrite("uniform_", x, nullptr,
                   [&] { slots::fill_uniform(draw.seed, draw.offset, low, high, x); });
}

Tensor& normal_(Tensor& x, double mean, double deviation) {
  detail::check_floating("normal_", {&x});
  const GeneratorState draw = default_generator().next();
  return overwrite("normal_", x, nullptr,
                   [&] { slots::fill_normal(draw.seed, draw.offset, mean, deviation, x); });
}

Tensor cast(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  // Numbers of no floating dtype carry no gradient.
  if (!is_floating(dtype) || !is_floating(x.dtype())) return detail::converted(x.detach(), dtype);
  return apply(Cast{dtype}, x);
}

Tensor to_device(const Tensor& x, Device device) {
  return x.device() == device ? x : apply(ToDevice{device}, x);
}

Tensor contiguous(const Tensor& x, MemoryFormat format) {
  if (x.rank() != 4) format = MemoryFormat::contiguous;
  if (x.format() == format && x.is_dense()) return x;
  return apply(Contiguous{format}, x);
}

Tensor clone(const Tensor& x) { return apply(Contiguous{x.format()}, x); }

Tensor dropout(const Tensor& x, const DropoutOptions& options) {
  CHECK_ARG(options.p >= 0 && options.p <= 1, "dropout: p must be in [0, 1], got ", options.p);
  if (!detail::mode_of_first_run(options.training) || options.p == 0) return x;
  return apply(Dropout{options.p}, x);
}

}  // namespace headroom
