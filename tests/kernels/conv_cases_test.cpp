// Convolutions worked out by hand: odd sizes, strides and padding that users of other frameworks
// ran into.
#include "core/base/settings.h"
#include "tests/kernels/conv_reference.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class ConvCases : public ConvTest {
 protected:
  void SetUp() override {
    ConvTest::SetUp();
    settings().tf32 = Tf32::off;
  }
  void TearDown() override { settings() = Settings{}; }

  static Values ones(const Shape& shape) {
    return Values(static_cast<size_t>(numel_of(shape)), 1.0);
  }
  static Values sequence(int64_t count, double first = 0) {
    Values out;
    for (int64_t i = 0; i < count; ++i) out.push_back(first + static_cast<double>(i));
    return out;
  }
  // Runs fn(item, dtype) for every algorithm, in f32 and f16.
  template <class Fn>
  void for_each_way(ConvCase item, Fn&& fn) const {
    for (const ConvAlgorithm algorithm : algorithms()) {
      item.params.algorithm = algorithm;
      for (const DType dtype : {DType::f32, DType::f16}) fn(item, dtype);
    }
  }
};
HEADROOM_ON_EACH_DEVICE(ConvCases);

TEST_P(ConvCases, AStrideThatDoesNotDivideTheInputLeavesTheEdgeWithoutGradient) {
  const ConvCase base{"", {1, 1, 6, 6}, {1, 1, 3, 3}, {.stride = {2, 2}}};
  for_each_way(base, [&](const ConvCase& item, DType dtype) {
    const Tensor x = image(ones(item.x), item.x, dtype), w = image(ones(item.w), item.w, dtype);
    const Tensor dy = image(ones(item.y()), item.y(), dtype);
    EXPECT_EQ(values_of(forward(item, x, w, Tensor())), Values(4, 9.0));
    const double along[] = {1, 1, 2, 1, 1, 0};
    Values dx;
    for (const double v : along) {
      for (const double h : along) dx.push_back(v * h);
    }
    EXPECT_EQ(values_of(backward_input(item, dy, w)), dx);
    EXPECT_EQ(values_of(backward_weight(item, x, dy, dtype)), Values(9, 4.0));
  });
}

TEST_P(ConvCases, AOneByOneKernelObeysItsStride) {
  const ConvCase base{"", {1, 2, 5, 5}, {1, 2, 1, 1}, {.stride = {2, 2}}};
  for_each_way(base, [&](const ConvCase& item, DType dtype) {
    Values pixels = sequence(25);
    const Values second = sequence(25, 100);
    pixels.insert(pixels.end(), second.begin(), second.end());
    const Tensor x = image(pixels, item.x, dtype), w = image({1, 10}, item.w, dtype);
    const Tensor dy = image(ones(item.y()), item.y(), dtype);
    EXPECT_EQ(values_of(forward(item, x, w, Tensor())),
              (Values{1000, 1022, 1044, 1110, 1132, 1154, 1220, 1242, 1264}));
    Values dx(50, 0.0);
    for (size_t i = 0; i < 5; i += 2) {
      for (size_t j = 0; j < 5; j += 2) {
        dx[i * 5 + j] = 1;
        dx[25 + i * 5 + j] = 10;
      }
    }
    EXPECT_EQ(values_of(backward_input(item, dy, w)), dx);
    EXPECT_EQ(values_of(backward_weight(item, x, dy, dtype)), (Values{108, 1008}));
  });
}

TEST_P(ConvCases, HeightAndWidthParametersAreNotSwapped) {
  const ConvCase base{
      "", {1, 1, 7, 9}, {1, 1, 3, 5}, {.stride = {1, 3}, .padding = {2, 1}, .dilation = {2, 1}}};
  for_each_way(base, [&](const ConvCase& item, DType dtype) {
    ASSERT_EQ(item.y(), (Shape{1, 1, 7, 3}));
    const Tensor x = image(ones(item.x), item.x, dtype), w = image(ones(item.w), item.w, dtype);
    const Values edge = {8, 10, 8}, middle = {12, 15, 12};
    Values y;
    for (const Values& row : {edge, edge, middle, middle, middle, edge, edge}) {
      y.insert(y.end(), row.begin(), row.end());
    }
    EXPECT_EQ(values_of(forward(item, x, w, Tensor())), y);
  });
}

TEST_P(ConvCases, ATransposedImageConvolvesAsItReads) {
  // 0..11 as 3 x 4, transposed to 4 x 3.
  const ConvCase base{"", {1, 1, 4, 3}, {1, 1, 2, 2}, {}};
  for_each_way(base, [&](const ConvCase& item, DType dtype) {
    const Tensor x = image({0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}, item.x, dtype);
    const Tensor w = image({1, 2, 3, 4}, item.w, dtype);
    EXPECT_EQ(values_of(forward(item, x, w, Tensor())), (Values{31, 71, 41, 81, 51, 91}));
    const Tensor dy = image(ones(item.y()), item.y(), dtype);
    EXPECT_EQ(values_of(backward_weight(item, x, dy, dtype)), (Values{18, 42, 24, 48}));
  });
}

}  // namespace
}  // namespace headroom
