// The native convolutions on a GPU, at the sizes that lead to each tile, access and split. Results
// are compared with f64 sums at sampled elements; small shapes are covered by the contract tests.
#include <algorithm>
#include <cmath>

#include "core/base/settings.h"
#include "tests/kernels/conv_reference.h"
#include "tests/kernels/cuda_test.h"

namespace headroom::testing_kernels {
namespace {

constexpr int kSamples = 400;

// Element `index` of y, dx or dw, as a sum in f64; `sum_abs` receives the sum of magnitudes.
struct Sampled {
  double value = 0, magnitude = 0;
  void add(double product) {
    value += product;
    magnitude += std::abs(product);
  }
};

class NativeConv : public testing_kernels::CudaTest {
 protected:
  static Tensor image(const Shape& shape, DType dtype, uint64_t seed) {
    return from_vector(test_values(numel_of(shape), -1, 1, seed), shape,
                       {dtype, Device::cuda(), MemoryFormat::channels_last});
  }

  // All three directions of one convolution; `step` is the relative rounding of a product.
  void check(ConvCase item, DType dtype, double step = 0) {
    SCOPED_TRACE(item.name + " " + name_of(dtype));
    item.params.algorithm = ConvAlgorithm::native;
    const Shape y_shape = item.y();
    const Tensor x = image(item.x, dtype, 1), w = image(item.w, dtype, 2);
    const Tensor dy = image(y_shape, dtype, 3);
    const Tensor bias =
        from_vector(test_values(item.w[0], -1, 1, 4), {item.w[0]}, {DType::f32, Device::cuda()});
    x_ = values_of(x);
    w_ = values_of(w);
    dy_ = values_of(dy);
    const Values added = values_of(bias);

    const TensorOptions options{dtype, Device::cuda(), MemoryFormat::channels_last};
    const Tensor y = full(y_shape, NAN, options), dx = full(item.x, NAN, options);
    slots::conv2d(x, w, bias, item.params, View{}, y);
    slots::conv2d_backward_input(dy, w, item.params, View{}, dx);
    const int64_t plane = y_shape[2] * y_shape[3];
    compare(y, step, [&](int64_t i) {
      Sampled out = forward_at(item, i);
      out.add(added[static_cast<size_t>(i / plane % y_shape[1])]);
      return out;
    });
    compare(dx, step, [&](int64_t i) { return backward_input_at(item, i); });

    for (const DType dw_dtype : {dtype, DType::f32}) {
      for (const int64_t limit : {int64_t{0}, int64_t{32} << 20}) {
        TensorOptions dw_options = options;
        dw_options.dtype = dw_dtype;
        const Tensor dw = full(item.w, NAN, dw_options);
        const int64_t bytes =
            conv2d_workspace_bytes(Device::cuda(), ConvDirection::backward_weight, x.view(),
                                   dw.view(), dy.view(), item.params, limit);
        const Tensor workspace =
            bytes > 0 ? full({bytes}, 255, {DType::u8, Device::cuda()}) : Tensor();
        slots::conv2d_backward_weight(x, dy, item.params, workspace ? workspace.view() : View{},
                                      dw);
        compare(dw, step, [&](int64_t i) { return backward_weight_at(item, i); });
      }
    }
  }

 private:
  template <class Fn>
  void compare(const Tensor& tensor, double step, Fn&& reference) const {
    const Values values = values_of(tensor);
    const int64_t numel = tensor.numel();
    const double unit = unit_of(tensor.dtype());
    uint64_t state = 1;
    for (int sample = 0; sample < kSamples; ++sample) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      // The first and last elements are those that tiles cut off.
      const int64_t i = sample == 0   ? 0
                        : sample == 1 ? numel - 1
                                      : static_cast<int64_t>((state >> 16) % uint64_t(numel));
      const Sampled expected = reference(i);
      // Tensor cores truncate each partial sum, so long sums come out a little short.
      const double allowed =
          1.01 * unit * std::abs(expected.value) + 0x1p-24 + (step + 0x1p-19) * expected.magnitude;
      ASSERT_NEAR(values[static_cast<size_t>(i)], expected.value, allowed)
          << tensor.describe() << " at " << i;
    }
    // Nothing is left unwritten.
    const auto is_nan = [](double value) { return std::isnan(value); };
    ASSERT_EQ(std::count_if(values.begin(), values.end(), is_nan), 0) << tensor.describe();
  }

  static std::array<int64_t, 4> coordinates(const Shape& s, int64_t i) {
    return {i / (s[1] * s[2] * s[3]), i / (s[2] * s[3]) % s[1], i / s[3] % s[2], i % s[3]};
  }
  static size_t index(const Shape& s, int64_t a, int64_t b, int64_t c, int64_t d) {
    return static_cast<size_t>(((a * s[1] + b) * s[2] + c) * s[3] + d);
  }
  // The input position of an output position and a tap, along one axis; -1 outside.
  static int64_t source(const ConvCase& item, int axis, int64_t output, int64_t tap) {
    const int64_t at = output * item.params.stride[axis] - item.params.padding[axis] +
                       tap * item.params.dilation[axis];
    return at < 0 || at >= item.x[2 + axis] ? -1 : at;
  }

  Sampled forward_at(const ConvCase& item, int64_t i) const {
    const auto [n, k, p, q] = coordinates(item.y(), i);
    const int64_t first = k / (item.w[0] / item.params.groups) * item.w[1];
    Sampled out;
    for (int64_t r = 0; r < item.w[2]; ++r) {
      for (int64_t s = 0; s < item.w[3]; ++s) {
        const int64_t h = source(item, 0, p, r), v = source(item, 1, q, s);
        if (h < 0 || v < 0) continue;
        for (int64_t c = 0; c < item.w[1]; ++c) {
          out.add(x_[index(item.x, n, first + c, h, v)] * w_[index(item.w, k, c, r, s)]);
        }
      }
    }
    return out;
  }
  Sampled backward_input_at(const ConvCase& item, int64_t i) const {
    const auto [n, c, h, v] = coordinates(item.x, i);
    const Shape y = item.y();
    const int64_t outputs = item.w[0] / item.params.groups, group = c / item.w[1];
    Sampled out;
    for (int64_t r = 0; r < item.w[2]; ++r) {
      for (int64_t s = 0; s < item.w[3]; ++s) {
        const int64_t down = h + item.params.padding[0] - r * item.params.dilation[0];
        const int64_t across = v + item.params.padding[1] - s * item.params.dilation[1];
        if (down < 0 || across < 0 || down % item.params.stride[0] != 0 ||
            across % item.params.stride[1] != 0) {
          continue;
        }
        const int64_t p = down / item.params.stride[0], q = across / item.params.stride[1];
        if (p >= y[2] || q >= y[3]) continue;
        for (int64_t k = group * outputs; k < (group + 1) * outputs; ++k) {
          out.add(dy_[index(y, n, k, p, q)] * w_[index(item.w, k, c % item.w[1], r, s)]);
        }
      }
    }
    return out;
  }
  Sampled backward_weight_at(const ConvCase& item, int64_t i) const {
    const auto [k, c, r, s] = coordinates(item.w, i);
    const Shape y = item.y();
    const int64_t input = k / (item.w[0] / item.params.groups) * item.w[1] + c;
    Sampled out;
    for (int64_t n = 0; n < y[0]; ++n) {
      for (int64_t p = 0; p < y[2]; ++p) {
        for (int64_t q = 0; q < y[3]; ++q) {
          const int64_t h = source(item, 0, p, r), v = source(item, 1, q, s);
          if (h < 0 || v < 0) continue;
          out.add(x_[index(item.x, n, input, h, v)] * dy_[index(y, n, k, p, q)]);
        }
      }
    }
    return out;
  }

  Values x_, w_, dy_;
};

const ConvCase kLargeTiles{"large tiles", {11, 128, 46, 45}, {136, 128, 3, 3}, {.padding = {1, 1}}};
const ConvCase kNarrowOutput{"few columns", {11, 64, 66, 65}, {64, 64, 3, 3}, {.padding = {1, 1}}};
const ConvCase kStrided{
    "stride 2", {8, 72, 57, 56}, {72, 72, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}};
const ConvCase kOneByOne{"1x1 stride 2", {16, 136, 30, 30}, {264, 136, 1, 1}, {.stride = {2, 2}}};
const ConvCase kLargeWeight{"large weight", {2, 264, 6, 7}, {1544, 264, 3, 3}, {.padding = {1, 1}}};
const ConvCase kGroups{"groups", {4, 96, 20, 20}, {96, 24, 3, 3}, {.padding = {1, 1}, .groups = 4}};
const ConvCase kDepthwise{"depthwise",
                          {4, 96, 21, 20},
                          {96, 1, 3, 3},
                          {.stride = {2, 1}, .padding = {1, 1}, .groups = 96}};
const ConvCase kStem{"stem", {4, 3, 64, 65}, {64, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}};

TEST_F(NativeConv, MatchSampledSumsOnTensorCores) {
  for (const ConvCase& item : {kLargeTiles, kNarrowOutput, kStrided, kOneByOne, kLargeWeight,
                               kGroups, kDepthwise, kStem}) {
    check(item, DType::f16);
    if (HasFatalFailure()) return;
  }
  for (const ConvCase& item : {kLargeTiles, kStrided, kStem}) {
    check(item, DType::bf16);
    if (HasFatalFailure()) return;
  }
}

TEST_F(NativeConv, MatchSampledSumsInStrictF32) {
  for (const ConvCase& item : {kLargeTiles, kNarrowOutput, kStrided, kOneByOne, kLargeWeight,
                               kGroups, kDepthwise, kStem}) {
    check(item, DType::f32);
    if (HasFatalFailure()) return;
  }
}

TEST_F(NativeConv, RoundProductsOnlyToTf32WhereItIsAllowed) {
  settings().tf32 = Tf32::conv;
  for (const ConvCase& item : {kLargeTiles, kStrided, kLargeWeight, kGroups, kStem}) {
    check(item, DType::f32, 0x1p-10);
    if (HasFatalFailure()) return;
  }
}

TEST_F(NativeConv, CountBeyondThirtyOneBitsOfElements) {
  constexpr int64_t kBytes = int64_t{6} << 30;
  if (runtime_of(Device::cuda()).memory_info().free_bytes < kBytes) {
    GTEST_SKIP() << "needs " << kBytes << " bytes of device memory";
  }
  const TensorOptions options{DType::f16, Device::cuda(), MemoryFormat::channels_last};
  const Tensor x = ones({1, 516, 2048, 2048}, options);
  const Tensor w = full({1, 516, 3, 3}, 0.25, options), y = empty({1, 1, 2048, 2048}, options);
  Conv2dParams params{.padding = {1, 1}};
  params.algorithm = ConvAlgorithm::native;
  slots::conv2d(x, w, View{}, params, View{}, y);
  const std::vector<Half> out = y.to_vector<Half>();
  const auto at = [&](int64_t row, int64_t column) {
    return static_cast<float>(out[static_cast<size_t>(row * 2048 + column)]);
  };
  for (const int64_t i : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{2046}, int64_t{2047}}) {
    for (const int64_t j : {int64_t{0}, int64_t{7}, int64_t{1023}, int64_t{2047}}) {
      const bool row_edge = i == 0 || i == 2047, column_edge = j == 0 || j == 2047;
      const float expected = row_edge && column_edge ? 516 : row_edge || column_edge ? 774 : 1161;
      EXPECT_EQ(at(i, j), expected) << i << ", " << j;
    }
  }
}

TEST_F(NativeConv, RepeatTheirBits) {
  const TensorOptions options{DType::f16, Device::cuda(), MemoryFormat::channels_last};
  const Tensor x = image({8, 64, 33, 33}, DType::f16, 1),
               dy = image({8, 64, 33, 33}, DType::f16, 2);
  Conv2dParams params{.padding = {1, 1}};
  params.algorithm = ConvAlgorithm::native;
  Values first;
  for (int i = 0; i < 3; ++i) {
    const Tensor dw = empty({64, 64, 3, 3}, options);
    const int64_t bytes =
        conv2d_workspace_bytes(Device::cuda(), ConvDirection::backward_weight, x.view(), dw.view(),
                               dy.view(), params, int64_t{32} << 20);
    ASSERT_GT(bytes, 0);  // the sum is split
    const Tensor workspace = full({bytes}, 255, {DType::u8, Device::cuda()});
    slots::conv2d_backward_weight(x, dy, params, workspace, dw);
    if (i == 0) first = values_of(dw);
    EXPECT_EQ(values_of(dw), first);
  }
}

}  // namespace
}  // namespace headroom::testing_kernels
