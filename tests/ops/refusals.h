// Calls that ops must refuse, as data: which op, what its message says, and the call.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"

namespace headroom::testing_ops {

struct Refusal {
  std::string name;      // of the case
  std::string op;        // how the message begins, before the colon
  std::string mentions;  // what it also says
  std::function<void()> call;
};

inline const Device kElsewhere = Device::meta(DeviceType::cuda);

inline Tensor f32(const Shape& shape) { return ones(shape); }
inline Tensor f16(const Shape& shape) { return ones(shape, {DType::f16}); }
inline Tensor i64(const Shape& shape) { return zeros(shape, {DType::i64}); }
inline Tensor away(const Shape& shape) { return ones(shape, {DType::f32, kElsewhere}); }
inline Tensor leaf(const Shape& shape) { return ones(shape).set_requires_grad(true); }
inline Tensor made(const Shape& shape) { return mul(leaf(shape), 1.); }  // its gradient is recorded

// A call on a tensor that is made when the call is. The lists hold no tensors: they outlive tests.
template <class Fn>
std::function<void()> on(Tensor (*make)(const Shape&), const Shape& shape, Fn fn) {
  return [make, shape, fn] {
    Tensor x = make(shape);
    fn(x);
  };
}

std::vector<Refusal> shape_refusals();  // shapes, axes, windows, labels
std::vector<Refusal> value_refusals();  // options out of range, in-place ops where they may not be
std::vector<Refusal> dtype_refusals();
std::vector<Refusal> device_refusals();

}  // namespace headroom::testing_ops
