// O45 to O48: the optimizers' rules step by step, and dropout at its limits.
#include <cmath>
#include <memory>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "nn/layers.h"
#include "optim/optimizer.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

class OptimizerCases : public CaseTest {
 protected:
  // f64 exists on the CPU only.
  std::vector<DType> dtypes() const {
    if (device().is_cuda()) return {DType::f32, DType::f16};
    return {DType::f32, DType::f16, DType::f64};
  }

  // Steps with the same gradient each time; the parameter must be `trace` in turn.
  void expect_trace(Optimizer& optimizer, Tensor& w, double gradient, const Values& trace) const {
    // A half parameter is rounded after every step, by 2^-12 where it lies in [0.5, 1).
    double relative = tolerance_of(w.dtype());
    for (const double wanted : trace) {
      optimizer.zero_grad();
      w.set_grad(full(w.shape(), gradient, {DType::f32, device()}));
      optimizer.step();
      expect_values(w, {wanted}, relative);
      if (is_half(w.dtype())) relative += 0x1p-11;
    }
  }
};
HEADROOM_CASES(OptimizerCases);

std::vector<ParameterGroup> group_of(const Tensor& w, double weight_decay = 0) {
  return {{.parameters = {w}, .weight_decay = weight_decay}};
}

TEST_P(OptimizerCases, O45_SgdDetails) {
  for (const DType dtype : dtypes()) {
    Tensor a = leaf({1}, {1}, dtype);
    Sgd dampened(group_of(a), {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
    expect_trace(dampened, a, 1, {0.9, 0.76, 0.584});
    Tensor b = leaf({2}, {1}, dtype);
    Sgd decays(group_of(b, 0.01), {.lr = 0.1});
    expect_trace(decays, b, 0.5, {1.948, 1.896052, 1.844155948});
  }
}

// The undampened step is the first that was applied.
TEST_P(OptimizerCases, O45_ASkippedStepIsNotTheFirst) {
  Tensor w = leaf({1}, {1});
  Sgd optimizer(group_of(w), {.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
  GradScaler scaler({.init_scale = 8}, device());
  w.set_grad(tensor({INFINITY}, {1}));
  optimizer.step({.scaler = &scaler});
  EXPECT_EQ(w.item(), 1);
  expect_trace(optimizer, w, 1, {0.9, 0.76, 0.584});
}

TEST_P(OptimizerCases, O46_AdamWithL2AgainstAdamWAndTheOrderOfDecay) {
  for (const DType dtype : dtypes()) {
    for (const bool decoupled : {true, false}) {
      Tensor w = leaf({1}, {1}, dtype);
      Adam optimizer(group_of(w, 0.5), {.lr = 0.1, .decoupled = decoupled});
      expect_trace(optimizer, w, 0.1,
                   decoupled ? Values{0.85, 0.7075, 0.572125} : Values{0.9, 0.8003208, 0.7012228});
    }
  }
}

// Nothing of a half copy's or a moment's rounding may move a weight whose gradient is 0.
TEST_P(OptimizerCases, O47_AdamOnHalfParametersWithAZeroGradient) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const DType of_gradient : {dtype, DType::f32}) {
      for (const bool decoupled : {false, true}) {
        for (const bool scaled : {false, true}) {
          const Values values = {1, -2, 0.5, -0.0, 0x1p-24};
          Tensor w = leaf(values, {5}, dtype);
          GradScaler scaler({.init_scale = 65536}, device());
          Adam optimizer(group_of(w), {.lr = 1e-3, .eps = 1e-8, .decoupled = decoupled});
          for (int i = 0; i < 3; ++i) {
            w.set_grad(zeros({5}, {of_gradient, device()}));
            optimizer.step({.scaler = scaled ? &scaler : nullptr, .clip_norm = 1});
          }
          EXPECT_EQ(values_of(w), values) << dtype;
          EXPECT_TRUE(std::signbit(values_of(w)[3])) << dtype;
          EXPECT_EQ(optimizer.applied_steps(), 3);
        }
      }
    }
  }
}

TEST_P(OptimizerCases, O48_DropoutLimits) {
  const Shape shape = {10, 10, 100, 100};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const MemoryFormat format : testing_kernels::kFormats) {
      // A million each; the layout matters to all types alike.
      if (format == MemoryFormat::channels_last && dtype != DType::f16) continue;
      Tensor x = empty(shape, {dtype, device(), format});
      normal_(x);
      x.set_requires_grad(true);
      const Values values = values_of(x), zeroes(values.size(), 0);
      const Tensor seed = full(shape, 3, {dtype, device(), format});

      const Tensor none = dropout(mul(x, 1), {.p = 1});
      EXPECT_EQ(values_of(none), zeroes);
      backward(none, seed);
      EXPECT_EQ(values_of(x.grad()), zeroes);
      x.set_grad({});

      const Tensor all = dropout(mul(x, 1), {.p = 0});
      EXPECT_EQ(values_of(all), values);
      backward(all, seed);
      EXPECT_EQ(values_of(x.grad()), Values(values.size(), 3));
      x.set_grad({});
    }
  }
}

// The mask decides, whatever it hides; and what lies next to the limits is finite.
TEST_P(OptimizerCases, O48_DropoutHidesInfinitiesAndStaysFiniteNextToOne) {
  const Tensor bad = tensor({INFINITY, -INFINITY, NAN, 1}, {4});
  EXPECT_EQ(values_of(dropout(bad, {.p = 1})), Values(4, 0));
  const Tensor x = ones({1'000'000}, {DType::f32, device()});
  for (const double p : {1e-12, 0x1p-25, 1 - 0x1p-25, 1 - 1e-12}) {
    for (const double v : values_of(dropout(x, {.p = p}))) ASSERT_TRUE(std::isfinite(v)) << p;
  }
}

TEST(DropoutCases, O48_DropoutRefusesWhatIsNoProbability) {
  const Tensor x = ones({4});
  for (const double p : Values{-0.1, 1.5, NAN, INFINITY}) {
    const std::string said = message_of([&] { dropout(x, {.p = p}); });
    EXPECT_NE(said.find("dropout: p must be in [0, 1]"), std::string::npos) << said;
    EXPECT_THROW(Dropout layer(p), InvalidArgument);
    EXPECT_THROW(dropout(x, {.p = p, .training = false}), InvalidArgument);
  }
}

}  // namespace
}  // namespace headroom::cases
