// Where two floating dtypes meet in an op that is no plain arithmetic, the wider one wins, as it
// does for add; and tensors that change device keep their place in the graph.
#include <gtest/gtest.h>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using testing_kernels::expect_near;
using testing_kernels::KernelTest;
using testing_kernels::test_values;
using testing_kernels::values_of;

class Promotion : public KernelTest {};

TEST_P(Promotion, ConcatJoinsInTheWiderDtypeAndGivesEachPartItsOwnGradient) {
  Tensor half = tensor({1.5, 2}, {1, 2}, DType::f16).set_requires_grad(true);
  Tensor brain = tensor({3, 4}, {1, 2}, DType::bf16).set_requires_grad(true);
  Tensor single = tensor({0.1, 0.2}, {1, 2}).set_requires_grad(true);
  EXPECT_EQ(concat({half, brain}, 0).dtype(), DType::f32);
  const Tensor y = concat({half, single}, 0);
  EXPECT_EQ(y.dtype(), DType::f32);
  expect_near(y, {1.5, 2, 0.1, 0.2});
  backward(sum(mul(y, y)));
  expect_near(half.grad(), {3, 4});
  expect_near(single.grad(), {0.2, 0.4});
}

// Under autocast a block's convolution is half while its skip may still be f32.
TEST_P(Promotion, BatchNormAddsAResidualOfAnotherDtypeAsSeparateOpsWould) {
  const Shape shape = {2, 3, 4, 4};
  const auto run = [&](bool fused) {
    Tensor x = tensor(test_values(96), shape, DType::f16, MemoryFormat::channels_last);
    Tensor skip = tensor(test_values(96, -1, 1, 2), shape, DType::f32, MemoryFormat::channels_last);
    x.set_requires_grad(true);
    skip.set_requires_grad(true);
    BatchNormOptions options;
    options.relu = fused;
    Tensor y =
        fused ? batch_norm(x, {}, options, skip) : relu(add(batch_norm(x, {}, options), skip));
    EXPECT_EQ(y.dtype(), DType::f32);
    backward(sum(mul(y, y)));
    return std::vector{values_of(y), values_of(x.grad()), values_of(skip.grad())};
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_P(Promotion, ATensorTakenToAnotherDeviceSendsItsGradientBack) {
  Tensor x = from_vector(std::vector<float>{1, 2, 3}, {3}).set_requires_grad(true);
  const Tensor there = to_device(x, device());
  backward(sum(mul(there, there)));
  EXPECT_EQ(x.grad().device(), Device::cpu());
  expect_near(x.grad(), {2, 4, 6});
  x.set_grad({});
  const Tensor meta = to_device(x, Device::meta(DeviceType::cpu));
  EXPECT_TRUE(meta.requires_grad());
  backward(sum(meta));
  expect_near(x.grad(), {0, 0, 0});  // as all that is read from a meta device
}

HEADROOM_ON_EACH_DEVICE(Promotion);

}  // namespace
}  // namespace headroom
