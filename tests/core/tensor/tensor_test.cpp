// Tensor handles: attributes, reading, relabelling, gradients of leaves.
#include <gtest/gtest.h>

#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"

namespace headroom {
namespace {

constexpr MemoryFormat kNchw = MemoryFormat::contiguous, kNhwc = MemoryFormat::channels_last;
using Floats = std::vector<float>;

Floats counting(int64_t count) {
  Floats out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<float>(i));
  return out;
}

TEST(Tensor, AnUndefinedOneRefusesEveryQuestion) {
  const Tensor none;
  EXPECT_FALSE(none.defined());
  EXPECT_FALSE(none.view().defined);
  EXPECT_THROW(none.shape(), InvalidArgument);
  EXPECT_THROW(none.item(), InvalidArgument);
  EXPECT_THROW(none.detach(), InvalidArgument);
  EXPECT_THROW(none.requires_grad(), InvalidArgument);
}

TEST(Tensor, DescribesTypeShapeAndFormat) {
  EXPECT_EQ(empty({8, 3, 4, 4}, {DType::f16, Device::cpu(), kNhwc}).describe(),
            "f16[8,3,4,4] nhwc");
  EXPECT_EQ(empty({5}, {DType::i64}).describe(), "i64[5]");
  EXPECT_EQ(empty({}).describe(), "f32[]");
}

TEST(Tensor, FormatsOfOtherRanksAreContiguous) {
  EXPECT_EQ(empty({2, 3}, {DType::f32, Device::cpu(), kNhwc}).format(), kNchw);
}

TEST(Tensor, CopyingCopiesTheHandle) {
  Tensor x = zeros({2});
  Tensor y = x;
  EXPECT_FALSE(x.is_unique());
  fill_(y, 5);
  EXPECT_EQ(x.to_vector<float>(), (Floats{5, 5}));
  y = {};
  EXPECT_TRUE(x.is_unique());
  const Tensor alias = x.detach();
  EXPECT_FALSE(x.is_unique()) << "another tensor looks at the storage";
}

TEST(Tensor, ReadsInLogicalOrderWhateverTheLayout) {
  const Floats values = counting(24);
  for (const MemoryFormat format : {kNchw, kNhwc}) {
    const Tensor x = from_vector(values, {1, 2, 3, 4}, {DType::f32, Device::cpu(), format});
    EXPECT_EQ(x.format(), format);
    EXPECT_TRUE(x.is_dense());
    EXPECT_EQ(x.to_vector<float>(), values);
    EXPECT_EQ(permute(x, {0, 2, 3, 1}).to_vector<float>()[1], values[12]);
  }
  // The bytes themselves do lie in another order.
  const Tensor nhwc = from_vector(values, {1, 2, 3, 4}, {DType::f32, Device::cpu(), kNhwc});
  EXPECT_EQ(nhwc.view().as<float>()[1], 12.0f);
}

TEST(Tensor, ConvertsWhenItIsMadeAndRead) {
  const Tensor half = from_vector(Floats{1, 2049, 70000}, {3}, {DType::f16});
  EXPECT_EQ(half.to_vector<float>()[1], 2048.0f);
  EXPECT_TRUE(std::isinf(half.to_vector<float>()[2]));
  const Tensor ints = from_vector(std::vector<double>{3.9, -2.9}, {2}, {DType::i64});
  EXPECT_EQ(ints.to_vector<int64_t>(), (std::vector<int64_t>{3, -2}));
  EXPECT_EQ(ints.to_vector<double>(), (std::vector<double>{3, -2}));
  EXPECT_EQ(from_vector(std::vector<uint8_t>{200}, {1}, {DType::f32}).item(), 200.0);
  EXPECT_EQ(from_vector(std::vector<Half>{Half(0.5f)}, {}, {DType::f64}).item(), 0.5);
}

TEST(Tensor, ItemIsExactForLargeCountersAndRefusesMoreThanOneElement) {
  const int64_t large = (int64_t{1} << 53) - 1;
  EXPECT_EQ(from_vector(std::vector<int64_t>{large}, {}, {DType::i64}).item(),
            static_cast<double>(large));
  EXPECT_EQ(scalar(0.1, {DType::f64}).item(), 0.1);
  EXPECT_EQ(full({1, 1, 1}, 3).item(), 3.0);
  EXPECT_THROW(zeros({2}).item(), InvalidArgument);
  EXPECT_THROW(zeros({0}).item(), InvalidArgument);
}

TEST(Tensor, FromVectorRefusesACountThatDoesNotFit) {
  EXPECT_THROW(from_vector(Floats{1, 2, 3}, {2, 2}), InvalidArgument);
  EXPECT_THROW(from_vector(Floats{}, {}), InvalidArgument);
  EXPECT_EQ(from_vector(Floats{}, {0, 4}).numel(), 0);
}

TEST(Tensor, OfAMetaDeviceReadsAsZeros) {
  const Tensor x = from_vector(Floats{1, 2}, {2}, {DType::f32, Device::meta(DeviceType::cuda)});
  EXPECT_EQ(x.to_vector<float>(), (Floats{0, 0}));
}

TEST(Tensor, DenseInRelabelsWhereStridesFitBothFormats) {
  // One channel, or maps of one pixel: both orders are the same bytes.
  for (const Shape& shape : {Shape{2, 1, 3, 4}, Shape{2, 5, 1, 1}}) {
    const Tensor x = from_vector(counting(numel_of(shape)), shape);
    const Tensor y = detail::dense_in(x, kNhwc);
    EXPECT_EQ(y.format(), kNhwc);
    EXPECT_EQ(y.storage(), x.storage()) << "copied " << x.describe();
    EXPECT_EQ(y.strides(), dense_strides(shape, kNhwc));
    EXPECT_EQ(y.to_vector<float>(), x.to_vector<float>());
  }
}

TEST(Tensor, DenseInCopiesWhereTheyDoNot) {
  const Tensor x = from_vector(counting(24), {1, 2, 3, 4});
  const Tensor y = detail::dense_in(x, kNhwc);
  EXPECT_NE(y.storage(), x.storage());
  EXPECT_EQ(y.to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(detail::dense_in(x, kNchw).impl(), x.impl());
  // A rank without channels knows one order only.
  const Tensor matrix = from_vector(counting(6), {2, 3});
  EXPECT_EQ(detail::dense_in(matrix, kNhwc).impl(), matrix.impl());
  EXPECT_NE(detail::dense_in(transpose(matrix, 0, 1), kNchw).storage(), matrix.storage());
}

TEST(Tensor, ViewsOfPartsAreDenseOnlyWithoutGaps) {
  const Tensor x = from_vector(counting(12), {3, 4});
  EXPECT_TRUE(slice(x, 0, 1, 3).is_dense());
  EXPECT_EQ(slice(x, 0, 1, 3).storage_offset(), 4);
  EXPECT_FALSE(slice(x, 1, 0, 2).is_dense());
  EXPECT_FALSE(expand(zeros({1, 4}), {3, 4}).is_dense());
}

TEST(Tensor, OnlyFloatingLeavesTakeAGradient) {
  Tensor ints = zeros({2}, {DType::i64});
  EXPECT_THROW(ints.set_requires_grad(true), InvalidArgument);
  Tensor x = ones({2});
  x.set_requires_grad(true);
  Tensor y = mul(x, 2);
  EXPECT_FALSE(y.is_leaf());
  EXPECT_TRUE(y.requires_grad());
  EXPECT_THROW(y.set_requires_grad(true), InvalidArgument);
  EXPECT_TRUE(y.detach().is_leaf());
  EXPECT_FALSE(y.detach().requires_grad());
}

TEST(Tensor, GradientsAreF32ForHalfLeavesAndF64ForF64) {
  for (const auto& [dtype, wanted] :
       {std::pair{DType::f16, DType::f32}, std::pair{DType::f64, DType::f64}}) {
    Tensor x = ones({3}, {dtype});
    x.set_requires_grad(true);
    backward(sum(mul(x, 3)));
    EXPECT_EQ(x.grad().dtype(), wanted);
    EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{3, 3, 3}));
  }
}

TEST(Tensor, SetGradTakesWhatFitsAndNothingElse) {
  Tensor x = zeros({2, 3});
  EXPECT_THROW(x.set_grad(zeros({2, 3})), InvalidArgument) << "no gradient is wanted";
  x.set_requires_grad(true);
  EXPECT_THROW(x.set_grad(zeros({3, 2})), InvalidArgument);
  EXPECT_THROW(x.set_grad(zeros({2, 3}, {DType::i64})), InvalidArgument);
  EXPECT_THROW(x.set_grad(zeros({2, 3}, {DType::f32, Device::meta(DeviceType::cpu)})),
               InvalidArgument);
  x.set_grad(ones({2, 3}));
  EXPECT_EQ(x.grad().to_vector<float>(), Floats(6, 1));
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
}

TEST(Tensor, AnExpandedGradientThatIsSetIsAddedToElementByElement) {
  Tensor x = zeros({4});
  x.set_requires_grad(true);
  x.set_grad(expand(full({1}, 10), {4}));
  backward(sum(x));
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{11, 11, 11, 11}));
}

TEST(Tensor, HalfCopyHasToMatchAndGoesStaleWithAWrite) {
  Tensor w = ones({4, 4});
  EXPECT_THROW(w.set_half_copy(zeros({4, 4})), InvalidArgument);
  EXPECT_THROW(w.set_half_copy(zeros({4}, {DType::f16})), InvalidArgument);
  w.set_half_copy(cast(w, DType::f16));
  EXPECT_FALSE(w.half_copy_is_current()) << "nobody said that it holds the contents";
  w.mark_half_copy_current();
  EXPECT_TRUE(w.half_copy_is_current());
  fill_(w, 2);
  EXPECT_FALSE(w.half_copy_is_current());
  w.set_half_copy({});
  EXPECT_FALSE(w.half_copy().defined());
  EXPECT_FALSE(w.half_copy_is_current());
}

TEST(Tensor, MovesBetweenTheCpuAndMetaButBringsNothingBack) {
  const Tensor x = from_vector(counting(4), {2, 2});
  const Device meta = Device::meta(DeviceType::cpu);
  const Tensor there = to_device(x, meta);
  EXPECT_EQ(there.device(), meta);
  EXPECT_EQ(there.shape(), x.shape());
  EXPECT_EQ(to_device(x, Device::cpu()).impl(), x.impl());
  EXPECT_THROW(add(x, there), InvalidArgument);
}

TEST(Generator, DrawsTheSameAfterTheStateIsPutBack) {
  manual_seed(11);
  const GeneratorState start = default_generator().state();
  Tensor a = empty({100}), b = empty({100}), c = empty({100});
  uniform_(a);
  uniform_(b);
  default_generator().set_state(start);
  uniform_(c);
  EXPECT_EQ(a.to_vector<float>(), c.to_vector<float>());
  EXPECT_NE(a.to_vector<float>(), b.to_vector<float>());
}

TEST(Generator, DrawsDoNotDependOnTheLayout) {
  Tensor a = empty({2, 3, 4, 5}), b = empty({2, 3, 4, 5}, {DType::f32, Device::cpu(), kNhwc});
  manual_seed(5);
  normal_(a);
  manual_seed(5);
  normal_(b);
  EXPECT_EQ(a.to_vector<float>(), b.to_vector<float>());
}

}  // namespace
}  // namespace headroom
