// Elementwise ops: unary, binary with broadcasting, their in-place forms, dropout, casts and
// copies. All take any shape and strides and floating dtypes unless a line says otherwise; results
// are dense, in the memory format of the first operand that has the result's shape. Throw
// InvalidArgument for integers where a line does not allow them, for shapes that do not broadcast,
// and for operands on different devices.
#pragma once

#include "core/ops/params.h"
#include "core/tensor/tensor.h"

namespace headroom {

// y = f(x), in x's dtype. Outside its domain the result is NaN or infinite, as IEEE 754 has it; NaN
// gives NaN. For backward exp, sqrt, relu, sigmoid and tanh keep their output (relu a bit of it
// under SavePolicy::pack), neg, add and mul nothing, the others their input.
Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);  // f32 under autocast
Tensor log(const Tensor& x);  // f32 under autocast
Tensor sqrt(const Tensor& x);
Tensor abs(const Tensor& x);                              // derivative 0 at 0
Tensor relu(const Tensor& x);                             // max(x, 0); derivative 0 at 0
Tensor leaky_relu(const Tensor& x, double slope = 0.01);  // x > 0 ? x : slope * x
Tensor sigmoid(const Tensor& x);                          // 1 / (1 + exp(-x))
Tensor tanh(const Tensor& x);
Tensor silu(const Tensor& x);                  // x * sigmoid(x)
Tensor pow(const Tensor& x, double exponent);  // f32 under autocast
Tensor add(const Tensor& x, double addend);
Tensor mul(const Tensor& x, double factor);

// y = a op b with NumPy's broadcasting; gradients are summed back to their operand's shape and
// dtype. Of two dtypes the wider one wins (f16 with bf16 gives f32).
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  // NaN wins; ties share the gradient in halves
Tensor minimum(const Tensor& a, const Tensor& b);

// In place: x is overwritten, its storage's version rises, and x returns. x keeps its dtype, under
// autocast too; b broadcasts to x, not the reverse. Throws InvalidArgument for a leaf that requires
// a gradient, for a view, and for a tensor that has views, while gradients are recorded; and for an
// operand whose elements lie among x's but not in the same places (a transpose of x).
Tensor& neg_(Tensor& x);
Tensor& exp_(Tensor& x);
Tensor& sqrt_(Tensor& x);
Tensor& relu_(Tensor& x);
Tensor& sigmoid_(Tensor& x);
Tensor& tanh_(Tensor& x);
// These have derivatives that need the input, which is gone. Throw InvalidArgument while x's
// gradient is recorded, leaky_relu_ only for a negative slope: otherwise its output has its input's
// sign.
Tensor& leaky_relu_(Tensor& x, double slope = 0.01);
Tensor& log_(Tensor& x);
Tensor& abs_(Tensor& x);
Tensor& silu_(Tensor& x);
Tensor& pow_(Tensor& x, double exponent);

Tensor& add_(Tensor& x, const Tensor& b);
Tensor& sub_(Tensor& x, const Tensor& b);
Tensor& mul_(Tensor& x, const Tensor& b);
Tensor& div_(Tensor& x, const Tensor& b);
Tensor& add_(Tensor& x, double addend);
Tensor& mul_(Tensor& x, double factor);
// The old x does not reach the result, so its graph gets no gradient through it. Any dtype.
Tensor& fill_(Tensor& x, double value);
Tensor& zero_(Tensor& x);
// x = from converted to x's dtype; any dtypes. Throws InvalidArgument unless shapes and devices are
// equal.
Tensor& copy_(Tensor& x, const Tensor& from);

// y = x converted; x itself if it is of that dtype already. Any dtypes: numbers become integers by
// truncation, out of range the nearest one, NaN 0; integers carry no gradient.
Tensor cast(const Tensor& x, DType dtype);
// Copies between devices, keeping dtype and format; the tensor itself when it is there already. The
// gradient goes the other way. What comes from a meta device is zeros. Throws InvalidArgument
// between two accelerators.
Tensor to_device(const Tensor& x, Device device);
// Dense in the given format; x itself if it is already. Any dtype. A rank other than 4 knows only
// contiguous.
Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::contiguous);
Tensor clone(const Tensor& x);  // a dense copy in x's format; any dtype

struct DropoutOptions {
  double p = 0.5;  // probability of zero; throws InvalidArgument outside [0, 1]
  bool training = true;
};
// y = x * mask / (1 - p). The mask is drawn from default_generator() by logical index, and drawn
// again in backward rather than kept. p = 1 gives zeros, p = 0 or evaluation gives x itself.
Tensor dropout(const Tensor& x, const DropoutOptions& options = {});

// Random fills of an existing tensor, from default_generator(): uniform in [low, high), or normal.
// In place, as fill_. Draws follow the logical index, so devices and memory formats agree.
Tensor& uniform_(Tensor& x, double low = 0, double high = 1);
Tensor& normal_(Tensor& x, double mean = 0, double deviation = 1);

}  // namespace headroom
