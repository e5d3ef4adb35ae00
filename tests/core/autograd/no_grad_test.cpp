// NoGrad: what it leaves out, and for whom.
#include <gtest/gtest.h>

#include <thread>

#include "core/autograd/autograd.h"
#include "core/ops/contract.h"
#include "core/ops/ops.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

Tensor leaf(const Floats& values) {
  Tensor x = from_vector(values, {static_cast<int64_t>(values.size())});
  x.set_requires_grad(true);
  return x;
}

int64_t allocated() { return memory_allocated(Device::cpu()); }

TEST(NoGrad, RecordsAndKeepsNothing) {
  Tensor x = leaf(Floats(1 << 16, 1));
  const int64_t before = allocated();
  {
    const NoGrad no_grad;
    EXPECT_FALSE(grad_enabled());
    Tensor y = x;
    for (int i = 0; i < 10; ++i) y = sigmoid(y);
    EXPECT_FALSE(y.requires_grad());
    EXPECT_EQ(allocated() - before, 4 << 16);
    {
      const EnableGrad enable;
      EXPECT_TRUE(mul(x, 2).requires_grad());
    }
    EXPECT_FALSE(mul(x, 2).requires_grad());
  }
  EXPECT_TRUE(grad_enabled());
}

TEST(NoGrad, HoldsForItsThreadAlone) {
  const NoGrad no_grad;
  bool other = false;
  std::thread([&] { other = grad_enabled(); }).join();
  EXPECT_TRUE(other);
}

TEST(NoGrad, BackwardRunsUnderItAndBelowIt) {
  Tensor x = leaf({2});
  const Tensor y = mul(x, x);
  const NoGrad no_grad;
  backward(y);
  EXPECT_EQ(x.grad().item(), 4);
  EXPECT_FALSE(x.grad().requires_grad());
}

}  // namespace
}  // namespace headroom
