// What the contract tests of the kernels share: a fixture that runs a test on every device of this
// machine, test values, and comparison with references computed in f64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/parallel.h"
#include "core/ops/contract.h"
#include "core/tensor/tensor.h"

namespace headroom::testing_kernels {

using Values = std::vector<double>;

// The stored numbers of a tensor of any dtype, in logical order.
inline Values values_of(const Tensor& tensor) {
  return dispatch_all(tensor.dtype(), "test", [&](auto tag) {
    using T = decltype(tag);
    Values out;
    for (const T value : tensor.to_vector<T>()) {
      if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
        out.push_back(static_cast<double>(static_cast<float>(value)));
      } else {
        out.push_back(static_cast<double>(value));
      }
    }
    return out;
  });
}

// Relative rounding error of a stored number.
inline double unit_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::f32:
      return 0x1p-24;
    case DType::f64:
      return 0x1p-53;
    default:
      return 0;
  }
}

// Numbers in [low, high] from a fixed sequence, so that a failure can be repeated.
inline Values test_values(int64_t count, double low = -2, double high = 2, uint64_t seed = 1) {
  Values out(static_cast<size_t>(count));
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (double& value : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = low + (high - low) * static_cast<double>(state >> 40) * 0x1p-24;
  }
  return out;
}

class KernelTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (!has_runtime(device())) GTEST_SKIP() << "no " << device() << " on this machine";
  }
  Device device() const { return GetParam() == DeviceType::cuda ? Device::cuda() : Device::cpu(); }
  // The floating types that kernels of this device take.
  std::vector<DType> dtypes() const {
    if (device().is_cuda()) return {DType::f16, DType::bf16, DType::f32};
    return {DType::f16, DType::bf16, DType::f32, DType::f64};
  }
  Tensor tensor(const Values& values, const Shape& shape, DType dtype = DType::f32,
                MemoryFormat format = MemoryFormat::contiguous) const {
    return from_vector(values, shape, {dtype, device(), format});
  }
  Tensor uninitialised(const Shape& shape, DType dtype = DType::f32,
                       MemoryFormat format = MemoryFormat::contiguous) const {
    // NaN (or 255) shows what a kernel failed to write.
    return full(shape, is_floating(dtype) ? NAN : 255, {dtype, device(), format});
  }
  Tensor integers(const std::vector<int64_t>& values, const Shape& shape) const {
    return from_vector(values, shape, {DType::i64, device()});
  }
};

// A view of the elements of `storage` that are `strides` apart, from `offset` on.
inline Tensor strided(const Tensor& storage, const Shape& shape, const Strides& strides,
                      int64_t offset = 0) {
  return Tensor::make(storage.storage(), offset, shape, strides, storage.dtype(),
                      MemoryFormat::contiguous);
}

// Each value within `units` rounding errors of the dtype (plus those of f32 arithmetic near
// `scale`) of the reference; NaN and infinities must match.
inline void expect_near(const Tensor& tensor, const Values& reference, double units = 2,
                        double scale = 0) {
  const Values values = values_of(tensor);
  ASSERT_EQ(values.size(), reference.size()) << tensor.describe();
  const double unit = unit_of(tensor.dtype());
  const double arithmetic = std::min(unit, unit_of(DType::f32)) * scale;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(reference[i])) {
      ASSERT_TRUE(std::isnan(values[i])) << tensor.describe() << " at " << i << ": " << values[i];
    } else if (std::isinf(reference[i])) {
      ASSERT_EQ(values[i], reference[i]) << tensor.describe() << " at " << i;
    } else {
      // The smallest subnormal half is the step around zero.
      const double step = is_half(tensor.dtype()) ? 0x1p-24 : 0;
      const double allowed = units * (unit * std::abs(reference[i]) + arithmetic) + step;
      ASSERT_NEAR(values[i], reference[i], allowed) << tensor.describe() << " at " << i;
    }
  }
}

// What one more rounding to a half type adds, on the way to a result, to a number of that size: in
// units for expect_near's scale. CUDA's libraries take a bias in the output's type, or add it to
// the rounded product.
inline double detour(DType half, double size) {
  return is_half(half) ? size * unit_of(half) / unit_of(DType::f32) : 0;
}

inline std::string device_name(const testing::TestParamInfo<DeviceType>& info) {
  return info.param == DeviceType::cuda ? "cuda" : "cpu";
}

#define HEADROOM_ON_EACH_DEVICE(Fixture)                                                        \
  INSTANTIATE_TEST_SUITE_P(Device, Fixture, testing::Values(DeviceType::cpu, DeviceType::cuda), \
                           ::headroom::testing_kernels::device_name)

constexpr MemoryFormat kFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

}  // namespace headroom::testing_kernels
