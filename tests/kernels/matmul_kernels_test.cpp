// Contract of matmul: transposes, bias and types, against loops in f64.
#include "core/base/settings.h"
#include "core/ops/workspace.h"
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

struct MatmulCase {
  int64_t m, n, k;
};

class MatmulKernels : public KernelTest {
 protected:
  Tensor run(const Tensor& a, const Tensor& b, const Tensor& bias, const MatmulParams& params,
             const Tensor& y) const {
    const int64_t k = params.transpose_a ? a.size(0) : a.size(1);
    const int64_t bytes = matmul_workspace_bytes(device(), y.size(0), y.size(1), k, a.dtype());
    // Filled with bytes that are NaN in every type.
    const Tensor scratch = bytes > 0 ? full({bytes}, 255, {DType::u8, device()}) : Tensor();
    slots::matmul(a, b, bias ? bias.view() : View{}, params, scratch ? scratch.view() : View{}, y);
    return y;
  }
  static Values reference(const Tensor& a, const Tensor& b, const Tensor& bias,
                          const MatmulParams& params) {
    const Values left = values_of(a), right = values_of(b);
    const Values added = bias ? values_of(bias) : Values();
    const int64_t m = params.transpose_a ? a.size(1) : a.size(0);
    const int64_t k = params.transpose_a ? a.size(0) : a.size(1);
    const int64_t n = params.transpose_b ? b.size(0) : b.size(1);
    Values y;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = bias ? added[j] : 0;
        for (int64_t e = 0; e < k; ++e) {
          sum += left[params.transpose_a ? e * m + i : i * k + e] *
                 right[params.transpose_b ? j * k + e : e * n + j];
        }
        y.push_back(sum);
      }
    }
    return y;
  }
  // The cases cover one block, blocks of rows or of columns, of both, and a split of k.
  static std::vector<MatmulCase> cases() {
    return {{1, 1, 1},    {3, 5, 7},      {64, 10, 84},   {5, 300, 40},   {1, 130, 700},
            {700, 1, 33}, {260, 520, 20}, {16, 24, 5000}, {10, 84, 4099}, {65, 129, 513}};
  }
};
HEADROOM_ON_EACH_DEVICE(MatmulKernels);

TEST_P(MatmulKernels, MatchesTheReference) {
  for (const MatmulCase& item : cases()) {
    for (const DType dtype : dtypes()) {
      for (int bits = 0; bits < 4; ++bits) {
        const MatmulParams params{(bits & 1) != 0, (bits & 2) != 0};
        const bool with_bias = (bits & 1) == 0;
        SCOPED_TRACE(detail::concat(item.m, "x", item.n, "x", item.k, " ", dtype, " ", bits));
        const Shape a_shape = params.transpose_a ? Shape{item.k, item.m} : Shape{item.m, item.k};
        const Shape b_shape = params.transpose_b ? Shape{item.n, item.k} : Shape{item.k, item.n};
        const Tensor a = tensor(test_values(item.m * item.k, -1, 1, 1), a_shape, dtype);
        const Tensor b = tensor(test_values(item.k * item.n, -1, 1, 2), b_shape, dtype);
        const Tensor bias =
            with_bias ? tensor(test_values(item.n, -1, 1, 3), {item.n}, DType::f32) : Tensor();
        std::vector<DType> outputs = {dtype};
        if (is_half(dtype)) outputs.push_back(DType::f32);
        for (const DType output : outputs) {
          const Tensor y = uninitialised({item.m, item.n}, output);
          const double product = std::sqrt(static_cast<double>(item.k));
          const bool rounds_twice = device().is_cuda() && with_bias;
          expect_near(run(a, b, bias, params, y), reference(a, b, bias, params), 2,
                      (device().is_cuda() ? 64 : 8) * product +
                          (rounds_twice ? detour(output, 1 + product) : 0));
        }
      }
    }
  }
}

TEST_P(MatmulKernels, AnEmptySumIsTheBias) {
  for (const DType dtype : dtypes()) {
    const Tensor a = tensor({}, {3, 0}, dtype), b = tensor({}, {0, 2}, dtype);
    const Tensor bias = tensor({0.5, -2}, {2});
    EXPECT_EQ(values_of(run(a, b, bias, {}, uninitialised({3, 2}, dtype))),
              (Values{0.5, -2, 0.5, -2, 0.5, -2}));
    EXPECT_EQ(values_of(run(a, b, Tensor(), {}, uninitialised({3, 2}, dtype))), Values(6, 0.0));
    const Tensor none = tensor({}, {0, 4}, dtype), right = tensor(test_values(8), {4, 2}, dtype);
    EXPECT_EQ(run(none, right, bias, {}, uninitialised({0, 2}, dtype)).numel(), 0);
  }
}

TEST_P(MatmulKernels, SumsOfHalvesDoNotStopGrowing) {
  // An f16 sum of ones stops at 2048.
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor a = tensor(Values(5000, 1.0), {1, 5000}, dtype);
    const Tensor b = tensor(Values(5000, 1.0), {5000, 1}, dtype);
    EXPECT_EQ(values_of(run(a, b, Tensor(), {}, uninitialised({1, 1}, DType::f32)))[0], 5000.0);
  }
}

TEST_P(MatmulKernels, BitsDoNotDependOnTheNumberOfThreads) {
  if (!device().is_cpu()) GTEST_SKIP() << "threads are the cpu's";
  for (const MatmulCase& item : cases()) {
    const Tensor a = tensor(test_values(item.m * item.k), {item.m, item.k});
    const Tensor b = tensor(test_values(item.k * item.n, -1, 1, 2), {item.k, item.n});
    std::vector<Values> results;
    for (const int threads : {1, 2, 5}) {
      set_num_threads(threads);
      results.push_back(values_of(run(a, b, Tensor(), {}, uninitialised({item.m, item.n}))));
    }
    set_num_threads(0);
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

}  // namespace
}  // namespace headroom
