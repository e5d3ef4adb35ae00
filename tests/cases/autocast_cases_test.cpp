// O14 to O17: autocast regions, and reductions whose values leave the range or the digits of their
// type.
#include <algorithm>
#include <cmath>
#include <functional>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "optim/optimizer.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

class AutocastCases : public CaseTest {};
HEADROOM_CASES(AutocastCases);

TEST_P(AutocastCases, O14_ValidationBeforeTrainingInsideOneAutocastRegion) {
  using Forward = std::function<Tensor(const Tensor&, const Tensor&)>;
  const Forward forwards[] = {
      [](const Tensor& x, const Tensor& w) { return linear(x, w); },
      [](const Tensor& x, const Tensor& w) { return matmul(x, w); },
  };
  for (const DType half : {DType::f16, DType::bf16}) {
    for (const Forward& forward : forwards) {
      Tensor w = leaf({2}, {1, 1});
      const Tensor x = tensor({3}, {1, 1});
      Tensor loss;
      {
        const Autocast region(half);
        {
          const NoGrad no_grad;
          const Tensor y = forward(x, w);
          EXPECT_EQ(y.item(), 6);
          EXPECT_FALSE(y.requires_grad());
        }
        loss = sum(forward(x, w));
      }
      backward(loss);
      expect_values(w.grad(), {3});
      EXPECT_EQ(w.grad().dtype(), DType::f32);
    }
  }
}

TEST_P(AutocastCases, O14_ConvolutionsInBothLayoutsAndSeveralPassesToo) {
  for (const MemoryFormat format : testing_kernels::kFormats) {
    Tensor w = leaf({2}, {1, 1, 1, 1}, DType::f32, format);
    const Tensor x = tensor({3, 4}, {1, 1, 1, 2}, DType::f32, format);
    Tensor loss;
    {
      const Autocast region(DType::f16);
      for (int i = 0; i < 2; ++i) {
        const NoGrad no_grad;
        expect_values(conv2d(x, w), {6, 8});
      }
      loss = add(sum(conv2d(x, w)), sum(conv2d(x, w)));
    }
    backward(loss);
    expect_values(w.grad(), {14});
    EXPECT_EQ(w.grad().dtype(), DType::f32);
  }
}

TEST_P(AutocastCases, O14_WithAnOptimizersHalfCopiesToo) {
  Tensor w = leaf({2}, {1, 1});
  const Tensor x = tensor({3}, {1, 1});
  Sgd optimizer({{.parameters = {w}}}, {.lr = 1});
  optimizer.keep_half_copies(DType::f16);
  for (const double expected : {2.0, -1.0, -4.0}) {
    Tensor loss;
    {
      const Autocast region(DType::f16);
      {
        const NoGrad no_grad;
        EXPECT_EQ(linear(x, w).item(), 3 * expected);
      }
      loss = sum(linear(x, w));
    }
    backward(loss);
    expect_values(w.grad(), {3});
    optimizer.step();
    optimizer.zero_grad();
  }
}

// A checkpointed block runs its first forward without a graph by itself, and its second after the
// region was left.
TEST_P(AutocastCases, O14_CheckpointedBlocksAfterAValidationToo) {
  Tensor w = leaf({2}, {1, 1}), x = leaf({3}, {1, 1});
  const auto block = [&](const Tensor& in) { return relu(linear(in, w)); };
  Tensor loss;
  {
    const Autocast region(DType::f16);
    {
      const NoGrad no_grad;
      EXPECT_EQ(block(x).item(), 6);
    }
    const Tensor y = add(checkpoint(block, x), block(x));
    EXPECT_EQ(y.dtype(), DType::f16);
    loss = sum(y);
  }
  backward(loss);
  expect_values(w.grad(), {6});
  expect_values(x.grad(), {4});
}

TEST_P(AutocastCases, O15_TheWeightCacheIsBoundedAndReleased) {
  for (const Device place :
       {device(), Device::meta(DeviceType::cpu), Device::meta(DeviceType::cuda)}) {
    for (const bool wants_grad : {true, false}) {
      Tensor w = full({1024, 1024}, 0.01, {DType::f32, place});
      Tensor b = zeros({1024}, {DType::f32, place});
      w.set_requires_grad(wants_grad);
      b.set_requires_grad(wants_grad);
      const Tensor x = ones({1, 1024}, {DType::f32, place});
      const int64_t before = memory_allocated(place);
      {
        const Autocast region(DType::f16);
        const NoGrad no_grad;
        linear(x, w, b);
        linear(x, w, b);
        const int64_t after_second = memory_allocated(place);
        for (int i = 2; i < 50; ++i) linear(x, w, b);
        EXPECT_EQ(memory_allocated(place), after_second) << place;
        EXPECT_GE(after_second, before);
        EXPECT_LE(after_second - before, 2'097'152 + 2'048);
        {
          const Autocast inner(DType::f16);
          linear(x, w, b);
        }
        EXPECT_EQ(memory_allocated(place), after_second)
            << "an inner region emptied or doubled the cache of " << place;
      }
      EXPECT_EQ(memory_allocated(place), before) << place;
    }
  }
}

// The same with a graph: it keeps how to make the copy, not the copy.
TEST_P(AutocastCases, O15_ForwardsWithAGraphToo) {
  for (const Device place :
       {device(), Device::meta(DeviceType::cpu), Device::meta(DeviceType::cuda)}) {
    Tensor w = full({256, 256}, 0.01, {DType::f32, place});
    w.set_requires_grad(true);
    const Tensor x = ones({1, 256}, {DType::f32, place});
    const int64_t before = memory_allocated(place);
    std::vector<Tensor> kept;
    {
      const Autocast region(DType::f16);
      linear(x, w);
      const int64_t after_first = memory_allocated(place);
      for (int i = 1; i < 50; ++i) linear(x, w);
      EXPECT_EQ(memory_allocated(place), after_first) << place;
      EXPECT_LE(after_first - before, 2 * 256 * 256) << place;
      for (int i = 0; i < 2; ++i) kept.push_back(linear(x, w));
    }
    // What is left are two outputs of 512 bytes and the half inputs that their graphs hold.
    EXPECT_LE(memory_allocated(place) - before, 4 * kMinBlockBytes) << place;
    kept.clear();
    EXPECT_EQ(memory_allocated(place), before) << place;
  }
}

TEST_P(AutocastCases, O16_SumAndMeanOfManyHalves) {
  for (const DType half : {DType::f16, DType::bf16}) {
    for (const int64_t count : {65'520, 70'000}) {
      const Tensor x = ones({count}, {half, device()});
      const auto number = static_cast<double>(count);
      EXPECT_EQ(mean(x).item(), 1.0);
      {
        const Autocast region(half);
        EXPECT_EQ(sum(x).dtype(), DType::f32);
        EXPECT_EQ(sum(x).item(), number);
        EXPECT_EQ(mean(x).item(), 1.0);
        // Along one axis of an image, in both layouts.
        for (const MemoryFormat format : testing_kernels::kFormats) {
          const Tensor image = ones({2, 3, 10, count / 10}, {half, device(), format});
          expect_values(mean(image, {.axes = {2, 3}}), Values(6, 1), 1e-7);
          expect_values(sum(image, {.axes = {2, 3}}), Values(6, number), 1e-7);
          expect_values(global_avg_pool2d(image), Values(6, 1), 1e-7);
          expect_values(avg_pool2d(image, {.kernel = {10, count / 10}}), Values(6, 1), 1e-7);
        }
      }
      // Outside, a sum has its input's type, as documented: 65,520 is where f16 rounds to infinity.
      EXPECT_EQ(sum(x).dtype(), half);
      if (half == DType::f16) {
        EXPECT_EQ(sum(x).item(), INFINITY);
      } else {
        EXPECT_NEAR(sum(x).item(), number, number * 0x1p-8);
      }
    }
  }
}

// A bias's gradient is the sum over all positions.
TEST_P(AutocastCases, O16_BiasGradientsOfManyPositions) {
  for (const MemoryFormat format : testing_kernels::kFormats) {
    Tensor w = leaf(Values(4, 0), {4, 1, 1, 1}, DType::f32, format), b = leaf(Values(4, 0), {4});
    const Tensor x = zeros({1, 1, 100, 700}, {DType::f32, device(), format});
    Tensor loss;
    {
      const Autocast region(DType::f16);
      loss = sum(conv2d(x, w, b));
    }
    backward(loss);
    expect_values(b.grad(), Values(4, 70'000), 1e-7);
    expect_values(w.grad(), Values(4, 0));
  }
}

// A loss scale that makes the gradient of the mean itself too large for f16 is divided first.
TEST_P(AutocastCases, O16_GradientsOfMeansStayFinite) {
  Tensor x = leaf(Values(4096, 1), {4096}, DType::f16);
  Tensor loss;
  {
    const Autocast region(DType::f16);
    loss = mean(x);
  }
  backward(loss, scalar(131072, {DType::f32, device()}));
  expect_values(x.grad(), Values(4096, 32));
}

struct OffsetCase {
  Values logits;
  int64_t label;
  double loss, gradient;  // of the first logit; the second has the opposite
};

TEST_P(AutocastCases, O17_CrossEntropyIsInvariantToACommonOffset) {
  const double near = std::log1p(std::exp(-3.0)), pull = 1 / (1 + std::exp(3.0));
  const std::vector<std::pair<DType, std::vector<OffsetCase>>> cases = {
      {DType::f32,
       {{{1e8, 1e8}, 1, M_LN2, 0.5},
        {{1000002, 999999}, 0, near, -pull},
        {{-1000002, -999999}, 1, near, pull},
        // Nearly sure: the loss is what the sum of exponentials has beyond 1.
        {{1000010, 1000000}, 0, std::log1p(std::exp(-10.0)), -1 / (1 + std::exp(10.0))},
        {{3e38, 3e38}, 1, M_LN2, 0.5}}},
      {DType::f16, {{{60000, 60000}, 1, M_LN2, 0.5}, {{1003, 1000}, 0, near, -pull}}},
      {DType::bf16, {{{1e8, 1e8}, 1, M_LN2, 0.5}, {{131, 128}, 0, near, -pull}}},
      {DType::f64, {{{1e15, 1e15}, 1, M_LN2, 0.5}, {{1e12 + 3, 1e12}, 0, near, -pull}}},
  };
  for (const auto& [dtype, of_dtype] : cases) {
    if (dtype == DType::f64 && device().is_cuda()) continue;  // the CPU's only
    for (const OffsetCase& it : of_dtype) {
      for (const double smoothing : {0.0, 0.5}) {
        Tensor z = leaf(it.logits, {1, 2}, dtype);
        const Tensor loss = cross_entropy(z, labels({it.label}), {.label_smoothing = smoothing});
        backward(loss);
        // Smoothing moves half of it to the mean over both classes.
        const double distance = std::abs(it.logits[0] - it.logits[1]) * smoothing / 2 *
                                ((it.logits[0] > it.logits[1]) == (it.label == 0) ? 1.0 : -1.0);
        const double target = 1 - smoothing / 2;
        const double of_label = (1 - std::abs(it.gradient)) - target;
        const double first = it.label == 0 ? of_label : -of_label;
        expect_values(loss, {it.loss + distance}, 1e-6);
        // The gradient is rounded to the logits' type.
        const double digits = std::max(1e-6, 2 * testing_kernels::unit_of(dtype));
        expect_values(z.grad(), {first, -first}, digits);
        if (smoothing == 0) expect_values(z.grad(), {it.gradient, -it.gradient}, digits);
      }
    }
  }
  // The softmax alone, and its logarithm.
  const Tensor z = tensor({1000002, 999999}, {1, 2});
  expect_values(softmax(z), {1 - pull, pull});
  expect_values(log_softmax(z), {-near, -near - 3});
}

}  // namespace
}  // namespace headroom::cases
