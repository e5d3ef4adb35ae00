// The matrix product slot on CUDA against a plain loop in f64: transposes, dtypes, bias, odd
// and empty sizes, alignment, workspace. Needs a GPU.
#include <algorithm>
#include <string>
#include <vector>

#include "core/base/settings.h"
#include "core/ops/workspace.h"
#include "tests/kernels/cuda_test.h"
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using testing_kernels::detour;
using testing_kernels::expect_near;
using testing_kernels::test_values;
using testing_kernels::unit_of;
using testing_kernels::Values;
using testing_kernels::values_of;

struct Size {
  int64_t m, n, k;
};

class CudaMatmul : public testing_kernels::CudaTest {
 protected:
  static Tensor make(const Shape& shape, DType dtype, uint64_t seed) {
    return from_vector(test_values(numel_of(shape), -1, 1, seed), shape, {dtype, Device::cuda()});
  }
  static Tensor workspace(const Size& size, DType dtype) {
    const int64_t bytes = matmul_workspace_bytes(Device::cuda(), size.m, size.n, size.k, dtype);
    if (bytes == 0) return {};
    return full({bytes}, 255, {DType::u8, Device::cuda()});
  }
  static View view(const Tensor& tensor) { return tensor ? tensor.view() : View{}; }

  static Values reference(const Size& size, const Values& a, const Values& b, const Values& bias,
                          const MatmulParams& params) {
    Values out(static_cast<size_t>(size.m * size.n));
    for (int64_t i = 0; i < size.m; ++i) {
      for (int64_t j = 0; j < size.n; ++j) {
        double sum = bias.empty() ? 0 : bias[static_cast<size_t>(j)];
        for (int64_t l = 0; l < size.k; ++l) {
          sum += a[static_cast<size_t>(params.transpose_a ? l * size.m + i : i * size.k + l)] *
                 b[static_cast<size_t>(params.transpose_b ? j * size.k + l : l * size.n + j)];
        }
        out[static_cast<size_t>(i * size.n + j)] = sum;
      }
    }
    return out;
  }

  struct Types {
    DType a, y, bias;
    bool has_bias;
  };

  void check(const Size& size, const MatmulParams& params, const Types& types,
             bool with_workspace = true) {
    SCOPED_TRACE("m " + std::to_string(size.m) + " n " + std::to_string(size.n) + " k " +
                 std::to_string(size.k) + " ta " + std::to_string(params.transpose_a) + " tb " +
                 std::to_string(params.transpose_b) + " a " + name_of(types.a) + " y " +
                 name_of(types.y) +
                 (types.has_bias ? std::string(" bias ") + name_of(types.bias) : ""));
    const Tensor a =
        make(params.transpose_a ? Shape{size.k, size.m} : Shape{size.m, size.k}, types.a, 1);
    const Tensor b =
        make(params.transpose_b ? Shape{size.n, size.k} : Shape{size.k, size.n}, types.a, 2);
    Tensor bias;
    if (types.has_bias) bias = make({size.n}, types.bias, 3);
    const Tensor y = full({size.m, size.n}, NAN, {types.y, Device::cuda()});
    const Values expected =
        reference(size, values_of(a), values_of(b), bias ? values_of(bias) : Values{}, params);
    const Tensor scratch = with_workspace ? workspace(size, types.a) : Tensor{};
    slots::matmul(a, b, view(bias), params, view(scratch), y);
    // A bias that is added to the rounded product may cancel it.
    const double product = 1 + std::sqrt(static_cast<double>(size.k));
    const double scale = 64 + static_cast<double>(size.k);
    expect_near(y, expected, 3, scale + (types.has_bias ? detour(types.y, product) : 0));
  }
};

TEST_F(CudaMatmul, MatchesAPlainLoopInEveryTransposeAndDtype) {
  const Size sizes[] = {{1, 1, 1},      {64, 10, 512}, {7, 5, 3},   {33, 65, 17},
                        {128, 256, 64}, {1, 10, 512},  {512, 1, 64}};
  for (const Size& size : sizes) {
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      for (const bool ta : {false, true}) {
        for (const bool tb : {false, true}) {
          check(size, {ta, tb}, {dtype, dtype, dtype, true});
          check(size, {ta, tb}, {dtype, dtype, dtype, false});
        }
      }
    }
  }
}

TEST_F(CudaMatmul, WritesF32FromHalfOperands) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Size& size : {Size{64, 10, 512}, Size{7, 5, 3}}) {
      check(size, {false, true}, {dtype, DType::f32, DType::f32, true});
      check(size, {true, false}, {dtype, DType::f32, dtype, true});
    }
  }
}

TEST_F(CudaMatmul, TakesABiasOfAnyFloatingDtypeWithAndWithoutWorkspace) {
  for (const DType dtype : {DType::f16, DType::f32}) {
    for (const DType bias : {DType::f16, DType::bf16, DType::f32}) {
      for (const bool with_workspace : {false, true}) {
        check({64, 10, 512}, {false, true}, {dtype, dtype, bias, true}, with_workspace);
      }
    }
  }
}

TEST_F(CudaMatmul, EmptySumsGiveTheBiasOrZero) {
  check({4, 3, 0}, {}, {DType::f32, DType::f32, DType::f32, true});
  check({4, 3, 0}, {}, {DType::f16, DType::f16, DType::f32, false});
  check({0, 3, 5}, {}, {DType::f32, DType::f32, DType::f32, true});
  check({4, 0, 5}, {}, {DType::f32, DType::f32, DType::f32, false});
}

TEST_F(CudaMatmul, ReadsOperandsThatAreNotAligned) {
  const Size size{16, 24, 40};
  const Tensor a = make({16, 40}, DType::f16, 1), b = make({40, 24}, DType::f16, 2);
  const Tensor room = full({a.numel() + 1}, NAN, {DType::f16, Device::cuda()});
  const Tensor shifted =
      Tensor::make(room.storage(), 1, a.shape(), a.strides(), DType::f16, MemoryFormat::contiguous);
  slots::copy(a, shifted);
  const Tensor y = full({16, 24}, NAN, {DType::f16, Device::cuda()});
  slots::matmul(shifted, b, {}, {}, view(workspace(size, DType::f16)), y);
  expect_near(y, reference(size, values_of(a), values_of(b), {}, {}), 3, 64);
}

TEST_F(CudaMatmul, RoundsToTf32OnlyWhenAskedForEverything) {
  const Size size{128, 128, 512};
  const Tensor a = make({128, 512}, DType::f32, 1), b = make({512, 128}, DType::f32, 2);
  const Values expected = reference(size, values_of(a), values_of(b), {}, {});
  const auto worst = [&](Tf32 tf32) {
    settings().tf32 = tf32;
    const Tensor y = full({128, 128}, NAN, {DType::f32, Device::cuda()});
    slots::matmul(a, b, {}, {}, view(workspace(size, DType::f32)), y);
    const Values got = values_of(y);
    double error = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error = std::max(error, std::abs(got[i] - expected[i]));
    }
    return error;
  };
  EXPECT_LT(worst(Tf32::off), 1e-4);
  EXPECT_LT(worst(Tf32::conv), 1e-4);
  EXPECT_GT(worst(Tf32::all), 1e-4);
}

TEST_F(CudaMatmul, GivesTheSameBitsTwice) {
  const Size size{10, 512, 4096};  // few outputs, long sums: a split sum would pay
  const Tensor a = make({4096, 10}, DType::f16, 1), b = make({4096, 512}, DType::f16, 2);
  Values first;
  for (int run = 0; run < 5; ++run) {
    const Tensor y = full({10, 512}, NAN, {DType::f16, Device::cuda()});
    slots::matmul(a, b, {}, {.transpose_a = true}, view(workspace(size, DType::f16)), y);
    const Values now = values_of(y);
    if (run == 0) first = now;
    EXPECT_EQ(now, first) << "run " << run;
  }
}

}  // namespace
}  // namespace headroom
