// Contract of softmax, log_softmax, cross_entropy, their backwards, and count_correct.
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class LossKernels : public KernelTest {};
HEADROOM_ON_EACH_DEVICE(LossKernels);

constexpr int64_t kSizes[][2] = {{0, 5}, {1, 1}, {3, 10}, {65, 33}, {2, 1000}, {1, 5001}, {700, 7}};

Values softmax_of(const Values& x, size_t columns) {
  Values out = x;
  for (size_t row = 0; row + columns <= x.size(); row += columns) {
    const double largest = *std::max_element(&x[row], &x[row] + columns);
    double sum = 0;
    for (size_t i = row; i < row + columns; ++i) sum += out[i] = std::exp(x[i] - largest);
    for (size_t i = row; i < row + columns; ++i) out[i] /= sum;
  }
  return out;
}

TEST_P(LossKernels, SoftmaxAndItsLogarithm) {
  for (const auto& [rows, columns] : kSizes) {
    for (const DType dtype : dtypes()) {
      const Shape shape{rows, columns};
      const Tensor x = tensor(test_values(rows * columns, -5, 5), shape, dtype);
      const Tensor y = uninitialised(shape, dtype), logarithm = uninitialised(shape, dtype);
      slots::softmax(x, y);
      slots::log_softmax(x, logarithm);
      Values expected = softmax_of(values_of(x), static_cast<size_t>(columns));
      // exp multiplies the rounding of its argument, here up to 10.
      expect_near(y, expected, 16);
      for (double& value : expected) value = std::log(value);
      expect_near(logarithm, expected, 2, 10);
    }
  }
}

TEST_P(LossKernels, SoftmaxOfLargeOffsetsStaysFinite) {
  const Tensor x = tensor({1e30, 1e30, -1e30, -INFINITY, 0, 0}, {2, 3});
  const Tensor y = uninitialised({2, 3});
  slots::softmax(x, y);
  expect_near(y, {0.5, 0.5, 0, 0, 0.5, 0.5});
}

TEST_P(LossKernels, SoftmaxGradients) {
  for (const auto& [rows, columns] : kSizes) {
    for (const DType dtype : dtypes()) {
      const Shape shape{rows, columns};
      const size_t width = static_cast<size_t>(columns);
      const Tensor x = tensor(test_values(rows * columns), shape, dtype);
      const Tensor y = uninitialised(shape, dtype), dx = uninitialised(shape, dtype);
      const Tensor dy = tensor(test_values(rows * columns, -1, 1, 2), shape, dtype);
      const Values gradient = values_of(dy);
      slots::softmax(x, y);
      slots::softmax_backward(y, dy, dx);
      Values out = values_of(y), expected(out.size());
      for (size_t row = 0; row < out.size(); row += width) {
        double sum = 0;
        for (size_t i = row; i < row + width; ++i) sum += out[i] * gradient[i];
        for (size_t i = row; i < row + width; ++i) expected[i] = out[i] * (gradient[i] - sum);
      }
      expect_near(dx, expected, 4, 1);
      slots::log_softmax(x, y);
      slots::log_softmax_backward(y, dy, dx);
      out = values_of(y);
      for (size_t row = 0; row < out.size(); row += width) {
        double sum = 0;
        for (size_t i = row; i < row + width; ++i) sum += gradient[i];
        for (size_t i = row; i < row + width; ++i) {
          expected[i] = gradient[i] - std::exp(out[i]) * sum;
        }
      }
      expect_near(dx, expected, 4, 8);
    }
  }
}

// What cross_entropy writes, and the gradient for dloss.
struct CrossEntropyRun {
  Tensor row_loss, lse, loss, counted, dlogits;
};

class CrossEntropyKernels : public KernelTest {
 protected:
  CrossEntropyRun run(const Tensor& logits, const Tensor& labels, const CrossEntropyParams& params,
                      double dloss = 1) const {
    const DType wide = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
    const Shape rows{logits.size(0)};
    CrossEntropyRun out{uninitialised(rows, wide), uninitialised(rows, wide),
                        uninitialised({}, wide), uninitialised({}, wide),
                        uninitialised(logits.shape(), logits.dtype())};
    slots::cross_entropy(logits, labels, params, out.row_loss, out.lse, out.loss, out.counted);
    slots::cross_entropy_backward(logits, labels, out.lse, out.counted,
                                  full({}, dloss, {wide, device()}), params, out.dlogits);
    return out;
  }
};
HEADROOM_ON_EACH_DEVICE(CrossEntropyKernels);

TEST_P(CrossEntropyKernels, MatchesItsDefinition) {
  for (const auto& [rows, columns] : kSizes) {
    for (const DType dtype : dtypes()) {
      for (const double smoothing : {0.0, 0.1, 1.0}) {
        for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
          const Tensor logits = tensor(test_values(rows * columns, -4, 4), {rows, columns}, dtype);
          std::vector<int64_t> labels(static_cast<size_t>(rows));
          for (size_t i = 0; i < labels.size(); ++i) {
            labels[i] = i % 5 == 3 ? -100 : static_cast<int64_t>(i * 7) % columns;
          }
          const CrossEntropyParams params{reduction, smoothing, -100};
          const CrossEntropyRun result = run(logits, integers(labels, {rows}), params, 1.5);

          const size_t width = static_cast<size_t>(columns);
          const Values z = values_of(logits), probabilities = softmax_of(z, width);
          Values row_loss(labels.size(), 0), lse(labels.size()), gradient(z.size(), 0);
          double sum = 0, counted = 0;
          for (const int64_t label : labels) counted += label == -100 ? 0 : 1;
          const double divisor = reduction == Reduction::mean ? counted : 1;
          for (size_t row = 0; row < labels.size(); ++row) {
            const size_t begin = row * width;
            lse[row] = z[begin] - std::log(probabilities[begin]);
            if (labels[row] == -100) continue;
            for (size_t i = 0; i < width; ++i) {
              const double target = smoothing / static_cast<double>(columns) +
                                    (i == static_cast<size_t>(labels[row]) ? 1 - smoothing : 0);
              row_loss[row] -= target * std::log(probabilities[begin + i]);
              gradient[begin + i] = 1.5 / divisor * (probabilities[begin + i] - target);
            }
            sum += row_loss[row];
          }
          // The reference itself is in f64.
          const double scale = dtype == DType::f64 ? 200 : 10;
          expect_near(result.row_loss, row_loss, 4, scale);
          expect_near(result.lse, lse, 4, scale);
          expect_near(result.counted, {counted}, 0);
          expect_near(result.loss, {sum / divisor}, 4, scale);
          expect_near(result.dlogits, gradient, 8, 4);
        }
      }
    }
  }
}

TEST_P(CrossEntropyKernels, ACommonOffsetChangesNothing) {
  CrossEntropyRun result = run(tensor({1e8, 1e8}, {1, 2}), integers({1}, {1}), {});
  EXPECT_NEAR(result.loss.item(), 0.6931472, 1e-7);
  expect_near(result.dlogits, {0.5, -0.5});
  result = run(tensor({1000002, 999999}, {1, 2}), integers({0}, {1}), {});
  EXPECT_NEAR(result.loss.item(), 0.0485874, 1e-7);
  const Values gradient = values_of(result.dlogits);
  EXPECT_NEAR(gradient[0], -0.0474259, 1e-7);
  EXPECT_NEAR(gradient[1], 0.0474259, 1e-7);
}

TEST_P(CrossEntropyKernels, TheMeanOverNoCountedRowsIsNaN) {
  const CrossEntropyRun result =
      run(tensor({1, 2, 3, 4}, {2, 2}), integers({-1, -1}, {2}), {.ignored_label = -1});
  EXPECT_TRUE(std::isnan(result.loss.item()));
  EXPECT_EQ(result.counted.item(), 0);
  EXPECT_EQ(values_of(result.dlogits), Values(4, 0));
}

TEST_P(CrossEntropyKernels, ABadLabelIsNamed) {
  if (device().is_cuda()) GTEST_SKIP() << "the CPU throws at once; CUDA at the next wait";
  for (const int64_t bad : {int64_t{3}, int64_t{-1}, int64_t{1} << 40}) {
    const Tensor logits = tensor(test_values(12), {4, 3});
    try {
      run(logits, integers({0, -100, bad, 7}, {4}), {});
      ADD_FAILURE() << "label " << bad << " was accepted";
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      for (const std::string& part : {std::string("cross_entropy"), std::to_string(bad),
                                      std::string("row 2"), std::string("3 classes")}) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
      }
    }
  }
}

TEST_P(LossKernels, CountCorrectCountsTheFirstMaximum) {
  for (const DType dtype : dtypes()) {
    const Tensor logits = tensor({1, 2, 2, 5, 1, 0, 0, 0, 0, 1, NAN, 9, 1, 2, 3}, {5, 3}, dtype);
    const Tensor count = full({}, 40, {DType::i64, device()});
    slots::count_correct(logits, integers({1, 0, 1, 1, -100}, {5}), -100, count);
    EXPECT_EQ(count.to_vector<int64_t>()[0], 43) << dtype;
  }
  const Tensor count = full({}, 16777216, {DType::i64, device()});
  slots::count_correct(tensor({0, 1}, {1, 2}), integers({1}, {1}), -100, count);
  EXPECT_EQ(count.to_vector<int64_t>()[0], 16777217);
}

TEST_P(LossKernels, CountCorrectTakesManyRows) {
  const int64_t rows = 5000, columns = 11;
  const Tensor logits = tensor(test_values(rows * columns), {rows, columns});
  const Values z = values_of(logits);
  std::vector<int64_t> labels(static_cast<size_t>(rows));
  int64_t expected = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto begin = z.begin() + static_cast<std::ptrdiff_t>(i) * columns;
    labels[i] = static_cast<int64_t>(i % 11);
    expected += std::max_element(begin, begin + columns) - begin == labels[i];
  }
  const Tensor count = full({}, 0, {DType::i64, device()});
  slots::count_correct(logits, integers(labels, {rows}), -100, count);
  EXPECT_EQ(count.to_vector<int64_t>()[0], expected);
}

}  // namespace
}  // namespace headroom
