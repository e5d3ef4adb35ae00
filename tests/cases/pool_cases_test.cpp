// Pooling: windows at the border, in ceil mode and over padding, ties and NaN.
#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/cases/image_case.h"

namespace headroom::cases {
namespace {

class PoolCase : public ImageCase {};
HEADROOM_CASES(PoolCase);

TEST_P(PoolCase, O37_CeilModeStartsNoWindowOutsideAndAveragesNoOverhang) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    {
      const Tensor x = tensor(sequence(42), {1, 1, 6, 7}, dtype, format);
      const Tensor y = max_pool2d(x, {.kernel = {1, 1}, .stride = {2, 2}, .ceil_mode = true});
      ASSERT_EQ(y.shape(), (Shape{1, 1, 3, 4}));
      EXPECT_EQ(values_of(y), (Values{0, 2, 4, 6, 14, 16, 18, 20, 28, 30, 32, 34}));
    }
    {
      const Tensor x = tensor(sequence(5), {1, 1, 1, 5}, dtype, format);
      const Pool2dOptions options{
          .kernel = {1, 2}, .stride = {1, 2}, .padding = {0, 1}, .ceil_mode = true};
      EXPECT_EQ(values_of(max_pool2d(x, options)), (Values{0, 2, 4}));
      EXPECT_EQ(values_of(avg_pool2d(x, options)), (Values{0, 1.5, 3.5}));
      Pool2dOptions uncounted = options;
      uncounted.count_padding = false;
      EXPECT_EQ(values_of(avg_pool2d(x, uncounted)), (Values{0, 1.5, 3.5}));
    }
    Tensor x = leaf(sequence(49), {1, 1, 7, 7}, dtype, format);
    const Tensor y = avg_pool2d(x, {.kernel = {2, 2}, .stride = {3, 3}, .ceil_mode = true});
    EXPECT_EQ(values_of(y), (Values{4, 7, 9.5, 25, 28, 30.5, 42.5, 45.5, 48}));
    backward_of_ones(y);
    // Each window shares 1 among what it covers: halves along the overhanging edges.
    const Values along = {0.5, 0.5, 0, 0.5, 0.5, 0, 1};
    EXPECT_EQ(values_of(x.grad()), product(along, along));
  });
}

// Kernel 3, stride 2, padding 1, ceil mode on length 6: windows at -1, 1, 3, 5; the last one covers
// element 5 and one padding, and would overhang by one more.
TEST_P(PoolCase, O37_CeilModeWithPadding) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    for (const bool counted : {true, false}) {
      Tensor x = leaf(sequence(6, 1), {1, 1, 6, 1}, dtype, format);
      const Pool2dOptions options{.kernel = {3, 1},
                                  .stride = {2, 1},
                                  .padding = {1, 0},
                                  .ceil_mode = true,
                                  .count_padding = counted};
      const Tensor y = avg_pool2d(x, options);
      expect_values(y, counted ? Values{1, 3, 5, 3} : Values{1.5, 3, 5, 6});
      backward_of_ones(y);
      const double third = 1.0 / 3;
      expect_values(x.grad(),
                    counted ? Values{third, 2 * third, third, 2 * third, third, third + 0.5}
                            : Values{0.5, 0.5 + third, third, 2 * third, third, third + 1},
                    tolerance_of(dtype));
      Tensor z = leaf(sequence(6, 1), {1, 1, 6, 1}, dtype, format);
      const Tensor largest = max_pool2d(z, options);
      EXPECT_EQ(values_of(largest), (Values{2, 4, 6, 6}));
      backward_of_ones(largest);
      EXPECT_EQ(values_of(z.grad()), (Values{0, 1, 0, 1, 0, 2}));
    }
  });
}

// Kernel 3 with dilation 2 reaches over 5, so 2 may be padded: windows at -2, 0, 2 and, in ceil
// mode, 4.
TEST_P(PoolCase, O37_CeilModeWithDilationAndPadding) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    for (const bool ceil_mode : {false, true}) {
      Tensor x = leaf(sequence(6, -6), {1, 1, 1, 6}, dtype, format);
      const Tensor y = max_pool2d(x, {.kernel = {1, 3},
                                      .stride = {1, 2},
                                      .padding = {0, 2},
                                      .dilation = {1, 2},
                                      .ceil_mode = ceil_mode});
      EXPECT_EQ(values_of(y), ceil_mode ? (Values{-4, -2, -2, -2}) : (Values{-4, -2, -2}));
      backward_of_ones(y);
      EXPECT_EQ(values_of(x.grad()), (Values{0, 0, 1, 0, ceil_mode ? 3.0 : 2.0, 0}));
    }
  });
}

TEST_P(PoolCase, O38_MaxPoolPaddingTiesAndNaN) {
  for_each_way([&](DType dtype, MemoryFormat format) {
    const TensorOptions options{dtype, device(), format};
    for (const int64_t channels : {1, 3, 8}) {
      const auto count = static_cast<size_t>(channels);
      const Pool2dOptions padded{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
      EXPECT_EQ(values_of(max_pool2d(full({1, channels, 4, 4}, -5, options), padded)),
                Values(4 * count, -5));
      EXPECT_EQ(values_of(max_pool2d(full({1, channels, 4, 4}, -INFINITY, options), padded)),
                Values(4 * count, -INFINITY));

      Tensor ties = zeros({1, channels, 2, 2}, options).set_requires_grad(true);
      backward_of_ones(max_pool2d(ties, {.kernel = {2, 2}}));
      Values first;
      for (int64_t c = 0; c < channels; ++c) first.insert(first.end(), {1, 0, 0, 0});
      EXPECT_EQ(values_of(ties.grad()), first) << "the first of equals, and no other";

      Values window;
      for (int64_t c = 0; c < channels; ++c) window.insert(window.end(), {1, NAN, 5, 6});
      Tensor x = leaf(window, {1, channels, 2, 2}, dtype, format);
      const Tensor y = max_pool2d(x, {.kernel = {2, 2}});
      for (const double v : values_of(y)) EXPECT_TRUE(std::isnan(v)) << v;
      backward_of_ones(y);
      Values second;
      for (int64_t c = 0; c < channels; ++c) second.insert(second.end(), {0, 1, 0, 0});
      EXPECT_EQ(values_of(x.grad()), second);
    }
    // Overlapping windows over equal values: every window pays exactly one element.
    Tensor flat = zeros({2, 3, 7, 7}, options).set_requires_grad(true);
    const Tensor y = max_pool2d(flat, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
    backward_of_ones(y);
    double total = 0;
    for (const double v : values_of(flat.grad())) total += v;
    EXPECT_EQ(total, static_cast<double>(y.numel()));
  });
}

}  // namespace
}  // namespace headroom::cases
