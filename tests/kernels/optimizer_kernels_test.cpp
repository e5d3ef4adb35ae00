// Contract of sgd_step, adam_step, check_finite, clip_norm, prepare_step and finish_step.
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class OptimizerKernels : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (IsSkipped()) return;
    control_ = full({kControlFields}, 0, {DType::f32, device()});
    applied_ = integers({0}, {});
  }

  // One whole step: prepare, update, finish.
  template <class Update>
  void step(double lr, const PrepareParams& prepare, Update&& update) {
    slots::prepare_step(tensor({lr}, {1}), applied_, View{}, prepare, control_);
    update();
    slots::finish_step(control_, {}, applied_, View{}, View{});
  }
  void set_control(const Values& values) { control_ = tensor(values, {kControlFields}); }
  double field(ControlField index) const { return values_of(control_)[index]; }

  Tensor control_, applied_;
};
HEADROOM_ON_EACH_DEVICE(OptimizerKernels);

TEST_P(OptimizerKernels, SgdLeavesItsFirstStepUndampened) {
  const Tensor w = tensor({1}, {1}), g = tensor({1}, {1}), buffer = uninitialised({1});
  const SgdParams params{.momentum = 0.9, .dampening = 0.5};
  for (const double expected : {0.9, 0.76, 0.584}) {
    step(0.1, {}, [&] { slots::sgd_step({w}, {g}, {buffer}, {View{}}, control_, params); });
    EXPECT_NEAR(w.item(), expected, 1e-6);
  }
}

TEST_P(OptimizerKernels, SgdDecaysWithoutMomentumToo) {
  const Tensor w = tensor({2}, {1}), g = tensor({0.5}, {1});
  for (const double expected : {1.948, 1.896052, 1.844155948}) {
    step(0.1, {},
         [&] { slots::sgd_step({w}, {g}, {View{}}, {View{}}, control_, {.weight_decay = 0.01}); });
    EXPECT_NEAR(w.item(), expected, 1e-6);
  }
}

TEST_P(OptimizerKernels, AdamWDecaysBeforeTheStepAndAdamThroughTheGradient) {
  const PrepareParams prepare{.adam = true, .beta1 = 0.9, .beta2 = 0.999};
  for (const bool decoupled : {true, false}) {
    set_control(Values(kControlFields, 0));
    applied_ = integers({0}, {});
    const Tensor w = tensor({1}, {1}), g = tensor({0.1}, {1});
    const Tensor m = tensor({0}, {1}), v = tensor({0}, {1});
    const Values expected =
        decoupled ? Values{0.85, 0.7075, 0.572125} : Values{0.9, 0.8003208, 0.7012228};
    for (const double value : expected) {
      step(0.1, prepare, [&] {
        slots::adam_step({w}, {g}, {m}, {v}, {View{}}, control_,
                         {.weight_decay = 0.5, .decoupled = decoupled});
      });
      EXPECT_NEAR(w.item(), value, 1e-6) << (decoupled ? "decoupled" : "l2");
    }
  }
}

TEST_P(OptimizerKernels, AdamLeavesHalfParametersWithZeroGradientsAlone) {
  const PrepareParams prepare{.adam = true, .beta1 = 0.9, .beta2 = 0.999};
  const Tensor w = tensor({1, -2, 0.5}, {3}, DType::f16);
  const Tensor g = tensor({0, 0, 0}, {3}, DType::f16);
  const Tensor m = tensor({0, 0, 0}, {3}), v = tensor({0, 0, 0}, {3});
  for (int i = 0; i < 3; ++i) {
    step(1e-3, prepare, [&] { slots::adam_step({w}, {g}, {m}, {v}, {View{}}, control_, {}); });
  }
  EXPECT_EQ(values_of(w), (Values{1, -2, 0.5}));
}

// Lists of odd sizes, one of them empty and one longer than a task, against scalar references.
TEST_P(OptimizerKernels, SgdUpdatesListsAndTheirHalfCopies) {
  const std::vector<Shape> shapes = {{3}, {0}, {70001}, {4, 3, 3, 3}, {}};
  for (const bool nesterov : {false, true}) {
    for (const DType gradient_dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const DType half : {DType::f16, DType::bf16}) {
        ViewList parameters, gradients, momenta, halves;
        std::vector<Tensor> owners;
        std::vector<Values> expected, buffers;
        const SgdParams params{.lr_factor = 0.5,
                               .momentum = 0.9,
                               .dampening = nesterov ? 0.0 : 0.25,
                               .weight_decay = 0.01,
                               .nesterov = nesterov,
                               .maximize = nesterov};
        for (const Shape& shape : shapes) {
          const MemoryFormat format =
              shape.rank() == 4 ? MemoryFormat::channels_last : MemoryFormat::contiguous;
          const int64_t count = numel_of(shape);
          const Tensor p = tensor(test_values(count), shape, DType::f32, format);
          const Tensor g = tensor(test_values(count, -1, 1, 2), shape, gradient_dtype, format);
          const Tensor b = tensor(test_values(count, -1, 1, 3), shape, DType::f32, format);
          const Tensor h = uninitialised(shape, half, format);
          Values p_values = values_of(p), g_values = values_of(g), b_values = values_of(b);
          for (size_t i = 0; i < p_values.size(); ++i) {
            const double scaled = (nesterov ? -1 : 1) * g_values[i] * 0.125 * 0.5;
            const double decayed = scaled + 0.01 * p_values[i];
            b_values[i] = 0.9 * b_values[i] + (1 - params.dampening) * decayed;
            p_values[i] -= 0.2 * 0.5 * (nesterov ? decayed + 0.9 * b_values[i] : b_values[i]);
          }
          expected.push_back(p_values);
          buffers.push_back(b_values);
          parameters.push_back(p);
          gradients.push_back(g);
          momenta.push_back(b);
          halves.push_back(owners.size() == 0 ? View{} : h.view());
          owners.insert(owners.end(), {p, g, b, h});
        }
        set_control({0.2, 0.125, 0, 0.5, 0, 1, 1});
        slots::sgd_step(parameters, gradients, momenta, halves, control_, params);
        for (size_t i = 0; i < shapes.size(); ++i) {
          expect_near(owners[4 * i], expected[i], 2, 2);
          expect_near(owners[4 * i + 2], buffers[i], 2, 2);
          if (i == 0) continue;
          const Tensor rounded = uninitialised(shapes[i], half);
          slots::copy(owners[4 * i], rounded);
          EXPECT_EQ(values_of(owners[4 * i + 3]), values_of(rounded));
        }
      }
    }
  }
}

TEST_P(OptimizerKernels, AdamMatchesItsDefinition) {
  for (const DType dtype : dtypes()) {
    const DType state = dtype == DType::f64 ? DType::f64 : DType::f32;
    const int64_t count = 40003;
    const Tensor p = tensor(test_values(count), {count}, dtype);
    const Tensor g = tensor(test_values(count, -1, 1, 2), {count}, dtype);
    const Tensor m = tensor(test_values(count, -1, 1, 3), {count}, state);
    const Tensor v = tensor(test_values(count, 0.1, 1, 4), {count}, state);
    Values p_values = values_of(p), m_values = values_of(m), v_values = values_of(v);
    const Values g_values = values_of(g);
    set_control({0.25, 0.5, 0, 1, 0, 0.125, 0.25});
    const AdamParams params{.beta1 = 0.75, .beta2 = 0.875, .eps = 0.0625, .maximize = true};
    slots::adam_step({p}, {g}, {m}, {v}, {View{}}, control_, params);
    for (size_t i = 0; i < p_values.size(); ++i) {
      const double gradient = -0.5 * g_values[i];
      m_values[i] = 0.75 * m_values[i] + 0.25 * gradient;
      v_values[i] = 0.875 * v_values[i] + 0.125 * gradient * gradient;
      p_values[i] -= 0.25 * (m_values[i] / 0.125) / (std::sqrt(v_values[i] / 0.25) + 0.0625);
    }
    expect_near(m, m_values, 2, 2);
    expect_near(v, v_values, 2, 2);
    expect_near(p, p_values, 2, 8);
  }
}

TEST_P(OptimizerKernels, AnOverflowSkipsEverything) {
  const Tensor p = tensor({1, 2}, {2}), g = tensor({INFINITY, 1}, {2}), b = tensor({3, 4}, {2});
  const Tensor v = tensor({5, 6}, {2}), half = tensor({7, 8}, {2}, DType::f16);
  set_control({0.1, 1, 1, 1, 0, 1, 1});
  slots::sgd_step({p}, {g}, {b}, {half}, control_, {.momentum = 0.9, .weight_decay = 1});
  slots::adam_step({p}, {g}, {b}, {v}, {half}, control_, {});
  EXPECT_EQ(values_of(p), (Values{1, 2}));
  EXPECT_EQ(values_of(b), (Values{3, 4}));
  EXPECT_EQ(values_of(v), (Values{5, 6}));
  EXPECT_EQ(values_of(half), (Values{7, 8}));
  slots::finish_step(control_, {}, applied_, View{}, View{});
  EXPECT_EQ(applied_.to_vector<int64_t>()[0], 0);
}

TEST_P(OptimizerKernels, CheckFiniteFindsOneBadElementAnywhere) {
  for (const DType dtype : dtypes()) {
    for (const double bad : {static_cast<double>(INFINITY), -static_cast<double>(INFINITY),
                             static_cast<double>(NAN)}) {
      for (const size_t place : {size_t{0}, size_t{32768}, size_t{65542}}) {
        Values values = test_values(65543);
        set_control(Values(kControlFields, 0));
        const Tensor small = tensor({1}, {1}, dtype);
        slots::check_finite({small, tensor(values, {65543}, dtype)}, control_);
        EXPECT_EQ(field(kFoundInf), 0);
        values[place] = bad;
        slots::check_finite({small, tensor(values, {65543}, dtype), small}, control_);
        EXPECT_EQ(field(kFoundInf), 1) << dtype << " " << place;
        slots::check_finite({small}, control_);
        EXPECT_EQ(field(kFoundInf), 1) << "it was set back";
      }
    }
  }
}

TEST_P(OptimizerKernels, ClipNormSeesUnscaledGradients) {
  set_control({0.1, 1.0 / 4096, 0, 1, 0, 1, 1});
  slots::clip_norm({tensor({3 * 4096.0}, {1}), tensor({4 * 4096.0}, {1})}, 1, control_);
  EXPECT_NEAR(field(kGradNorm), 5, 1e-6);
  EXPECT_NEAR(field(kClip), 0.2, 1e-6);
}

TEST_P(OptimizerKernels, ClipNormOfHalvesDoesNotOverflow) {
  set_control({0.1, 1, 0, 1, 0, 1, 1});
  const Tensor g = tensor({300, 300, 300, 300}, {4}, DType::f16);
  slots::clip_norm({g}, 1, control_);
  EXPECT_NEAR(field(kGradNorm), 600, 1e-3);
  EXPECT_NEAR(300 * field(kClip), 0.5, 1e-6);
}

TEST_P(OptimizerKernels, ClipNormOfLongListsAndWithoutALimit) {
  ViewList gradients;
  std::vector<Tensor> owners;
  double squares = 0;
  for (const int64_t count : {1, 0, 70001, 1030}) {
    owners.push_back(tensor(test_values(count), {count}));
    for (const double value : values_of(owners.back())) squares += value * value;
    gradients.push_back(owners.back());
  }
  set_control({0.1, 0.5, 0, 0.75, 0, 1, 1});
  slots::clip_norm(gradients, 0, control_);
  EXPECT_NEAR(field(kGradNorm), 0.5 * std::sqrt(squares), 1e-5 * std::sqrt(squares));
  EXPECT_EQ(field(kClip), 0.75);
  slots::clip_norm(gradients, 1e9, control_);
  EXPECT_EQ(field(kClip), 1);
}

TEST_P(OptimizerKernels, PrepareTakesRatesByAppliedSteps) {
  const Tensor rates = tensor({0.5, 0.25, 0.125}, {3}), scale = tensor({1024}, {});
  for (const auto& [applied, lr] : {std::pair<int64_t, double>{0, 0.5}, {2, 0.125}, {9, 0.125}}) {
    set_control(Values(kControlFields, NAN));
    slots::prepare_step(rates, integers({applied}, {}), scale, {}, control_);
    EXPECT_EQ(field(kLr), lr);
    EXPECT_EQ(field(kInvScale), 1.0 / 1024);
    EXPECT_EQ(field(kFoundInf), 0);
    EXPECT_EQ(field(kClip), 1);
    EXPECT_EQ(field(kBias1), applied == 0 ? 0 : 1);
    slots::prepare_step(rates, integers({applied}, {}), View{}, {true, 0.9, 0.999}, control_);
    EXPECT_EQ(field(kInvScale), 1);
    const double t = static_cast<double>(applied + 1);
    EXPECT_NEAR(field(kBias1), 1 - std::pow(0.9, t), 1e-7);
    EXPECT_NEAR(field(kBias2), 1 - std::pow(0.999, t), 1e-9 * t);
  }
}

TEST_P(OptimizerKernels, ScalerFollowsItsTrace) {
  const Tensor scale = tensor({1024}, {}), tracker = integers({0}, {});
  const ScalerParams params{.growth_interval = 3};
  const std::string steps = "FFXFFFFXXFFF";
  const std::vector<double> scales = {1024, 1024, 512, 512, 512, 1024,
                                      1024, 512,  256, 256, 256, 512};
  const std::vector<int64_t> trackers = {1, 2, 0, 1, 2, 0, 1, 0, 0, 1, 2, 0};
  int64_t clean = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    set_control({0.1, 1, steps[i] == 'X' ? 1.0 : 0.0, 1, 0, 1, 1});
    slots::finish_step(control_, params, applied_, scale, tracker);
    clean += steps[i] == 'F';
    EXPECT_EQ(scale.item(), scales[i]) << i;
    EXPECT_EQ(tracker.to_vector<int64_t>()[0], trackers[i]) << i;
    EXPECT_EQ(applied_.to_vector<int64_t>()[0], clean) << i;
  }
}

TEST_P(OptimizerKernels, TheScaleStaysFiniteAndPositive) {
  const Tensor scale = tensor({65536}, {}), tracker = integers({0}, {});
  const ScalerParams params{.growth_interval = 1};
  for (const double found_inf : {1.0, 0.0}) {
    for (int i = 0; i < 300; ++i) {
      set_control({0.1, 1, found_inf, 1, 0, 1, 1});
      slots::finish_step(control_, params, applied_, scale, tracker);
      slots::prepare_step(tensor({1}, {1}), applied_, scale, {}, control_);
      ASSERT_TRUE(std::isfinite(scale.item()) && scale.item() > 0);
      ASSERT_TRUE(std::isfinite(field(kInvScale)) && field(kInvScale) > 0);
      ASSERT_EQ(scale.item() * field(kInvScale), 1);
    }
  }
}

TEST_P(OptimizerKernels, UnscalingHappensInF32) {
  // 2e-8 is below f16's smallest step until it is scaled.
  const Tensor g = tensor({2e-8 * 65536}, {1}, DType::f16), w = tensor({0}, {1});
  set_control({1, 1.0 / 65536, 0, 1, 0, 1, 1});
  slots::sgd_step({w}, {g}, {View{}}, {View{}}, control_, {});
  EXPECT_NEAR(w.item(), -1.9994332e-8, 1e-14);
}

}  // namespace
}  // namespace headroom
