// Contract of conv2d and its backwards: every method that the shapes below lead to, against loops
// in f64.
#include <cstring>

#include "core/base/settings.h"
#include "tests/kernels/conv_reference.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class ConvKernels : public ConvTest {
 protected:
  void SetUp() override {
    ConvTest::SetUp();
    settings().tf32 = Tf32::off;
  }
  void TearDown() override { settings() = Settings{}; }

  // On CUDA a bias (and what it is added to) may be rounded to the output's type first.
  double bias_detour(const ConvCase& item, DType dtype) const {
    const double products = static_cast<double>(item.w[1] * item.w[2] * item.w[3]);
    return device().is_cuda() ? detour(dtype, 1 + std::sqrt(products)) : 0;
  }
};
HEADROOM_ON_EACH_DEVICE(ConvKernels);

std::vector<ConvCase> conv_cases() {
  return {
      {"lenet 1", {3, 1, 12, 12}, {6, 1, 5, 5}, {}},
      {"lenet 2", {2, 6, 12, 12}, {16, 6, 5, 5}, {}},
      {"first layer", {2, 3, 11, 9}, {20, 3, 3, 3}, {.padding = {1, 1}}},
      {"first layer, stride 2",
       {2, 4, 15, 13},
       {33, 4, 7, 7},
       {.stride = {2, 2}, .padding = {3, 3}}},
      {"resnet", {2, 32, 8, 8}, {24, 32, 3, 3}, {.padding = {1, 1}}},
      {"resnet, stride 2", {2, 40, 9, 7}, {48, 40, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
      {"wide", {2, 160, 5, 4}, {136, 160, 3, 3}, {.padding = {1, 1}}},
      {"wide, columns in blocks", {1, 130, 6, 6}, {264, 130, 3, 3}, {.padding = {1, 1}}},
      {"wide, stride 2", {2, 136, 7, 6}, {140, 136, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
      {"wide, 1x1", {2, 150, 5, 4}, {140, 150, 1, 1}, {}},
      {"1x1", {2, 24, 7, 5}, {40, 24, 1, 1}, {}},
      {"1x1, few channels", {2, 5, 7, 5}, {3, 5, 1, 1}, {}},
      {"1x1, stride 2", {2, 20, 7, 5}, {18, 20, 1, 1}, {.stride = {2, 2}}},
      {"1x1, padding", {1, 20, 3, 3}, {4, 20, 1, 1}, {.padding = {1, 2}}},
      {"all pairs differ",
       {2, 5, 11, 14},
       {7, 5, 3, 4},
       {.stride = {1, 3}, .padding = {2, 1}, .dilation = {2, 1}}},
      {"all pairs differ, wide",
       {2, 18, 11, 14},
       {21, 18, 2, 3},
       {.stride = {3, 2}, .padding = {1, 2}, .dilation = {2, 3}}},
      {"stride beyond the kernel", {2, 17, 10, 10}, {5, 17, 2, 2}, {.stride = {3, 4}}},
      {"stride beyond the kernel, few channels", {2, 3, 10, 10}, {5, 3, 2, 2}, {.stride = {3, 4}}},
      {"kernel as large as the image", {3, 19, 4, 6}, {10, 19, 4, 6}, {}},
      {"padding beyond the kernel", {1, 17, 3, 3}, {4, 17, 2, 2}, {.padding = {3, 4}}},
      {"padding beyond the kernel, few channels", {1, 2, 3, 3}, {4, 2, 2, 2}, {.padding = {3, 4}}},
      {"groups", {2, 12, 6, 5}, {9, 4, 3, 3}, {.padding = {1, 1}, .groups = 3}},
      {"groups, stride 2",
       {2, 36, 7, 6},
       {40, 18, 3, 3},
       {.stride = {2, 2}, .padding = {1, 1}, .groups = 2}},
      {"groups, 1x1", {2, 36, 4, 6}, {40, 18, 1, 1}, {.groups = 2}},
      {"depthwise", {2, 37, 6, 7}, {37, 1, 3, 3}, {.padding = {1, 1}, .groups = 37}},
      {"depthwise, stride 2, dilation 2",
       {2, 8, 9, 9},
       {8, 1, 3, 3},
       {.stride = {2, 2}, .padding = {2, 1}, .dilation = {2, 2}, .groups = 8}},
      {"depthwise with a multiplier",
       {2, 5, 6, 5},
       {15, 1, 3, 3},
       {.padding = {1, 1}, .groups = 5}},
      {"one pixel", {1, 1, 1, 1}, {1, 1, 1, 1}, {}},
      {"one output channel", {2, 23, 5, 5}, {1, 23, 3, 3}, {.padding = {1, 1}}},
      {"many pixels", {2, 17, 40, 41}, {18, 17, 3, 3}, {.padding = {1, 1}}},
      {"many pixels, few channels", {3, 3, 70, 65}, {17, 3, 3, 3}, {.padding = {1, 1}}},
      {"long rows", {1, 2, 3, 9000}, {3, 2, 3, 3}, {.padding = {1, 1}}},
  };
}

// Rounding errors of a sum of `products` numbers near 1, in units of the last place of 1: each step
// is off by about the size of the sum so far, which is a random walk.
double scale_of(int64_t products) {
  const double count = static_cast<double>(products);
  return std::max(16 * std::sqrt(count), count);
}
double scale_of(const ConvCase& item) { return scale_of(item.w[1] * item.w[2] * item.w[3]); }

TEST_P(ConvKernels, ForwardMatchesTheReference) {
  for (const ConvCase& base : conv_cases()) {
    for (const ConvAlgorithm algorithm : algorithms()) {
      ConvCase item = base;
      item.params.algorithm = algorithm;
      for (const DType dtype : dtypes()) {
        SCOPED_TRACE(item.name + " " + name_of(dtype));
        const Tensor x = image(test_values(numel_of(item.x), -2, 2, 1), item.x, dtype);
        const Tensor w = image(test_values(numel_of(item.w), -1, 1, 2), item.w, dtype);
        const Tensor bias = tensor(test_values(item.w[0], -1, 1, 3), {item.w[0]});
        expect_near(forward(item, x, w, bias),
                    reference_forward(item, values_of(x), values_of(w), values_of(bias)), 2,
                    scale_of(item) + bias_detour(item, dtype));
      }
    }
  }
}

TEST_P(ConvKernels, BackwardInputMatchesTheReference) {
  for (const ConvCase& base : conv_cases()) {
    for (const ConvAlgorithm algorithm : algorithms()) {
      ConvCase item = base;
      item.params.algorithm = algorithm;
      for (const DType dtype : dtypes()) {
        SCOPED_TRACE(item.name + " " + name_of(dtype));
        const Shape y = item.y();
        const Tensor dy = image(test_values(numel_of(y), -2, 2, 4), y, dtype);
        const Tensor w = image(test_values(numel_of(item.w), -1, 1, 5), item.w, dtype);
        expect_near(backward_input(item, dy, w),
                    reference_backward_input(item, values_of(dy), values_of(w)), 2,
                    scale_of(item.w[0] / item.params.groups * item.w[2] * item.w[3]));
      }
    }
  }
}

TEST_P(ConvKernels, BackwardWeightMatchesTheReference) {
  for (const ConvCase& base : conv_cases()) {
    for (const ConvAlgorithm algorithm : algorithms()) {
      ConvCase item = base;
      item.params.algorithm = algorithm;
      for (const DType dtype : dtypes()) {
        const Shape y = item.y();
        const Tensor x = image(test_values(numel_of(item.x), -2, 2, 6), item.x, dtype);
        const Tensor dy = image(test_values(numel_of(y), -1, 1, 7), y, dtype);
        const Values reference = reference_backward_weight(item, values_of(x), values_of(dy));
        for (const DType gradient : {dtype, DType::f32}) {
          if (dtype == DType::f64 && gradient != dtype) continue;
          SCOPED_TRACE(item.name + " " + name_of(dtype) + " to " + name_of(gradient));
          // cuDNN makes half gradients from half operands; an f32 gradient is widened from them.
          double largest = 0;
          for (const double value : reference) largest = std::max(largest, std::abs(value));
          const bool widened = device().is_cuda() && gradient != dtype;
          expect_near(backward_weight(item, x, dy, gradient), reference, 2,
                      scale_of(y[0] * y[2] * y[3]) + (widened ? detour(dtype, largest) : 0));
        }
      }
    }
  }
}

TEST_P(ConvKernels, TakesABiasOfAnyFloatingTypeOrNone) {
  const ConvCase item{"", {2, 17, 5, 6}, {10, 17, 3, 3}, {.padding = {1, 1}}};
  for (const DType dtype : dtypes()) {
    const Tensor x = image(test_values(numel_of(item.x)), item.x, dtype);
    const Tensor w = image(test_values(numel_of(item.w), -1, 1, 2), item.w, dtype);
    for (const DType bias_dtype : dtypes()) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " with a bias of " + name_of(bias_dtype));
      const Tensor bias = tensor(test_values(10, -1, 1, 3), {10}, bias_dtype);
      expect_near(forward(item, x, w, bias),
                  reference_forward(item, values_of(x), values_of(w), values_of(bias)), 2,
                  scale_of(item) + bias_detour(item, dtype));
    }
    expect_near(forward(item, x, w, Tensor()),
                reference_forward(item, values_of(x), values_of(w), {}), 2, scale_of(item));
  }
}

TEST_P(ConvKernels, AnEmptyBatchGivesZeroWeightGradients) {
  for (const int64_t channels : {3, 20}) {
    const ConvCase item{"", {0, channels, 8, 8}, {4, channels, 3, 3}, {.padding = {1, 1}}};
    for (const DType dtype : dtypes()) {
      const Tensor x = image({}, item.x, dtype), dy = image({}, item.y(), dtype);
      const Tensor w = image(test_values(numel_of(item.w)), item.w, dtype);
      EXPECT_EQ(forward(item, x, w, Tensor()).shape(), (Shape{0, 4, 8, 8}));
      EXPECT_EQ(backward_input(item, dy, w).numel(), 0);
      for (const double value : values_of(backward_weight(item, x, dy, dtype))) {
        EXPECT_EQ(value, 0.0);
      }
    }
  }
}

// The bits must not depend on the number of threads, nor the workspace on anything but shapes.
TEST_P(ConvKernels, BitsDoNotDependOnTheNumberOfThreads) {
  if (!device().is_cpu()) GTEST_SKIP() << "threads are the cpu's";
  const auto bytes_of = [](const Tensor& tensor) {
    const auto* data = static_cast<const char*>(tensor.view().data);
    return std::string(data, static_cast<size_t>(tensor.nbytes()));
  };
  for (const ConvCase& item : conv_cases()) {
    SCOPED_TRACE(item.name);
    const Shape y = item.y();
    const Tensor x = image(test_values(numel_of(item.x)), item.x, DType::f32);
    const Tensor w = image(test_values(numel_of(item.w), -1, 1, 2), item.w, DType::f32);
    const Tensor dy = image(test_values(numel_of(y), -1, 1, 3), y, DType::f32);
    std::vector<std::string> results;
    for (const int threads : {1, 2, 5}) {
      set_num_threads(threads);
      results.push_back(bytes_of(forward(item, x, w, Tensor())) +
                        bytes_of(backward_input(item, dy, w)) +
                        bytes_of(backward_weight(item, x, dy, DType::f32)));
    }
    set_num_threads(0);
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

TEST_P(ConvKernels, RefusesOperandsThatAreNotChannelsLast) {
  if (!device().is_cpu()) GTEST_SKIP() << "the library convolutions of CUDA take both layouts";
  const ConvCase item{"", {1, 4, 5, 5}, {4, 4, 3, 3}, {}};
  const Tensor x = tensor(test_values(100), item.x);
  const Tensor w = image(test_values(144), item.w, DType::f32);
  EXPECT_THROW(forward(item, x, w, Tensor()), Error);
}

}  // namespace
}  // namespace headroom
