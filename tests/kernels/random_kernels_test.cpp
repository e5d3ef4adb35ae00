// Contract of fill_uniform, fill_normal and dropout.
#include "kernels/scalar_ops.h"
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class RandomKernels : public KernelTest {};
HEADROOM_ON_EACH_DEVICE(RandomKernels);

constexpr uint64_t kSeed = 0x1234567890abcdefu;
constexpr uint64_t kOffset = 77;

TEST_P(RandomKernels, UniformFollowsThePhiloxWordOfEachElement) {
  for (const int64_t count : {0, 1, 3, 4, 5, 1027, 40001}) {
    const Tensor y = uninitialised({count});
    slots::fill_uniform(kSeed, kOffset, -0.5, 1.5, y);
    const Values values = values_of(y);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word = philox_word(kSeed, kOffset, static_cast<uint64_t>(i));
      const float expected = static_cast<float>(uniform_draw(word, -0.5, 1.5));
      ASSERT_EQ(values[static_cast<size_t>(i)], static_cast<double>(expected)) << i;
    }
  }
}

TEST_P(RandomKernels, DrawsFollowTheLogicalIndexWhateverTheLayout) {
  const Shape shape{2, 5, 3, 7};
  const Tensor nchw = uninitialised(shape);
  const Tensor nhwc = uninitialised(shape, DType::f32, MemoryFormat::channels_last);
  slots::fill_uniform(kSeed, kOffset, 0, 1, nchw);
  slots::fill_uniform(kSeed, kOffset, 0, 1, nhwc);
  EXPECT_EQ(values_of(nchw), values_of(nhwc));
  slots::fill_normal(kSeed, kOffset, 0, 1, nchw);
  slots::fill_normal(kSeed, kOffset, 0, 1, nhwc);
  EXPECT_EQ(values_of(nchw), values_of(nhwc));
  const Tensor x = full(shape, 1, {DType::f32, device()});
  const Tensor x_last = full(shape, 1, {DType::f32, device(), MemoryFormat::channels_last});
  slots::dropout(0.5, kSeed, kOffset, x, nchw);
  slots::dropout(0.5, kSeed, kOffset, x_last, nhwc);
  EXPECT_EQ(values_of(nchw), values_of(nhwc));
}

TEST_P(RandomKernels, UniformStaysBelowItsBoundInEveryType) {
  for (const DType dtype : dtypes()) {
    const Tensor y = uninitialised({200000}, dtype);
    slots::fill_uniform(kSeed, kOffset, 0, 1, y);
    double sum = 0;
    for (const double value : values_of(y)) {
      ASSERT_GE(value, 0);
      ASSERT_LT(value, 1);
      sum += value;
    }
    EXPECT_NEAR(sum / 200000, 0.5, 0.004) << dtype;
  }
}

TEST_P(RandomKernels, NormalFollowsBoxMuller) {
  for (const DType dtype : dtypes()) {
    const int64_t count = 100001;
    const Tensor y = uninitialised({count}, dtype);
    slots::fill_normal(kSeed, kOffset, 1, 2, y);
    Values expected;
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
      const NormalPair pair = normal_draw(philox_word(kSeed, kOffset, i / 2 * 2),
                                          philox_word(kSeed, kOffset, i / 2 * 2 + 1));
      expected.push_back(1 + 2 * (i % 2 == 0 ? pair.cosine : pair.sine));
      sum += expected.back();
      squares += expected.back() * expected.back();
    }
    expect_near(y, expected, 1, 1);
    const double mean = sum / static_cast<double>(count);
    EXPECT_NEAR(mean, 1, 0.03);
    EXPECT_NEAR(squares / static_cast<double>(count) - mean * mean, 4, 0.1);
  }
}

TEST_P(RandomKernels, DropoutScalesWhatItKeeps) {
  for (const DType dtype : dtypes()) {
    const int64_t count = 50001;
    const Tensor x = tensor(test_values(count, 0.5, 1), {count}, dtype);
    const Tensor y = uninitialised({count}, dtype);
    slots::dropout(0.3, kSeed, kOffset, x, y);
    Values expected = values_of(x);
    int64_t kept = 0;
    for (uint64_t i = 0; i < expected.size(); ++i) {
      const bool keep = uniform_from_bits(philox_word(kSeed, kOffset, i)) >= 0.3;
      expected[i] = keep ? expected[i] / 0.7 : 0;
      kept += keep;
    }
    expect_near(y, expected, 2, 1);
    EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(count), 0.7, 0.01);
    // In place, with the same draw: the same elements survive again.
    slots::dropout(0.3, kSeed, kOffset, x, x);
    EXPECT_EQ(values_of(x), values_of(y));
  }
}

TEST_P(RandomKernels, DropoutOfOneIsExactlyZeroAndOfZeroTheIdentity) {
  const int64_t count = 1000000;
  Values values = test_values(count);
  values[5] = INFINITY;
  const Tensor x = tensor(values, {count}), y = uninitialised({count});
  slots::dropout(1, kSeed, kOffset, x, y);
  EXPECT_EQ(values_of(y), Values(static_cast<size_t>(count), 0));
  slots::dropout(0, kSeed, kOffset, x, y);
  EXPECT_EQ(values_of(y), values_of(x));
}

}  // namespace
}  // namespace headroom
