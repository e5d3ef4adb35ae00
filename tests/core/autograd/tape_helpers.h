// What tests of the tape share: leaves, messages of refusals, the bytes in use.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/memory/caching_allocator.h"
#include "core/tensor/tensor.h"
#include "tests/support/message_of.h"

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

using test::message_of;

inline int64_t allocated() { return memory_allocated(Device::cpu()); }

}  // namespace headroom::testing_autograd
