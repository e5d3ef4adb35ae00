// Batch normalisation: statistics that survive halves and large means, which variance is kept, what
// a bad batch leaves behind, and gradients worked out by hand. Every case runs alone, with ReLU and
// with a residual, in both memory formats.
#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "nn/layers.h"
#include "optim/optimizer.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

// One way to run a case: the same samples in each of `channels` channels.
struct Way {
  DType dtype = DType::f32;
  MemoryFormat format = MemoryFormat::contiguous;
  int64_t channels = 1;
  bool relu = false;
  bool residual = false;
};

std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << name_of(way.dtype) << " format " << static_cast<int>(way.format) << ", "
             << way.channels << " channels" << (way.relu ? ", relu" : "")
             << (way.residual ? ", residual" : "");
}

class BatchNormCase : public CaseTest {
 protected:
  template <class Fn>
  void for_each_way(const std::vector<DType>& dtypes, Fn&& fn) const {
    for (const DType dtype : dtypes) {
      for (const MemoryFormat format : testing_kernels::kFormats) {
        for (const int64_t channels : {1, 8, 35}) {
          for (int form = 0; form < 4; ++form) {
            const Way way{dtype, format, channels, (form & 1) != 0, (form & 2) != 0};
            std::ostringstream label;
            label << way;
            SCOPED_TRACE(label.str());
            fn(way);
          }
        }
      }
    }
  }

  // Samples of one channel (an even number) as images [samples/2, channels, 2, 1], and back.
  static Values spread(const Values& samples, const Way& way) {
    Values out;
    for (size_t i = 0; i < samples.size(); i += 2) {
      for (int64_t c = 0; c < way.channels; ++c) {
        out.push_back(samples[i]);
        out.push_back(samples[i + 1]);
      }
    }
    return out;
  }
  Tensor images(const Values& samples, const Way& way) const {
    const Shape shape{static_cast<int64_t>(samples.size()) / 2, way.channels, 2, 1};
    return tensor(spread(samples, way), shape, way.dtype, way.format);
  }
  Tensor per_channel(double value, const Way& way) const {
    return full({way.channels}, value, {DType::f32, device()});
  }
  BatchNormState fresh_state(const Way& way, double gamma = 1, double beta = 0) const {
    BatchNormState state{per_channel(gamma, way), per_channel(beta, way), per_channel(0, way),
                         per_channel(1, way)};
    state.gamma.set_requires_grad(true);
    state.beta.set_requires_grad(true);
    return state;
  }
  // The residual of a way that has one: 0.5 everywhere.
  static constexpr double kResidual = 0.5;
  Tensor residual_of(const Tensor& x, const Way& way) const {
    return way.residual ? full(x.shape(), kResidual, x.options()) : Tensor();
  }
  // What the norm alone gives, as the way's form shows it.
  static Values seen(Values normalized, const Way& way) {
    for (double& v : normalized) {
      if (way.residual) v += kResidual;
      if (way.relu) v = std::max(v, 0.0);
    }
    return normalized;
  }
  // Relative to the normalized values, which a residual may almost cancel.
  static void expect_output(const Tensor& y, const Values& normalized, const Way& way,
                            double relative = 0) {
    const Values values = values_of(y), plain = spread(normalized, way),
                 wanted = spread(seen(normalized, way), way);
    ASSERT_EQ(values.size(), wanted.size());
    if (relative == 0) relative = tolerance_of(way.dtype);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(values[i], wanted[i], relative * std::abs(plain[i])) << i;
    }
  }
  void expect_running(const BatchNormState& state, double mean, double var, const Way& way) const {
    // A mean of 0 is as exact as the spread around it.
    const double exact = 1e-6 * std::max(std::abs(mean), std::sqrt(var));
    const Values means = values_of(state.running_mean);
    ASSERT_EQ(means.size(), static_cast<size_t>(way.channels));
    for (const double v : means) EXPECT_NEAR(v, mean, exact);
    expect_values(state.running_var, Values(means.size(), var));
  }
  // Trains one step and compares output and running averages.
  void expect_step(const Values& samples, const Values& normalized, double running_mean,
                   double running_var, const Way& way, double eps = 1e-5) const {
    const Tensor x = images(samples, way);
    const BatchNormState state = fresh_state(way);
    const Tensor y = batch_norm(x, state, {.eps = eps, .relu = way.relu}, residual_of(x, way));
    expect_output(y, normalized, way);
    expect_running(state, running_mean, running_var, way);
  }
};
HEADROOM_CASES(BatchNormCase);

TEST_P(BatchNormCase, O18_HalfActivationsBeyond256) {
  const Autocast region(DType::f16);
  for_each_way({DType::f16}, [&](const Way& way) {
    expect_step({300, -300, 300, -300}, {1, -1, 1, -1}, 0, 12000.9, way);
    // As far as halves reach: the unbiased variance is 60000^2 * 6 / 5.
    expect_step({60000, -60000, 60000, -60000, 60000, -60000}, {1, -1, 1, -1, 1, -1}, 0,
                0.9 + 0.1 * 3.6e9 * 6 / 5, way);
  });
}

// A variance of 1 around 10000 is lost if squares are summed first.
TEST_P(BatchNormCase, O19_LargeMeanSmallSpread) {
  const double one = 0.999995;  // 1 / sqrt(1 + eps)
  for_each_way({DType::f32}, [&](const Way& way) {
    expect_step({9999, 10001, 9999, 10001}, {-one, one, -one, one}, 1000, 0.9 + 0.4 / 3, way);
    const double two = 2 / std::sqrt(4 + 1e-5);
    expect_step({-1000002, -999998, -1000002, -999998, -1000002, -999998},
                {-two, two, -two, two, -two, two}, -100000, 0.9 + 0.1 * 4 * 6 / 5, way);
  });
  for_each_way({DType::f16}, [&](const Way& way) {
    expect_step({1023, 1025, 1023, 1025}, {-one, one, -one, one}, 102.4, 0.9 + 0.4 / 3, way);
  });
}

TEST_P(BatchNormCase, O20_WhichVarianceGoesIntoTheRunningEstimate) {
  for_each_way({DType::f32, DType::f16, DType::bf16}, [&](const Way& way) {
    const Tensor x = images({1, 1, 1, 1, 3, 3, 3, 3}, way);
    const BatchNormState state = fresh_state(way);
    batch_norm(x, state, {.relu = way.relu}, residual_of(x, way));
    expect_running(state, 0.2, 1.0142857142857142, way);
    const Tensor two = images({2, 2}, way);
    const Tensor y =
        batch_norm(two, state, {.training = false, .relu = way.relu}, residual_of(two, way));
    // The biased variance would give 1.799991; bf16 has 8 bits.
    const double relative = way.dtype == DType::bf16 ? 0x1p-8 : 0;
    expect_output(y, {1.7872702, 1.7872702}, way, relative);
    expect_running(state, 0.2, 1.0142857142857142, way);
  });
}

TEST_P(BatchNormCase, O21_ASmallEpsIsRespected) {
  for_each_way({DType::f32, DType::f16}, [&](const Way& way) {
    const double y = 0.70710678;
    expect_step({0.001, -0.001, 0.001, -0.001}, {y, -y, y, -y}, 0, 0.9 + 0.1e-6 * 4 / 3, way, 1e-6);
    // Where nothing is left but eps: 2e-4 / sqrt(4e-8 + 1e-8).
    const double z = 0.89442719;
    expect_step({2e-4, -2e-4}, {z, -z}, 0, 0.9 + 0.1 * 8e-8, way, 1e-8);
    BatchNormState state = fresh_state(way);
    state.running_var = per_channel(1e-6, way);
    const Tensor x = images({0.001, -0.001}, way);
    const Tensor evaluated = batch_norm(
        x, state, {.eps = 1e-6, .training = false, .relu = way.relu}, residual_of(x, way));
    expect_output(evaluated, {y, -y}, way);
  });
}

TEST_P(BatchNormCase, O22_OneValuePerChannelInTrainMode) {
  for (const MemoryFormat format : testing_kernels::kFormats) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      for (const bool relu : {false, true}) {
        const TensorOptions options{dtype, device(), format};
        BatchNorm2d norm({.channels = 16, .relu = relu}, options);
        const auto state = [&] {
          std::vector<Values> out;
          for (const NamedTensor& entry : norm.state_dict()) out.push_back(values_of(entry.tensor));
          return out;
        };
        norm(full({1, 16, 2, 2}, 3, options));  // averages that differ from their first values
        const std::vector<Values> before = state();
        const Tensor one = full({1, 16, 1, 1}, 5, options);
        for (const auto& run : {std::function<void()>([&] { norm(one); }),
                                std::function<void()>([&] { norm.with_residual(one, one); })}) {
          EXPECT_NE(message_of(run).find("[1,16,1,1]"), std::string::npos) << message_of(run);
        }
        EXPECT_THROW(norm(full({1, 16}, 5, {dtype, device()})), InvalidArgument);
        EXPECT_EQ(state(), before);
        EXPECT_EQ(norm.batches_tracked(), 1);
        norm(full({1, 16, 2, 2}, 3, options));
        EXPECT_EQ(norm.batches_tracked(), 2);
        for (const Values& values : state()) {
          for (const double v : values) EXPECT_TRUE(std::isfinite(v));
        }
        norm.eval();
        // Running mean 0.3 + 0.27, running variance 0.81.
        expect_values(norm(one), Values(16, (5 - 0.57) / std::sqrt(0.81 + 1e-5)));
      }
    }
  }
}

// The gradient of sum is one number with strides of 0.
TEST_P(BatchNormCase, O24_BroadcastGradients) {
  const std::vector<std::pair<Shape, Values>> inputs = {
      {{4, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 10, 0, 1, 2}},
      {{2, 3, 2, 1}, {1, 4, 2, 5, 3, 6, 7, 0, 8, 1, 10, 2}}};
  for (const auto& [shape, values] : inputs) {
    for (const MemoryFormat format : testing_kernels::kFormats) {
      if (shape.rank() == 2 && format == MemoryFormat::channels_last) continue;
      for (const DType dtype : {DType::f32, DType::f16}) {
        for (const bool with_residual : {false, true}) {
          Tensor x = leaf(values, shape, dtype, format);
          Tensor residual = leaf(Values(12, 7), shape, dtype, format);
          Tensor gamma = leaf({1, 1, 1}, {3}), beta = leaf({0, 0, 0}, {3});
          backward(
              sum(batch_norm(x, {gamma, beta, {}, {}}, {}, with_residual ? residual : Tensor())));
          for (const double v : values_of(x.grad())) EXPECT_LT(std::abs(v), 1e-6);
          for (const double v : values_of(gamma.grad())) EXPECT_LT(std::abs(v), 1e-6);
          EXPECT_EQ(values_of(beta.grad()), Values(3, 4));
          if (with_residual) {
            EXPECT_EQ(values_of(residual.grad()), Values(12, 1));
          }
        }
      }
    }
  }
}

// Two channels of which the second overflows in the f16 convolution of the second batch.
TEST_P(BatchNormCase, O64_ASkippedStepMustNotLeaveNaNInTheBatchNormStatistics) {
  for (const MemoryFormat format : testing_kernels::kFormats) {
    for (int form = 0; form < 4; ++form) {
      const bool relu = (form & 1) != 0, with_residual = (form & 2) != 0;
      Tensor w = leaf({2, 0, 0, 2}, {2, 2, 1, 1}, DType::f32, format);
      BatchNorm2d norm({.channels = 2, .relu = relu}, {DType::f32, device()});
      std::vector<Tensor> parameters = norm.parameters();
      parameters.push_back(w);
      Sgd optimizer({{.parameters = parameters}}, {.lr = 0.01});
      GradScaler scaler({.init_scale = 1024}, device());
      const auto step = [&](double first, double second) {
        const Tensor x = tensor({0.5, first, 1.5, second}, {2, 2, 1, 1}, DType::f32, format);
        {
          const Autocast region(DType::f16);
          const Tensor h = conv2d(x, w);
          const Tensor y =
              with_residual ? norm.with_residual(h, ones(h.shape(), h.options())) : norm(h);
          backward(scaler.scale(mean(mul(y, y))));
        }
        optimizer.step({.scaler = &scaler});
        optimizer.zero_grad();
        return optimizer.last_step_skipped();
      };
      const auto weights = [&] {
        std::vector<Values> out;
        for (const Tensor& p : parameters) out.push_back(values_of(p));
        return out;
      };
      EXPECT_FALSE(step(0.5, 1.5));
      const std::vector<Values> before = weights();
      EXPECT_TRUE(step(0.5, 40000));  // 80000 is no half
      EXPECT_EQ(weights(), before);
      EXPECT_EQ(scaler.current_scale(), 512);
      EXPECT_FALSE(step(0.5, 1.5));
      const auto buffers = norm.named_buffers();
      const Values mean = values_of(buffers[0].tensor), var = values_of(buffers[1].tensor);
      EXPECT_NEAR(mean[1], 0.38, 1e-6);
      EXPECT_NEAR(var[1], 1.19, 1e-6);
      EXPECT_TRUE(std::isfinite(mean[0]) && std::isfinite(var[0]));
      norm.eval();
      const Tensor y = norm(tensor({1, 3}, {1, 2, 1, 1}, DType::f16, format));
      for (const double v : values_of(y)) EXPECT_TRUE(std::isfinite(v));
    }
  }
}

// Relu after the norm, as its own op (over the norm's output or not) or in the same op.
enum class ReluForm { in_place, out_of_place, fused };

TEST_P(BatchNormCase, O65_InPlaceReluAfterBatchNormIsLegal) {
  for_each_way({DType::f32, DType::f16}, [&](const Way& way) {
    if (way.relu || way.residual) return;
    std::vector<Values> first;
    for (const ReluForm form : {ReluForm::in_place, ReluForm::out_of_place, ReluForm::fused}) {
      Tensor x = images({1, 5, 2, 8}, way).set_requires_grad(true);
      const BatchNormState state = fresh_state(way, 2, 0);
      Tensor y = batch_norm(x, state, {.relu = form == ReluForm::fused});
      reset_peak_memory_stats(device());
      const int64_t before = memory_allocated(device());
      if (form == ReluForm::in_place) relu_(y);
      if (form == ReluForm::out_of_place) y = relu(y);
      EXPECT_EQ(max_memory_allocated(device()) - before,
                form == ReluForm::out_of_place ? y.storage()->block_bytes() : 0)
          << "one activation less in place";
      expect_values(y, spread({0, 0.7302963, 0, 2.921185}, way));
      backward(y, images({1, 2, 3, 4}, way));
      // Differences of terms near 4, so what remains is as exact as they are.
      const Values dx = values_of(x.grad());
      const Values wanted = spread({0.2190871, -0.07302904, -0.21909, 0.07303196}, way);
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_NEAR(dx[i], wanted[i], way.dtype == DType::f32 ? 1e-6 : 2e-4) << i;
      }
      const auto channels = static_cast<size_t>(way.channels);
      expect_values(state.gamma.grad(), Values(channels, 6.572666));
      expect_values(state.beta.grad(), Values(channels, 6));
      const std::vector<Values> now = {dx, values_of(state.gamma.grad()), values_of(y)};
      if (form == ReluForm::in_place) first = now;
      if (form == ReluForm::out_of_place) {
        EXPECT_EQ(now, first);
      }
    }
  });
}

TEST_P(BatchNormCase, O66_AConvolutionBiasInFrontOfBatchNorm) {
  for_each_way({DType::f32, DType::f16}, [&](const Way& way) {
    if (way.channels == 35) return;
    for (const double bias : {5.0, -100.0}) {
      for (const double scale : {1.0, 65536.0}) {
        // 65536 itself is no half.
        if (way.dtype == DType::f16 && scale != 1) continue;
        Values diagonal(static_cast<size_t>(way.channels * way.channels), 0);
        for (int64_t c = 0; c < way.channels; ++c) {
          diagonal[static_cast<size_t>(c * (way.channels + 1))] = 2;
        }
        Tensor w = leaf(diagonal, {way.channels, way.channels, 1, 1}, way.dtype, way.format);
        Tensor b = per_channel(bias, way).set_requires_grad(true);
        const BatchNormState state = fresh_state(way);
        const Tensor h = conv2d(images({1, 2, 3, 4}, way), w, b);
        const Tensor y = batch_norm(h, state, {.relu = way.relu}, residual_of(h, way));
        // The bias itself cancels; the rounding error of a sum of its size does not.
        const double exact = way.dtype == DType::f32 ? 3e-5 : 2e-3;
        expect_output(y, {-1.341639, -0.447213, 0.447213, 1.341639}, way, exact);
        backward(y, images({0.3 * scale, -1 * scale, 2 * scale, 0.7 * scale}, way));
        // Halves round each of the four gradients that are summed, of size 1 at most.
        const double zero = way.dtype == DType::f32 ? 1e-5 : 4 * 0x1p-12;
        for (const double v : values_of(b.grad())) EXPECT_LT(std::abs(v) / scale, zero);
        EXPECT_NEAR(values_of(state.running_mean)[0], 0.1 * (5 + bias), 1e-5);
        EXPECT_NEAR(values_of(state.running_var)[0], 1.5666667, 1e-5);
      }
    }
  });
}

}  // namespace
}  // namespace headroom::cases
