// Convolution: strides that leave an edge, parameters that differ between height and width,
// transposed and empty inputs, and more elements than 2^31.
#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/contract.h"
#include "core/ops/ops.h"
#include "tests/cases/image_case.h"

namespace headroom::cases {
namespace {

class ConvCase : public ImageCase {};
HEADROOM_CASES(ConvCase);

TEST_P(ConvCase, O23_EmptyBatchThroughAConvolution) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    for (const int64_t groups : {1, 3}) {
      Tensor x = ones_leaf({0, 3, 8, 8}, dtype, format);
      Tensor w = ones_leaf({groups == 1 ? 4 : 6, 3 / groups, 3, 3}, dtype, format);
      Tensor b = ones_leaf({w.size(0)}, DType::f32, MemoryFormat::contiguous);
      const Tensor y = conv2d(x, w, b, {.padding = {1, 1}, .groups = groups});
      EXPECT_EQ(y.shape(), (Shape{0, w.size(0), 8, 8}));
      const Tensor loss = sum(y);
      EXPECT_EQ(loss.item(), 0);
      backward(loss);
      EXPECT_EQ(w.grad().shape(), w.shape());
      EXPECT_EQ(values_of(w.grad()), Values(static_cast<size_t>(w.numel()), 0));
      EXPECT_EQ(values_of(b.grad()), Values(static_cast<size_t>(b.numel()), 0));
      EXPECT_EQ(x.grad().shape(), x.shape());
    }
  });
}

// What usually follows a convolution takes an empty batch too.
TEST_P(ConvCase, O23_EmptyBatchThroughAWholeNetwork) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    Tensor x = ones_leaf({0, 3, 8, 8}, dtype, format), w = ones_leaf({4, 3, 3, 3}, dtype, format);
    Tensor gamma = ones_leaf({4}, DType::f32, MemoryFormat::contiguous);
    Tensor fc = ones_leaf({5, 4}, dtype, MemoryFormat::contiguous);
    const TensorOptions f32{DType::f32, device()};
    const Tensor mean = zeros({4}, f32), var = ones({4}, f32);
    Tensor y = batch_norm(conv2d(x, w), {gamma, {}, mean, var}, {.relu = true});
    y = avg_pool2d(max_pool2d(y, {.kernel = {2, 2}}), {.kernel = {3, 3}});
    y = linear(flatten(y, 1), fc);
    EXPECT_EQ(y.shape(), (Shape{0, 5}));
    backward(sum(y));
    EXPECT_EQ(values_of(w.grad()), Values(108, 0));
    EXPECT_EQ(values_of(gamma.grad()), Values(4, 0));
    EXPECT_EQ(values_of(fc.grad()), Values(20, 0));
    EXPECT_EQ(values_of(mean), Values(4, 0));
    EXPECT_EQ(values_of(var), Values(4, 1));
  });
}

TEST_P(ConvCase, O24_TransposedInputs) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    Tensor a = tensor(sequence(12), {1, 1, 3, 4}, dtype, format).set_requires_grad(true);
    Tensor w = leaf({1, 2, 3, 4}, {1, 1, 2, 2}, dtype, format);
    const Tensor y = conv2d(transpose(a, 2, 3), w);
    EXPECT_EQ(values_of(y), (Values{31, 71, 41, 81, 51, 91}));
    backward(sum(y));
    EXPECT_EQ(values_of(w.grad()), (Values{18, 42, 24, 48}));
    // Each of the 3 x 4 elements by the taps that reach it.
    EXPECT_EQ(values_of(a.grad()), (Values{1, 4, 4, 3, 3, 10, 10, 7, 2, 6, 6, 4}));
  });
}

// Parts, transposes and repetitions of a tensor are read as they are: by every op that hands
// pointers to a kernel, the gradient's layout included.
TEST_P(ConvCase, O24_ViewsOfEveryKind) {
  const Values pixels = testing_kernels::test_values(4 * 6 * 5 * 7, -2, 2, 11);
  for_each_way([&](DType dtype, MemoryFormat format) {
    const Tensor base = tensor(pixels, {4, 6, 5, 7}, dtype, format);
    const std::vector<std::function<Tensor(const Tensor&)>> views = {
        [](const Tensor& t) { return transpose(t, 2, 3); },
        [](const Tensor& t) {
          return permute(t, {3, 1, 0, 2});
        },
        [](const Tensor& t) { return slice(t, 0, 1, 3); },
        [](const Tensor& t) { return slice(t, 1, 2, 5); },
        [](const Tensor& t) { return slice(slice(t, 2, 1, 5), 3, 0, 6); },
        [](const Tensor& t) {
          return expand(slice(t, 0, 2, 3), {3, 6, 5, 7});
        },
        [](const Tensor& t) {
          return expand(slice(t, 1, 2, 3), {4, 6, 5, 7});
        },
    };
    for (size_t i = 0; i < views.size(); ++i) {
      SCOPED_TRACE("view " + std::to_string(i));
      const auto run = [&](bool dense) {
        Tensor x = base.detach().set_requires_grad(true);
        Tensor seen = views[i](x);
        // Written out anew from the values that the view shows.
        if (dense) seen = clone(seen);
        const int64_t c = seen.size(1);
        Tensor w =
            tensor(testing_kernels::test_values(2 * c * 9, -1, 1, 3), {2, c, 3, 3}, dtype, format)
                .set_requires_grad(true);
        Tensor gamma = ones({c}, {DType::f32, device()}).set_requires_grad(true);
        const Tensor parts[] = {conv2d(seen, w, {}, {.padding = {1, 1}}),
                                batch_norm(seen, {gamma, {}, {}, {}}, {.relu = true}),
                                max_pool2d(seen, {.kernel = {2, 2}}),
                                avg_pool2d(seen, {.kernel = {2, 2}})};
        std::vector<Values> out;
        for (const Tensor& y : parts) {
          backward(sum(mul(y, y)), {}, {.retain_graph = true});  // they share the view
          out.push_back(values_of(y));
          out.push_back(values_of(x.grad()));
          x.set_grad({});
        }
        out.push_back(values_of(w.grad()));
        out.push_back(values_of(gamma.grad()));
        return out;
      };
      const std::vector<Values> viewed = run(false), dense = run(true);
      for (size_t part = 0; part < dense.size(); ++part) {
        ASSERT_EQ(viewed[part].size(), dense[part].size());
        double largest = 1;
        for (const double v : dense[part]) largest = std::max(largest, std::abs(v));
        for (size_t j = 0; j < dense[part].size(); ++j) {
          ASSERT_NEAR(viewed[part][j], dense[part][j], tolerance_of(dtype) * largest * 4)
              << "result " << part << " at " << j;
        }
      }
    }
  });
}

TEST_P(ConvCase, O34_StrideThatDoesNotDivideTheInput) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    Tensor x = ones_leaf({1, 1, 6, 6}, dtype, format), w = ones_leaf({1, 1, 3, 3}, dtype, format);
    const Tensor y = conv2d(x, w, {}, {.stride = {2, 2}});
    EXPECT_EQ(y.shape(), (Shape{1, 1, 2, 2}));
    EXPECT_EQ(values_of(y), Values(4, 9));
    backward_of_ones(y);
    const Values along = {1, 1, 2, 1, 1, 0};
    EXPECT_EQ(values_of(x.grad()), product(along, along));
    EXPECT_EQ(values_of(w.grad()), Values(9, 4));
  });
}

// Stride 3 leaves two rows of 8; stride beyond the kernel leaves gaps; dilation 2 reaches over 5.
TEST_P(ConvCase, O34_StridesAndGapsOfOtherSizes) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    for (const int64_t c : {2, 16}) {
      for (const int64_t groups : {int64_t{1}, c}) {
        const double per_group = static_cast<double>(c / groups);
        {
          Tensor x = ones_leaf({2, c, 8, 7}, dtype, format);
          Tensor w = ones_leaf({c, c / groups, 3, 2}, dtype, format);
          const Tensor y = conv2d(x, w, {}, {.stride = {3, 3}, .groups = groups});
          ASSERT_EQ(y.shape(), (Shape{2, c, 2, 2}));
          EXPECT_EQ(values_of(y), Values(static_cast<size_t>(8 * c), 6 * per_group));
          backward_of_ones(y);
          const Values plane = product({1, 1, 1, 1, 1, 1, 0, 0}, {1, 1, 0, 1, 1, 0, 0});
          Values dx;
          for (int64_t i = 0; i < 2 * c; ++i) {
            for (const double v : plane) dx.push_back(v * per_group);
          }
          EXPECT_EQ(values_of(x.grad()), dx);
          EXPECT_EQ(values_of(w.grad()), Values(static_cast<size_t>(w.numel()), 8));
        }
        {
          Tensor x = ones_leaf({1, c, 8, 8}, dtype, format);
          Tensor w = ones_leaf({c, c / groups, 3, 3}, dtype, format);
          const Tensor y =
              conv2d(x, w, {}, {.stride = {2, 2}, .dilation = {2, 2}, .groups = groups});
          ASSERT_EQ(y.shape(), (Shape{1, c, 2, 2}));
          backward_of_ones(y);
          const Values along = {1, 0, 2, 0, 2, 0, 1, 0};
          Values dx;
          for (int64_t i = 0; i < c; ++i) {
            for (const double v : product(along, along)) dx.push_back(v * per_group);
          }
          EXPECT_EQ(values_of(x.grad()), dx);
          EXPECT_EQ(values_of(w.grad()), Values(static_cast<size_t>(w.numel()), 4));
        }
      }
    }
  });
}

TEST_P(ConvCase, O35_OneByOneConvolutionWithStrideTwo) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    Tensor x = tensor(joined({sequence(25), sequence(25, 100)}), {1, 2, 5, 5}, dtype, format)
                   .set_requires_grad(true);
    Tensor w = leaf({1, 10}, {1, 2, 1, 1}, dtype, format);
    const Tensor y = conv2d(x, w, {}, {.stride = {2, 2}});
    EXPECT_EQ(values_of(y), (Values{1000, 1022, 1044, 1110, 1132, 1154, 1220, 1242, 1264}));
    backward_of_ones(y);
    const Values dx = product({1, 0, 1, 0, 1}, {1, 0, 1, 0, 1});
    Values ten = dx;
    for (double& v : ten) v *= 10;
    EXPECT_EQ(values_of(x.grad()), joined({dx, ten}));
    EXPECT_EQ(values_of(w.grad()), (Values{108, 1008}));
  });
}

// The same shortcut with padding, where the first row of outputs sees nothing.
TEST_P(ConvCase, O35_OneByOneConvolutionWithStrideAndPadding) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    Tensor x = tensor(sequence(16, 1), {1, 1, 4, 4}, dtype, format).set_requires_grad(true);
    Tensor w = leaf({2, -3}, {2, 1, 1, 1}, dtype, format);
    Tensor b = leaf({1, 0}, {2});
    const Tensor y = conv2d(x, w, b, {.stride = {3, 2}, .padding = {1, 1}});
    ASSERT_EQ(y.shape(), (Shape{1, 2, 2, 3}));
    // Rows -1, 2; columns -1, 1, 3.
    EXPECT_EQ(values_of(y), (Values{1, 1, 1, 1, 21, 25, 0, 0, 0, 0, -30, -36}));
    backward_of_ones(y);
    Values dx(16, 0);
    dx[9] = dx[11] = -1;
    EXPECT_EQ(values_of(x.grad()), dx);
    EXPECT_EQ(values_of(w.grad()), (Values{22, 22}));
    EXPECT_EQ(values_of(b.grad()), (Values{6, 6}));
  });
}

TEST_P(ConvCase, O36_HeightAndWidthParametersAllDifferent) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    for (const int64_t channels : {1, 8}) {
      for (const int64_t groups : {int64_t{1}, channels}) {
        Tensor x = ones_leaf({1, channels, 7, 9}, dtype, format);
        Tensor w = ones_leaf({channels, channels / groups, 3, 5}, dtype, format);
        const Tensor y = conv2d(
            x, w, {}, {.stride = {1, 3}, .padding = {2, 1}, .dilation = {2, 1}, .groups = groups});
        ASSERT_EQ(y.shape(), (Shape{1, channels, 7, 3}));
        const double times = static_cast<double>(channels / groups);
        // Taps inside: rows 2, 2, 3, 3, 3, 2, 2 and columns 4, 5, 4.
        const Values plane = product({2, 2, 3, 3, 3, 2, 2}, {4 * times, 5 * times, 4 * times});
        Values wanted;
        for (int64_t k = 0; k < channels; ++k) {
          wanted.insert(wanted.end(), plane.begin(), plane.end());
        }
        EXPECT_EQ(values_of(y), wanted);
        backward_of_ones(y);
        // How many windows see each row and column, and how many outputs each tap serves.
        const Values seen = product({2, 2, 3, 3, 3, 2, 2}, {1, 1, 2, 2, 1, 2, 2, 1, 1});
        const Values taps = product({5, 7, 5}, {2, 3, 3, 3, 2});
        Values dx, dw;
        for (int64_t c = 0; c < channels; ++c) {
          for (const double v : seen) dx.push_back(v * times);
        }
        for (int64_t k = 0; k < w.size(0) * w.size(1); ++k) {
          dw.insert(dw.end(), taps.begin(), taps.end());
        }
        EXPECT_EQ(values_of(x.grad()), dx);
        EXPECT_EQ(values_of(w.grad()), dw);
      }
    }
  });
}

// Every number is exact in f16.
TEST_P(ConvCase, O39_MoreThanTwoToThe31ElementsInAConvolutionInput) {
  constexpr int64_t kSide = 2048, kChannels = 516;
  const Shape shape{1, kChannels, kSide, kSide}, w_shape{1, kChannels, 3, 3};
  const Conv2dOptions options{.padding = {1, 1}};
  const Device meta = Device::meta(device().type);
  for (const MemoryFormat format : testing_kernels::kFormats) {
    const int64_t before = memory_allocated(meta);
    Tensor x = ones(shape, {DType::f16, meta, format}).set_requires_grad(true);
    Tensor w = full(w_shape, 0.25, {DType::f16, meta, format}).set_requires_grad(true);
    const Tensor y = conv2d(x, w, {}, options);
    EXPECT_EQ(x.numel(), 2164260864);
    EXPECT_EQ(y.shape(), (Shape{1, 1, kSide, kSide}));
    // x, w (9288 bytes in blocks of 512) and y.
    EXPECT_EQ(memory_allocated(meta) - before, 4328521728 + 9728 + 8388608);
    backward(y, scalar(1, {DType::f16, meta}));
    EXPECT_EQ(x.grad().shape(), shape);
    EXPECT_EQ(w.grad().shape(), w_shape);
  }
  if (!device().is_cuda()) {
    GTEST_SKIP() << "20 billion products take the CPU minutes; its indices are tested by stride";
  }
  // x, its copy in the other format, the gradient in f16 (twice) and in f32.
  constexpr int64_t kBytes = int64_t{32} << 30;
  if (runtime_of(device()).memory_info().free_bytes < kBytes) {
    GTEST_SKIP() << "needs " << kBytes << " bytes of device memory";
  }
  const auto at_borders = [](const Tensor& plane, double interior, double edge, double corner) {
    const Values values = values_of(plane);
    ASSERT_EQ(values.size(), static_cast<size_t>(kSide * kSide));
    int64_t wrong = 0;
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide; ++j) {
        const int borders = (i == 0 || i == kSide - 1) + (j == 0 || j == kSide - 1);
        const double wanted = borders == 0 ? interior : borders == 1 ? edge : corner;
        wrong += values[static_cast<size_t>(i * kSide + j)] != wanted;
      }
    }
    EXPECT_EQ(wrong, 0);
  };
  for (const MemoryFormat format : testing_kernels::kFormats) {
    Tensor x = ones(shape, {DType::f16, device(), format}).set_requires_grad(true);
    Tensor w = full(w_shape, 0.25, {DType::f16, device(), format}).set_requires_grad(true);
    const Tensor y = conv2d(x, w, {}, options);
    at_borders(y, 1161, 774, 516);
    // 2^-12 each, so that the four million that a tap sums are 1024.
    backward(y, scalar(0x1p-12, {DType::f16, device()}));
    for (const int64_t c : {int64_t{0}, kChannels / 2, kChannels - 1}) {
      at_borders(slice(x.grad(), 1, c, c + 1), 2.25 * 0x1p-12, 1.5 * 0x1p-12, 0x1p-12);
    }
    const double edge = 1023.5, corner = 1023;  // 2047 of 2048 rows or columns, or of both
    Values dw;
    for (int64_t c = 0; c < kChannels; ++c) {
      const Values taps = {corner, edge, corner, edge, 1024, edge, corner, edge, corner};
      dw.insert(dw.end(), taps.begin(), taps.end());
    }
    expect_values(w.grad(), dw, tolerance_of(DType::f16));
  }
}

// The same offsets where few elements are read: 2^31 + 2^16 of them, of which the CPU touches 33
// rows.
TEST_P(ConvCase, O39_StridesOverMoreThanTwoToThe31Elements) {
  constexpr int64_t kHeight = (int64_t{1} << 15) + 1, kWidth = int64_t{1} << 16, kStep = 1024;
  constexpr int64_t kRows = 33, kColumns = 64;
  if (device().is_cuda() && runtime_of(device()).memory_info().free_bytes < int64_t{10} << 30) {
    GTEST_SKIP() << "needs 10 GiB of device memory";
  }
  Values wanted;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) wanted.push_back(static_cast<double>(i * 31 + j));
  }
  const NoGrad no_grad;
  const Tensor x = empty({1, 1, kHeight, kWidth}, {DType::f16, device()});
  slots::copy(
      tensor(wanted, {1, 1, kRows, kColumns}),
      testing_kernels::strided(x, {1, 1, kRows, kColumns},
                               {kHeight * kWidth, kHeight * kWidth, kStep * kWidth, kStep}));
  const Tensor pooled = max_pool2d(x, {.kernel = {1, 1}, .stride = {kStep, kStep}});
  EXPECT_EQ(values_of(pooled), wanted);
  const Tensor averaged = avg_pool2d(x, {.kernel = {1, 1}, .stride = {kStep, kStep}});
  EXPECT_EQ(values_of(averaged), wanted);
  const Tensor w = ones({1, 1, 1, 1}, {DType::f16, device()});
  EXPECT_EQ(values_of(conv2d(x, w, {}, {.stride = {kStep, kStep}})), wanted);
}

}  // namespace
}  // namespace headroom::cases
