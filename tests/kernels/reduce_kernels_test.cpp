// Contract of reduce, max_along and scatter_along.
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class ReduceKernels : public KernelTest {};
HEADROOM_ON_EACH_DEVICE(ReduceKernels);

Shape reduced_shape(const Shape& shape, unsigned mask) {
  Shape out = shape;
  for (int i = 0; i < shape.rank(); ++i) {
    if (mask >> i & 1) out[i] = 1;
  }
  return out;
}

// Index in the reduced shape of element `index` of the full one.
size_t reduced_index(const Shape& full, const Shape& reduced, int64_t index) {
  int64_t out = 0, scale = 1;
  for (int i = full.rank() - 1; i >= 0; --i) {
    const int64_t at = index % full[i];
    index /= full[i];
    out += (reduced[i] == 1 ? 0 : at) * scale;
    scale *= reduced[i];
  }
  return static_cast<size_t>(out);
}

Values reference(ReduceOp op, const Values& x, const Shape& full, const Shape& reduced) {
  const size_t outputs = static_cast<size_t>(numel_of(reduced));
  Values out(outputs, 0);
  for (size_t i = 0; i < x.size(); ++i) {
    out[reduced_index(full, reduced, static_cast<int64_t>(i))] += x[i];
  }
  if (op == ReduceOp::mean) {
    for (double& value : out) value /= static_cast<double>(x.size() / outputs);
  }
  return out;
}

TEST_P(ReduceKernels, EverySetOfAxesInBothFormats) {
  const Shape shape{3, 10, 6, 7};
  for (const MemoryFormat format : kFormats) {
    for (unsigned mask = 0; mask < 16; ++mask) {
      const Shape reduced = reduced_shape(shape, mask);
      for (const DType dtype : dtypes()) {
        const Tensor x = tensor(test_values(1260), shape, dtype, format);
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
          const Tensor y = uninitialised(reduced, dtype);
          slots::reduce(op, x, y);
          expect_near(y, reference(op, values_of(x), shape, reduced), 1, 100);
        }
      }
    }
  }
}

TEST_P(ReduceKernels, SizesAroundChunksAndSegments) {
  struct Case {
    Shape shape;
    unsigned mask;
  };
  for (const Case& item :
       {Case{{100003}, 1}, Case{{2, 70001}, 2}, Case{{70001, 3}, 1}, Case{{70001, 6}, 1},
        Case{{3000, 515}, 1}, Case{{5, 4000, 7}, 2}, Case{{1025, 17}, 2}, Case{{300, 1}, 1},
        Case{{1, 300}, 1}, Case{{40000, 2, 3}, 5}, Case{{20000, 2}, 2}, Case{{2, 20000, 2}, 5}}) {
    const Tensor x = tensor(test_values(numel_of(item.shape), 0, 1), item.shape);
    const Shape reduced = reduced_shape(item.shape, item.mask);
    const Tensor y = uninitialised(reduced);
    slots::reduce(ReduceOp::sum, x, y);
    expect_near(y, reference(ReduceOp::sum, values_of(x), item.shape, reduced), 8);
  }
}

TEST_P(ReduceKernels, ManyNumbersKeepTheirDigits) {
  const int64_t count = 10000019;
  const Tensor x = uninitialised({count});
  slots::fill(0.1, x);
  const Tensor y = uninitialised({1});
  slots::reduce(ReduceOp::sum, x, y);
  const double expected = static_cast<double>(0.1f) * static_cast<double>(count);
  EXPECT_NEAR(values_of(y)[0], expected, 1e-6 * expected);
}

TEST_P(ReduceKernels, ManyHalvesSumBeyondTheirRange) {
  for (const int64_t count : {65520, 70000}) {
    const Tensor x = full({count}, 1, {DType::f16, device()});
    const Tensor wide = uninitialised({1}), mean = uninitialised({1}, DType::f16);
    slots::reduce(ReduceOp::sum, x, wide);
    slots::reduce(ReduceOp::mean, x, mean);
    EXPECT_EQ(values_of(wide)[0], static_cast<double>(count));
    EXPECT_EQ(values_of(mean)[0], 1);
  }
}

TEST_P(ReduceKernels, EmptyInputsGiveTheNeutralResult) {
  const Tensor x = uninitialised({0, 3}), y = uninitialised({1, 3});
  slots::reduce(ReduceOp::sum, x, y);
  expect_near(y, {0, 0, 0});
  slots::reduce(ReduceOp::mean, x, y);
  expect_near(y, {NAN, NAN, NAN});
  const Tensor nothing = uninitialised({0, 1});
  slots::reduce(ReduceOp::sum, x, nothing);
}

TEST_P(ReduceKernels, ReadsStridedAndBroadcastViews) {
  const Tensor storage = tensor(test_values(400), {400});
  const Tensor x = strided(storage, {4, 5, 6}, {2, 0, 40}, 7);
  const Values stored = values_of(storage);
  Values expected(4, 0);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t k = 0; k < 6; ++k) expected[i] += 5 * stored[7 + 2 * i + 40 * k];
  }
  const Tensor y = uninitialised({4, 1, 1});
  slots::reduce(ReduceOp::sum, x, y);
  expect_near(y, expected, 2, 20);
}

TEST_P(ReduceKernels, TheBitsDoNotDependOnTheThreadCount) {
  const Tensor x = tensor(test_values(1000000), {1000, 1000});
  const int threads = num_threads();
  std::vector<Values> results;
  for (const int count : {1, 2, 5}) {
    set_num_threads(count);
    const Tensor all = uninitialised({1, 1}), rows = uninitialised({1000, 1}),
                 columns = uninitialised({1, 1000});
    for (const Tensor& y : {all, rows, columns}) slots::reduce(ReduceOp::sum, x, y);
    Values result = values_of(all);
    for (const Tensor& y : {rows, columns}) {
      for (const double value : values_of(y)) result.push_back(value);
    }
    results.push_back(result);
  }
  set_num_threads(threads);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST_P(ReduceKernels, MaxAlongFindsTheFirstOfEquals) {
  for (const DType dtype : dtypes()) {
    const Tensor x = tensor(
        {1, 3, 3, 2, -INFINITY, -INFINITY, -INFINITY, -INFINITY, 5, NAN, 6, NAN}, {3, 4}, dtype);
    const Tensor values = uninitialised({3, 1}, dtype), indices = uninitialised({3, 1}, DType::i64);
    slots::max_along(x, 1, values, indices);
    expect_near(values, {3, -INFINITY, NAN});
    EXPECT_EQ(indices.to_vector<int64_t>(), (std::vector<int64_t>{1, 0, 1}));
    slots::max_along(x, 1, View{}, indices);
    EXPECT_EQ(indices.to_vector<int64_t>(), (std::vector<int64_t>{1, 0, 1}));
  }
}

TEST_P(ReduceKernels, MaxAlongAndScatterAlongEveryAxis) {
  const Shape shape{4, 5, 6, 300};
  for (const MemoryFormat format : kFormats) {
    const Tensor x = tensor(test_values(numel_of(shape)), shape, DType::f32, format);
    const Values stored = values_of(x);
    for (int axis = 0; axis < 4; ++axis) {
      const Shape reduced = reduced_shape(shape, 1u << axis);
      const Tensor values = uninitialised(reduced), indices = uninitialised(reduced, DType::i64);
      slots::max_along(x, axis, values, indices);
      Values expected(static_cast<size_t>(numel_of(reduced)), -INFINITY);
      for (size_t i = 0; i < stored.size(); ++i) {
        double& to = expected[reduced_index(shape, reduced, static_cast<int64_t>(i))];
        to = std::max(to, stored[i]);
      }
      EXPECT_EQ(values_of(values), expected);
      // Scattering the maxima back leaves them where they were, and zero elsewhere.
      const Tensor dx = uninitialised(shape, DType::f32, format);
      slots::scatter_along(values, indices, axis, dx);
      const Values scattered = values_of(dx);
      std::vector<int> hits(expected.size(), 0);
      for (size_t i = 0; i < scattered.size(); ++i) {
        if (scattered[i] == 0) continue;
        ASSERT_EQ(scattered[i], stored[i]);
        ++hits[reduced_index(shape, reduced, static_cast<int64_t>(i))];
      }
      EXPECT_EQ(hits, std::vector<int>(expected.size(), 1));
    }
  }
}

}  // namespace
}  // namespace headroom
