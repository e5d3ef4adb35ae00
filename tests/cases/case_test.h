// What the real-world cases share: a fixture that runs a case on the CPU, on CUDA with cuDNN and on
// CUDA with our own convolutions, and comparison with values worked out by hand.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/base/settings.h"
#include "core/tensor/tensor.h"
#include "tests/kernels/kernel_test.h"
#include "tests/support/message_of.h"

namespace headroom::cases {

using testing_kernels::Values;
using testing_kernels::values_of;

enum class Backend : uint8_t { cpu, cuda_cudnn, cuda_native };

inline std::string backend_name(const testing::TestParamInfo<Backend>& info) {
  switch (info.param) {
    case Backend::cpu:
      return "cpu";
    case Backend::cuda_cudnn:
      return "cuda_cudnn";
    default:
      return "cuda_native";
  }
}

// A case's numbers hold in f32 and, where they fit, in f16; TF32 is off, settings come back after.
class CaseTest : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!has_runtime(device())) GTEST_SKIP() << "no " << device() << " on this machine";
    settings().cudnn = GetParam() != Backend::cuda_native;
    settings().tf32 = Tf32::off;
  }
  void TearDown() override { settings() = before_; }

  Device device() const { return GetParam() == Backend::cpu ? Device::cpu() : Device::cuda(); }

  Tensor tensor(const Values& values, const Shape& shape, DType dtype = DType::f32,
                MemoryFormat format = MemoryFormat::contiguous) const {
    return from_vector(values, shape, {dtype, device(), format});
  }
  // The same, with a gradient wanted.
  Tensor leaf(const Values& values, const Shape& shape, DType dtype = DType::f32,
              MemoryFormat format = MemoryFormat::contiguous) const {
    return tensor(values, shape, dtype, format).set_requires_grad(true);
  }
  Tensor labels(const std::vector<int64_t>& values) const {
    return from_vector(values, {static_cast<int64_t>(values.size())}, {DType::i64, device()});
  }

 private:
  Settings before_ = settings();
};

#define HEADROOM_CASES(Fixture)                                                              \
  INSTANTIATE_TEST_SUITE_P(                                                                  \
      On, Fixture, testing::Values(Backend::cpu, Backend::cuda_cudnn, Backend::cuda_native), \
      ::headroom::cases::backend_name)

// The cases' default tolerance.
inline double tolerance_of(DType dtype) { return is_half(dtype) ? 1e-3 : 1e-6; }

// Every element within `relative` (0: the dtype's default) of what is expected; zeros, within that
// of the largest value expected.
inline void expect_values(const Tensor& actual, const Values& expected, double relative = 0) {
  ASSERT_TRUE(actual.defined());
  const Values values = values_of(actual);
  ASSERT_EQ(values.size(), expected.size()) << actual.describe();
  if (relative == 0) relative = tolerance_of(actual.dtype());
  double largest = 0;
  for (const double v : expected) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < values.size(); ++i) {
    const double allowed = relative * (expected[i] != 0 ? std::abs(expected[i]) : largest);
    EXPECT_NEAR(values[i], expected[i], allowed) << actual.describe() << " at " << i;
  }
}

using test::message_of;

}  // namespace headroom::cases
