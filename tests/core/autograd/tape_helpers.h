// What tests of the tape share: leaves, messages of refusals, the bytes in use.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/memory/caching_allocator.h"
#include "core/tensor/tensor.h"

namespace headroom::testing_autograd {

using Floats = std::vector<float>;

inline Tensor leaf(const Floats& values, const Shape& shape) {
  Tensor x = from_vector(values, shape);
  x.set_requires_grad(true);
  return x;
}
inline Tensor leaf(const Floats& values) {
  return leaf(values, {static_cast<int64_t>(values.size())});
}

inline std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline int64_t allocated() { return memory_allocated(Device::cpu()); }

}  // namespace headroom::testing_autograd
