// The convolution slots on CUDA against plain loops in f64: directions, dtypes, formats, odd
// shapes, groups, workspace limits, timed search and determinism. Needs a GPU.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/settings.h"
#include "core/ops/workspace.h"
#include "tests/kernels/cuda_test.h"
#include "tests/kernels/kernel_test.h"

#ifdef HEADROOM_WITH_CUDA
#include "kernels/cuda/cudnn_conv.h"
#include "kernels/cuda/cudnn_conv_key.h"
#endif

namespace headroom {
namespace {

using testing_kernels::expect_near;
using testing_kernels::test_values;
using testing_kernels::unit_of;
using testing_kernels::Values;
using testing_kernels::values_of;

struct Case {
  const char* name;
  Shape x, w;
  Conv2dParams params = {};
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"3x3", {2, 16, 9, 9}, {24, 16, 3, 3}, {.padding = {1, 1}}},
      {"1x1", {3, 32, 7, 5}, {8, 32, 1, 1}},
      {"1x1 stride 2", {2, 16, 8, 8}, {16, 16, 1, 1}, {.stride = {2, 2}}},
      {"3x3 stride 2", {2, 8, 11, 10}, {16, 8, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
      {"7x7 stem", {2, 4, 20, 20}, {16, 4, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}},
      {"5x5 of one channel", {3, 1, 12, 12}, {6, 1, 5, 5}, {.padding = {2, 2}}},
      {"three channels", {2, 3, 10, 10}, {8, 3, 3, 3}, {.padding = {1, 1}}},
      {"odd channels", {2, 5, 7, 9}, {7, 5, 3, 3}, {.padding = {1, 1}}},
      {"axes apart",
       {2, 8, 12, 9},
       {8, 8, 3, 5},
       {.stride = {2, 1}, .padding = {0, 2}, .dilation = {2, 1}}},
      {"dilation", {1, 8, 13, 13}, {16, 8, 3, 3}, {.padding = {2, 2}, .dilation = {2, 2}}},
      {"groups", {2, 32, 6, 6}, {32, 8, 3, 3}, {.padding = {1, 1}, .groups = 4}},
      {"narrow groups", {2, 6, 6, 6}, {9, 2, 3, 3}, {.padding = {1, 1}, .groups = 3}},
      {"depthwise", {2, 16, 6, 6}, {16, 1, 3, 3}, {.padding = {1, 1}, .groups = 16}},
      {"one pixel", {4, 24, 1, 1}, {10, 24, 1, 1}},
      {"window of the image", {2, 8, 4, 4}, {5, 8, 4, 4}},
      {"one element", {1, 1, 1, 1}, {1, 1, 1, 1}},
  };
  return all;
}

Shape output_shape(const Case& c) {
  Shape y{c.x[0], c.w[0], 0, 0};
  for (int i = 0; i < 2; ++i) {
    const int64_t reach = c.params.dilation[i] * (c.w[i + 2] - 1) + 1;
    y[i + 2] = (c.x[i + 2] + 2 * c.params.padding[i] - reach) / c.params.stride[i] + 1;
  }
  return y;
}

// Calls fn(x index, w index, y index) for every product of the convolution.
template <class Fn>
void for_each_product(const Case& c, Fn&& fn) {
  const Shape y = output_shape(c);
  const int64_t group_inputs = c.w[1], group_outputs = c.w[0] / c.params.groups;
  const auto at = [](const Shape& s, int64_t a, int64_t b, int64_t i, int64_t j) {
    return ((a * s[1] + b) * s[2] + i) * s[3] + j;
  };
  for (int64_t n = 0; n < y[0]; ++n)
    for (int64_t k = 0; k < y[1]; ++k)
      for (int64_t p = 0; p < y[2]; ++p)
        for (int64_t q = 0; q < y[3]; ++q)
          for (int64_t ci = 0; ci < group_inputs; ++ci)
            for (int64_t r = 0; r < c.w[2]; ++r)
              for (int64_t s = 0; s < c.w[3]; ++s) {
                const int64_t i =
                    p * c.params.stride[0] - c.params.padding[0] + r * c.params.dilation[0];
                const int64_t j =
                    q * c.params.stride[1] - c.params.padding[1] + s * c.params.dilation[1];
                if (i < 0 || j < 0 || i >= c.x[2] || j >= c.x[3]) continue;
                const int64_t channel = k / group_outputs * group_inputs + ci;
                fn(static_cast<size_t>(at(c.x, n, channel, i, j)),
                   static_cast<size_t>(at(c.w, k, ci, r, s)),
                   static_cast<size_t>(at(y, n, k, p, q)));
              }
}

class CudaConv : public testing_kernels::CudaTest {
 protected:
  static Tensor make(const Shape& shape, DType dtype, MemoryFormat format, uint64_t seed) {
    return from_vector(test_values(numel_of(shape), -1, 1, seed), shape,
                       {dtype, Device::cuda(), format});
  }
  static Tensor poisoned(const Shape& shape, DType dtype, MemoryFormat format) {
    return full(shape, NAN, {dtype, Device::cuda(), format});
  }
  static Tensor workspace(ConvDirection direction, const Tensor& x, const Tensor& w,
                          const Tensor& y, const Conv2dParams& params, int64_t limit) {
    const int64_t bytes = conv2d_workspace_bytes(Device::cuda(), direction, x, w, y, params, limit);
    if (bytes == 0) return {};
    return full({bytes}, 255, {DType::u8, Device::cuda()});  // NaN to whoever reads it unwritten
  }
  static View view(const Tensor& tensor) { return tensor ? tensor.view() : View{}; }

  // All three directions of one case; dw_dtype may be f32 for half images.
  void check(const Case& c, DType dtype, MemoryFormat format, int64_t limit,
             DType bias_dtype = DType::f32, DType dw_dtype = DType::f64) {
    if (dw_dtype == DType::f64) dw_dtype = dtype;
    SCOPED_TRACE(std::string(c.name) + " " + name_of(dtype) + " " + name_of(format) + " limit " +
                 std::to_string(limit));
    const Shape y_shape = output_shape(c);
    const Tensor x = make(c.x, dtype, format, 1), w = make(c.w, dtype, format, 2);
    const Tensor dy = make(y_shape, dtype, format, 3);
    const Tensor bias = make({c.w[0]}, bias_dtype, MemoryFormat::contiguous, 4);
    const Values xv = values_of(x), wv = values_of(w), dyv = values_of(dy), bv = values_of(bias);
    Values y_ref(dyv.size()), dx_ref(xv.size()), dw_ref(wv.size());
    for_each_product(c, [&](size_t i, size_t j, size_t k) {
      y_ref[k] += xv[i] * wv[j];
      dx_ref[i] += dyv[k] * wv[j];
      dw_ref[j] += dyv[k] * xv[i];
    });
    const auto plane = static_cast<size_t>(y_shape[2] * y_shape[3]);
    for (size_t k = 0; k < y_ref.size(); ++k) y_ref[k] += bv[k / plane % bv.size()];

    // Sums of up to some hundred products below 1, in any order.
    constexpr double kUnits = 3, kScale = 64, kSingle = 0x1p-24;
    // A bias added after y was rounded: sums may cancel.
    const double coarse = unit_of(dtype) / kSingle;
    const double y_scale = bias_dtype == dtype ? kScale : kScale * coarse;
    const Tensor y = poisoned(y_shape, dtype, format);
    slots::conv2d(x, w, bias, c.params,
                  view(workspace(ConvDirection::forward, x, w, y, c.params, limit)), y);
    expect_near(y, y_ref, kUnits, y_scale);
    const Tensor dx = poisoned(c.x, dtype, format);
    slots::conv2d_backward_input(
        dy, w, c.params, view(workspace(ConvDirection::backward_input, dx, w, dy, c.params, limit)),
        dx);
    expect_near(dx, dx_ref, kUnits, kScale);
    const Tensor dw = poisoned(c.w, dw_dtype, format);
    slots::conv2d_backward_weight(
        x, dy, c.params,
        view(workspace(ConvDirection::backward_weight, x, dw, dy, c.params, limit)), dw);
    if (dw_dtype == dtype) {
      expect_near(dw, dw_ref, kUnits, kScale);
    } else {  // rounded to half on the way
      expect_near(dw, dw_ref, kUnits * coarse, kScale / coarse);
    }
  }

  static constexpr int64_t kLimit = int64_t{32} << 20;
};

TEST_F(CudaConv, MatchesPlainLoopsInEveryDtypeAndFormat) {
  for (const Case& c : cases()) {
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      for (const MemoryFormat format : testing_kernels::kFormats) check(c, dtype, format, kLimit);
    }
  }
}

TEST_F(CudaConv, TakesABiasOfAnyFloatingDtype) {
  for (const DType bias : {DType::f16, DType::bf16, DType::f32}) {
    check(cases()[0], DType::f16, MemoryFormat::channels_last, kLimit, bias);
    check(cases()[0], DType::f32, MemoryFormat::contiguous, 0, bias);
  }
}

TEST_F(CudaConv, WidensTheWeightGradientOfHalfImages) {
  for (const Case& c : {cases()[0], cases()[7]}) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      check(c, dtype, MemoryFormat::channels_last, kLimit, DType::f32, DType::f32);
      check(c, dtype, MemoryFormat::channels_last, 0, DType::f32, DType::f32);
    }
  }
}

TEST_F(CudaConv, WorksWithinAnyWorkspace) {
  for (const Case& c : cases()) {
    for (const int64_t limit : {int64_t{0}, int64_t{100}, int64_t{5000}}) {
      check(c, DType::f16, MemoryFormat::channels_last, limit);
      check(c, DType::f32, MemoryFormat::channels_last, limit);
      check(c, DType::f32, MemoryFormat::contiguous, limit);
    }
  }
}

TEST_F(CudaConv, NativeKernelsMatchPlainLoops) {
  for (Case c : cases()) {
    c.params.algorithm = ConvAlgorithm::native;
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      check(c, dtype, MemoryFormat::channels_last, kLimit);
      check(c, dtype, MemoryFormat::channels_last, 0);
    }
  }
}

TEST_F(CudaConv, TimedSearchGivesTheSameResults) {
  settings().cudnn_benchmark = true;
  for (const Case& c : {cases()[0], cases()[3], cases()[7]}) {
    check(c, DType::f16, MemoryFormat::channels_last, kLimit);
    check(c, DType::f32, MemoryFormat::channels_last, kLimit);
  }
}

TEST_F(CudaConv, IsMorePreciseWithoutTf32) {
  const Case c{"deep", {4, 128, 8, 8}, {64, 128, 3, 3}, {.padding = {1, 1}}};
  const Tensor x = make(c.x, DType::f32, MemoryFormat::channels_last, 1);
  const Tensor w = make(c.w, DType::f32, MemoryFormat::channels_last, 2);
  const Values xv = values_of(x), wv = values_of(w);
  Values reference(static_cast<size_t>(numel_of(output_shape(c))));
  for_each_product(c, [&](size_t i, size_t j, size_t k) { reference[k] += xv[i] * wv[j]; });
  const auto worst = [&](Tf32 tf32) {
    settings().tf32 = tf32;
    const Tensor y = poisoned(output_shape(c), DType::f32, MemoryFormat::channels_last);
    slots::conv2d(x, w, {}, c.params,
                  view(workspace(ConvDirection::forward, x, w, y, c.params, kLimit)), y);
    const Values got = values_of(y);
    double error = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error = std::max(error, std::abs(got[i] - reference[i]));
    }
    return error;
  };
  EXPECT_LT(worst(Tf32::off), 1e-4);
  const double rounded = worst(Tf32::conv);  // 1152 products with inputs rounded to 11 bits
  EXPECT_GT(rounded, 1e-4);
  EXPECT_LT(rounded, 0.1);
}

TEST_F(CudaConv, DeterministicPlansGiveTheSameBitsTwice) {
  settings().deterministic = true;
  const Case c{"wide", {32, 64, 16, 16}, {64, 64, 3, 3}, {.padding = {1, 1}}};
  for (const DType dtype : {DType::f16, DType::f32}) {
    const Tensor x = make(c.x, dtype, MemoryFormat::channels_last, 1);
    const Tensor dy = make(output_shape(c), dtype, MemoryFormat::channels_last, 2);
    Values first;
    for (int run = 0; run < 5; ++run) {
      const Tensor dw = poisoned(c.w, dtype, MemoryFormat::channels_last);
      slots::conv2d_backward_weight(
          x, dy, c.params,
          view(workspace(ConvDirection::backward_weight, x, dw, dy, c.params, kLimit)), dw);
      const Values now = values_of(dw);
      if (run == 0) first = now;
      EXPECT_EQ(now, first) << "run " << run;
    }
  }
}

TEST_F(CudaConv, EmptyBatchGivesNothingAndZeroGradients) {
  const Conv2dParams params{.padding = {1, 1}};
  const MemoryFormat format = MemoryFormat::channels_last;
  const Tensor x = make({0, 8, 6, 6}, DType::f16, format, 1);
  const Tensor w = make({4, 8, 3, 3}, DType::f16, format, 2);
  const Tensor y = poisoned({0, 4, 6, 6}, DType::f16, format);
  slots::conv2d(x, w, {}, params, {}, y);
  const Tensor dx = poisoned({0, 8, 6, 6}, DType::f16, format);
  slots::conv2d_backward_input(y, w, params, {}, dx);
  const Tensor dw = poisoned({4, 8, 3, 3}, DType::f32, format);
  slots::conv2d_backward_weight(x, y, params, {}, dw);
  EXPECT_EQ(values_of(dw), Values(4 * 8 * 9, 0.0));
}

TEST_F(CudaConv, PadsAndDropsChannels) {
  const MemoryFormat format = MemoryFormat::channels_last;
  for (const auto& [from, to] : {std::pair{3, 4}, {4, 3}, {1, 4}, {5, 8}, {8, 5}, {6, 4}}) {
    const Tensor x = make({2, from, 3, 5}, DType::f32, format, 1);
    const Values xv = values_of(x);
    for (const DType dtype : {DType::f32, DType::f16}) {
      const Tensor y = poisoned({2, to, 3, 5}, dtype, format);
      slots::pad_channels(x, y);
      Values reference(static_cast<size_t>(2 * to * 15));
      for (int n = 0; n < 2; ++n)
        for (int c = 0; c < std::min(from, to); ++c)
          for (int i = 0; i < 15; ++i)
            reference[static_cast<size_t>((n * to + c) * 15 + i)] =
                xv[static_cast<size_t>((n * from + c) * 15 + i)];
      expect_near(y, reference, 1);
    }
  }
}

TEST_F(CudaConv, ReadsOperandsThatAreNotAligned) {
  const Case c = cases()[0];
  const Tensor x = make(c.x, DType::f16, MemoryFormat::channels_last, 1);
  const Tensor w = make(c.w, DType::f16, MemoryFormat::channels_last, 2);
  const Tensor room = full({x.numel() + 1}, NAN, {DType::f16, Device::cuda()});
  const Tensor shifted =
      Tensor::make(room.storage(), 1, c.x, x.strides(), DType::f16, MemoryFormat::channels_last);
  slots::copy(x, shifted);
  const auto run = [&](const Tensor& input) {
    const Tensor y = poisoned(output_shape(c), DType::f16, MemoryFormat::channels_last);
    slots::conv2d(input, w, {}, c.params,
                  view(workspace(ConvDirection::forward, x, w, y, c.params, kLimit)), y);
    return y;
  };
  expect_near(run(shifted), values_of(run(x)), 2, 64);
}

#ifdef HEADROOM_WITH_CUDA
TEST(ConvPlanKey, DiffersInEverythingThatAPlanMayDependOn) {
  cuda::ConvCall call;
  call.x.shape = {2, 16, 9, 9};
  call.w.shape = {24, 16, 3, 3};
  call.y.shape = {2, 24, 9, 9};
  const cuda::PlanKey key = cuda::key_of(call);
  EXPECT_EQ(cuda::key_of(call), key);
  const auto differs = [&](auto&& change) {
    cuda::ConvCall other = call;
    change(other);
    return cuda::key_of(other) != key;
  };
  EXPECT_TRUE(differs([](auto& c) { c.direction = ConvDirection::backward_input; }));
  EXPECT_TRUE(differs([](auto& c) { c.x.shape[0] = 3; }));
  EXPECT_TRUE(differs([](auto& c) { c.w.shape[3] = 5; }));
  EXPECT_TRUE(differs([](auto& c) { c.y.shape[2] = 4; }));
  EXPECT_TRUE(differs([](auto& c) { c.x.dtype = DType::f16; }));
  EXPECT_TRUE(differs([](auto& c) { c.x.format = MemoryFormat::channels_last; }));
  EXPECT_TRUE(differs([](auto& c) { c.bias.defined = true; }));
  EXPECT_TRUE(differs([](auto& c) { c.params.stride[1] = 2; }));
  EXPECT_TRUE(differs([](auto& c) { c.params.padding[0] = 1; }));
  EXPECT_TRUE(differs([](auto& c) { c.params.dilation[1] = 2; }));
  EXPECT_TRUE(differs([](auto& c) { c.params.groups = 2; }));
  EXPECT_TRUE(differs([](auto& c) { c.workspace_bytes = 1; }));
  EXPECT_TRUE(differs([](auto& c) { c.w.data = reinterpret_cast<void*>(uintptr_t{8}); }));
  const Settings before = settings();
  for (const auto& change :
       {+[](Settings& s) { s.deterministic = !s.deterministic; },
        +[](Settings& s) { s.cudnn_benchmark = !s.cudnn_benchmark; },
        +[](Settings& s) { s.tf32 = s.tf32 == Tf32::off ? Tf32::conv : Tf32::off; }}) {
    change(settings());
    EXPECT_NE(cuda::key_of(call), key);
    settings() = before;
  }
}

TEST_F(CudaConv, ChoosesAPlanOncePerKey) {
  const Case c{"own shape", {3, 16, 11, 13}, {8, 16, 3, 3}, {.padding = {1, 1}}};
  const Tensor x = make(c.x, DType::f16, MemoryFormat::channels_last, 1);
  const Tensor w = make(c.w, DType::f16, MemoryFormat::channels_last, 2);
  const Tensor y = poisoned(output_shape(c), DType::f16, MemoryFormat::channels_last);
  const Tensor scratch = workspace(ConvDirection::forward, x, w, y, c.params, kLimit);
  const auto choices = [] {
    const std::string lines = cuda::describe_conv_plans();
    return std::count(lines.begin(), lines.end(), '\n');
  };
  const auto before = choices();
  for (int i = 0; i < 3; ++i) slots::conv2d(x, w, {}, c.params, view(scratch), y);
  EXPECT_EQ(choices(), before + 1);
  slots::conv2d(x, w, {}, c.params, {}, y);  // another workspace, another key
  EXPECT_EQ(choices(), before + 2);
  EXPECT_NE(cuda::describe_conv_plans().find("[3,16,11,13]"), std::string::npos);
}
#endif

}  // namespace
}  // namespace headroom
