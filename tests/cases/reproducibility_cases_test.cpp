// Section M: deterministic mode means the same bits.
#include <gtest/gtest.h>

#include <vector>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

class ReproducibilityCase : public CaseTest {
 protected:
  Tensor random(const Shape& shape, uint64_t seed, double deviation, DType dtype,
                MemoryFormat format) const {
    Tensor out = empty(shape, {dtype, device(), format});
    manual_seed(seed);
    normal_(out, 0, deviation);
    return out;
  }
};
HEADROOM_CASES(ReproducibilityCase);

// Gradients of a strided convolution, overlapping pools and cross entropy. Large enough that a GPU
// spreads every sum over many blocks.
TEST_P(ReproducibilityCase, O62_DeterministicModeMeansBitwise) {
  settings().deterministic = true;
  constexpr int64_t kImages = 16, kSide = 33, kChannels = 64, kClasses = 10;
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < kImages; ++i) targets.push_back(i % kClasses);
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const MemoryFormat format : testing_kernels::kFormats) {
      const auto step = [&] {
        std::vector<Tensor> leaves = {
            random({kImages, 8, kSide, kSide}, 1, 1, dtype, format),
            random({kChannels, 8, 3, 3}, 2, 0.1, dtype, format),
            random({kChannels}, 3, 1, dtype, MemoryFormat::contiguous),
            random({kClasses, kChannels}, 4, 0.1, dtype, MemoryFormat::contiguous)};
        for (Tensor& leaf : leaves) leaf.set_requires_grad(true);
        Tensor y = conv2d(leaves[0], leaves[1], leaves[2], {.stride = {2, 2}, .padding = {1, 1}});
        // Overlapping windows: several send a gradient to the same element.
        y = max_pool2d(y, {.kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}});
        y = avg_pool2d(y, {.kernel = {3, 3}, .stride = {{2, 2}}});
        y = global_avg_pool2d(y);
        const Tensor loss = cross_entropy(linear(flatten(y, 1), leaves[3]), labels(targets));
        backward(loss);
        std::vector<Values> out = {values_of(loss)};
        for (const Tensor& leaf : leaves) out.push_back(values_of(leaf.grad()));
        return out;
      };
      const std::vector<Values> first = step();
      ASSERT_EQ(first.size(), 5u);
      for (const Values& gradient : first) {
        EXPECT_GT(*std::max_element(gradient.begin(), gradient.end()), 0.0);
      }
      for (int i = 1; i < 20; ++i) {
        EXPECT_TRUE(step() == first) << "repetition " << i << ", " << name_of(dtype)
                                     << (format == MemoryFormat::contiguous ? " nchw" : " nhwc");
      }
    }
  }
}

}  // namespace
}  // namespace headroom::cases
