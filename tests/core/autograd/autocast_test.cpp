// Autocast: which op runs in which precision, and what happens to the casts of weights.
#include <gtest/gtest.h>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

int64_t allocated() { return memory_allocated(Device::cpu()); }

int64_t cast_copies() {
  return allocator_of(Device::cpu()).stats().current_by_tag[static_cast<size_t>(Tag::cast_copy)];
}

Tensor parameter(const Shape& shape, double value) {
  Tensor w = full(shape, value);
  w.set_requires_grad(true);
  return w;
}

TEST(Autocast, RunsProductsInHalf) {
  const Tensor x = ones({2, 4}), w = ones({4, 4}), image = ones({1, 2, 4, 4});
  for (const DType half : {DType::f16, DType::bf16}) {
    const Autocast region(half);
    EXPECT_EQ(linear(x, w).dtype(), half);
    EXPECT_EQ(matmul(x, w).dtype(), half);
    EXPECT_EQ(conv2d(image, ones({3, 2, 1, 1})).dtype(), half);
    EXPECT_EQ(linear(cast(x, half), w).dtype(), half);
  }
  EXPECT_EQ(linear(x, w).dtype(), DType::f32);
}

TEST(Autocast, RunsWhatNeedsRangeInF32) {
  const Tensor x = full({2, 4}, 0.5, {DType::f16});
  const Tensor labels = zeros({2}, {DType::i64});
  const Autocast region(DType::f16);
  for (const Tensor& y : {exp(x), log(x), pow(x, 2), softmax(x), log_softmax(x), sum(x), mean(x),
                          mse_loss(x, x), cross_entropy(x, labels)}) {
    EXPECT_EQ(y.dtype(), DType::f32) << y.describe();
  }
}

TEST(Autocast, LeavesOtherOpsAsTheyComeAndTheWiderTypeWins) {
  const Tensor half = ones({4}, {DType::f16}), full_width = ones({4});
  const Autocast region(DType::f16);
  EXPECT_EQ(relu(half).dtype(), DType::f16);
  EXPECT_EQ(add(half, half).dtype(), DType::f16);
  EXPECT_EQ(add(half, full_width).dtype(), DType::f32);
  EXPECT_EQ(relu(full_width).dtype(), DType::f32);
}

TEST(Autocast, LeavesF64AndIntegersAlone) {
  const Tensor x = ones({2, 2}, {DType::f64});
  const Autocast region(DType::f16);
  EXPECT_EQ(matmul(x, x).dtype(), DType::f64);
  EXPECT_EQ(autocast::to_half(zeros({2}, {DType::i64})).dtype(), DType::i64);
  EXPECT_FALSE(autocast::to_half(Tensor()).defined());
}

TEST(Autocast, RefusesATypeThatIsNotHalf) {
  EXPECT_THROW(Autocast region(DType::f32), InvalidArgument);
  EXPECT_FALSE(autocast_state().enabled);
}

TEST(Autocast, NestsAndMakesIslands) {
  const Tensor x = ones({2, 2});
  const Autocast outer(DType::f16);
  {
    const Autocast island(DType::f16, false);
    EXPECT_EQ(matmul(x, x).dtype(), DType::f32);
    {
      const Autocast inner(DType::bf16);
      EXPECT_EQ(matmul(x, x).dtype(), DType::bf16);
    }
    EXPECT_EQ(matmul(x, x).dtype(), DType::f32);
  }
  EXPECT_EQ(matmul(x, x).dtype(), DType::f16);
}

TEST(Autocast, BackwardAfterTheRegionKeepsNoCopyOfTheWeight) {
  Tensor w = parameter({256, 256}, 0.01);
  Tensor x = parameter({4, 256}, 1);
  Tensor y;
  const int64_t before = cast_copies();
  {
    const Autocast region(DType::f16);
    y = linear(mul(x, 1), w);
  }
  EXPECT_EQ(cast_copies(), before) << "the tape keeps the recipe, not the copy";
  backward(sum(cast(y, DType::f32)));
  EXPECT_EQ(cast_copies(), before);
  EXPECT_NEAR(x.grad().to_vector<float>()[0], 2.56, 0.01);
}

TEST(Autocast, AWeightWrittenBeforeBackwardIsNoticed) {
  Tensor w = parameter({4, 4}, 1), x = parameter({4, 4}, 1);
  Tensor y;
  {
    const Autocast region(DType::f16);
    y = linear(mul(x, 1), w);
  }
  {
    const NoGrad no_grad;
    fill_(w, 2);
  }
  try {
    backward(sum(cast(y, DType::f32)));
    FAIL() << "not noticed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("f32[4,4]"), std::string::npos) << error.what();
  }
}

TEST(Autocast, AWeightWrittenInsideTheRegionIsCastAnew) {
  Tensor w = parameter({1, 1}, 2);
  const Tensor x = full({1, 1}, 3);
  const Autocast region(DType::f16);
  const NoGrad no_grad;
  EXPECT_EQ(linear(x, w).item(), 6);
  fill_(w, 5);
  EXPECT_EQ(linear(x, w).item(), 15);
  const Autocast other(DType::bf16);
  EXPECT_EQ(linear(x, w).dtype(), DType::bf16);
}

TEST(Autocast, UsesAnOptimizersHalfCopyAndRefreshesAStaleOne) {
  Tensor w = parameter({64, 64}, 2);
  w.set_half_copy(cast(w.detach(), DType::f16));
  w.mark_half_copy_current();
  const Tensor x = ones({1, 64});
  const int64_t before = allocated();
  const Autocast region(DType::f16);
  {
    const NoGrad no_grad;
    Tensor half = w.half_copy();
    EXPECT_EQ(linear(x, w).to_vector<float>()[0], 128);
    EXPECT_EQ(allocated(), before) << "a cast was made although a copy is kept";
    fill_(w, 3);  // by hand, not by the optimizer
    EXPECT_EQ(linear(x, w).to_vector<float>()[0], 192);
    EXPECT_TRUE(w.half_copy_is_current());
    EXPECT_EQ(half.to_vector<float>()[0], 3);
  }
  backward(sum(linear(x, w)));
  EXPECT_EQ(w.grad().to_vector<float>()[0], 1);
  const Autocast other(DType::bf16);
  EXPECT_EQ(linear(x, w).dtype(), DType::bf16) << "the copy is of another type";
}

TEST(Autocast, GradientsOfSeveralUsesMeetInF32) {
  Tensor w = parameter({1, 1}, 1);
  Tensor loss;
  {
    const Autocast region(DType::f16);
    // 2048 + 1 + 1 + 1 is 2048 if it is summed in f16.
    loss = sum(linear(full({1, 1}, 2048), w));
    for (int i = 0; i < 3; ++i) loss = add(loss, sum(linear(ones({1, 1}), w)));
  }
  backward(loss);
  EXPECT_EQ(w.grad().item(), 2051);
}

TEST(Autocast, BiasGradientsAreSummedInTheBiasesType) {
  Tensor w = parameter({1, 1}, 1), b = parameter({1}, 0);
  Tensor loss;
  {
    const Autocast region(DType::f16);
    loss = sum(linear(ones({4096, 1}), w, b));
  }
  backward(loss);
  EXPECT_EQ(b.grad().dtype(), DType::f32);
  EXPECT_EQ(b.grad().item(), 4096);
}

}  // namespace
}  // namespace headroom
