// SavePolicy::pack: relu keeps one bit per element, and gradients stay what they were.
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using testing_kernels::KernelTest;
using testing_kernels::kFormats;
using testing_kernels::test_values;
using testing_kernels::Values;
using testing_kernels::values_of;

class Pack : public KernelTest {
 protected:
  // The gradient of x in y = relu(2 x) * w, out of place or in place.
  Values gradient(SavePolicy policy, const Values& values, const Shape& shape, DType dtype,
                  MemoryFormat format, bool in_place) const {
    Tensor x = tensor(values, shape, dtype, format).set_requires_grad(true);
    const Tensor w = tensor(test_values(numel_of(shape), -1, 1, 9), shape, dtype, format);
    const SavePolicyScope scope(policy);
    Tensor h = mul(x, 2);
    const Tensor y = in_place ? relu_(h) : relu(h);
    backward(sum(mul(y, w)));
    return values_of(x.grad());
  }
};

TEST_P(Pack, GivesTheGradientsOfKeptOutputsForEverySizeTypeAndLayout) {
  for (const DType dtype : dtypes()) {
    for (const MemoryFormat format : kFormats) {
      for (const Shape& shape :
           {Shape{1, 1, 1, 1}, Shape{2, 3, 5, 7}, Shape{1, 8, 3, 1}, Shape{3, 17, 11, 13}}) {
        for (const bool in_place : {false, true}) {
          const Values values = test_values(numel_of(shape));
          EXPECT_EQ(gradient(SavePolicy::pack, values, shape, dtype, format, in_place),
                    gradient(SavePolicy::keep, values, shape, dtype, format, in_place))
              << name_of(dtype) << " " << numel_of(shape);
        }
      }
    }
  }
}

TEST_P(Pack, TreatsZeroNanAndInfinityAsReluDoes) {
  const Values values = {0.0, -0.0, NAN, INFINITY, -INFINITY, 1e-30, -1e-30, 3, -3};
  const Values packed =
      gradient(SavePolicy::pack, values, {9}, DType::f32, MemoryFormat::contiguous, false);
  const Values kept =
      gradient(SavePolicy::keep, values, {9}, DType::f32, MemoryFormat::contiguous, false);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(packed[i], kept[i]) << values[i];
}

TEST_P(Pack, TakesAnEmptyTensorAndAnExpandedGradient) {
  const SavePolicyScope scope(SavePolicy::pack);
  Tensor nothing = tensor({}, {0, 3}).set_requires_grad(true);
  backward(sum(relu(nothing)));
  EXPECT_EQ(nothing.grad().numel(), 0);
  Tensor x = tensor({-1, 2, 3, -4}, {2, 2}).set_requires_grad(true);
  backward(sum(relu(x)));  // the gradient of sum has strides of 0
  EXPECT_EQ(values_of(x.grad()), (Values{0, 1, 1, 0}));
}

// One bit for 32: what is kept of a chain whose outputs nobody else keeps.
TEST_P(Pack, KeepsABitPerElement) {
  constexpr int64_t kElements = 1 << 20;
  const Device meta = Device::meta(GetParam());
  for (const Device where : {device(), meta}) {
    Tensor x = zeros({kElements}, {DType::f32, where}).set_requires_grad(true);
    const auto kept = [&](SavePolicy policy) {
      const SavePolicyScope scope(policy);
      const int64_t before = memory_allocated(where);
      const Tensor y = sum(relu(mul(x, 2)));
      return memory_allocated(where) - before;
    };
    const int64_t scalars = 2 * 512;
    EXPECT_GE(kept(SavePolicy::keep), kElements * 4);
    EXPECT_LE(kept(SavePolicy::pack), kElements / 8 + scalars);
  }
}

// In place after the mask was taken: the mask holds, so nothing refuses it.
TEST_P(Pack, LetsTheOutputBeWrittenAfterwards) {
  Tensor x = tensor({-1, 2}, {2}).set_requires_grad(true);
  const SavePolicyScope scope(SavePolicy::pack);
  Tensor h = mul(x, 1);
  relu_(h);
  add_(h, tensor({5, -3}, {2}));
  backward(sum(h));
  EXPECT_EQ(values_of(x.grad()), (Values{0, 1}));
}

HEADROOM_ON_EACH_DEVICE(Pack);

}  // namespace
}  // namespace headroom
