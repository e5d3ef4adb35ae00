// Contract of batch normalisation: statistics that survive large means and halves, one expression
// forward and recomputed, and gradients against f64.
#include "core/ops/workspace.h"
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

struct Operands {
  Tensor x, residual, gamma, beta, running_mean, running_var;
  BatchNormParams params;
};
struct Outputs {
  Tensor y, mean, rstd;
};

class BatchNormKernels : public KernelTest {
 protected:
  static DType statistics(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  static View view(const Tensor& tensor) { return tensor ? tensor.view() : View{}; }
  Tensor workspace(const Tensor& x) const {
    const int64_t bytes = batch_norm_workspace_bytes(device(), x.view());
    return bytes > 0 ? full({bytes}, 255, {DType::u8, device()}) : Tensor();
  }
  Tensor channels_of(const Values& values, DType dtype) const {
    return tensor(values, {static_cast<int64_t>(values.size())}, statistics(dtype));
  }
  Outputs train(const Operands& in) const {
    const Shape c = {in.x.size(1)};
    const DType dtype = statistics(in.x.dtype());
    Outputs out{uninitialised(in.x.shape(), in.x.dtype(), in.x.format()), uninitialised(c, dtype),
                uninitialised(c, dtype)};
    const Tensor scratch = workspace(in.x);
    slots::batch_norm_train(in.x, view(in.residual), view(in.gamma), view(in.beta), in.params,
                            view(scratch), out.y, out.mean, out.rstd, view(in.running_mean),
                            view(in.running_var));
    return out;
  }
  Tensor apply(const Operands& in, const Tensor& mean, const Tensor& rstd) const {
    const Tensor y = uninitialised(in.x.shape(), in.x.dtype(), in.x.format());
    slots::batch_norm_apply(in.x, view(in.residual), view(in.gamma), view(in.beta), mean, rstd,
                            in.params, y);
    return y;
  }
  // One channel of the given values, as [n, 1].
  Operands column(const Values& values, DType dtype) const {
    Operands in;
    in.x = tensor(values, {static_cast<int64_t>(values.size()), 1}, dtype);
    in.running_mean = channels_of({0}, dtype);
    in.running_var = channels_of({1}, dtype);
    return in;
  }
};
HEADROOM_ON_EACH_DEVICE(BatchNormKernels);

struct Layouts {
  Shape shape;
  MemoryFormat format;
};
std::vector<Layouts> layouts() {
  const auto nchw = MemoryFormat::contiguous, nhwc = MemoryFormat::channels_last;
  return {{{4, 6, 5, 7}, nchw},    {{4, 6, 5, 7}, nhwc},    {{3, 70, 4, 4}, nhwc},
          {{3, 70, 4, 4}, nchw},   {{2, 1, 9, 9}, nhwc},    {{2, 1, 9, 9}, nchw},
          {{37, 130}, nchw},       {{5, 3}, nchw},          {{16, 300, 1, 1}, nhwc},
          {{5, 35, 20, 21}, nhwc}, {{3, 35, 20, 21}, nchw}, {{6, 64, 16, 16}, nhwc}};
}
int64_t channel_of(const Shape& shape, size_t index) {
  const int64_t plane = shape.rank() == 4 ? shape[2] * shape[3] : 1;
  return static_cast<int64_t>(index) / plane % shape[1];
}

// Statistics, output and gradients.
struct Reference {
  Values mean, variance, y, dx, dresidual, dgamma, dbeta;

  Reference(const Shape& shape, const BatchNormParams& params, const Values& x,
            const Values& residual, const Values& gamma, const Values& beta, const Values& dy) {
    const size_t channels = static_cast<size_t>(shape[1]);
    const double count = static_cast<double>(x.size()) / static_cast<double>(channels);
    const auto c = [&](size_t i) { return static_cast<size_t>(channel_of(shape, i)); };
    // Wider sums than f64: f64 kernels are compared too.
    std::vector<long double> sums(channels), squares(channels), products(channels);
    for (size_t i = 0; i < x.size(); ++i) sums[c(i)] += x[i];
    for (const long double sum : sums) mean.push_back(static_cast<double>(sum / count));
    for (size_t i = 0; i < x.size(); ++i) {
      const long double difference = x[i] - sums[c(i)] / count;
      squares[c(i)] += difference * difference;
    }
    for (const long double sum : squares) variance.push_back(static_cast<double>(sum / count));
    sums.assign(channels, 0);
    Values rstd;
    for (const double v : variance) rstd.push_back(1 / std::sqrt(v + params.eps));
    const auto xhat = [&](size_t i) { return (x[i] - mean[c(i)]) * rstd[c(i)]; };
    for (size_t i = 0; i < x.size(); ++i) {
      double value = gamma[c(i)] * xhat(i) + beta[c(i)];
      if (!residual.empty()) value += residual[i];
      if (params.relu && value < 0) value = 0;
      y.push_back(value);
      const double slope = params.relu && value <= 0 ? 0 : dy[i];
      dresidual.push_back(slope);
      sums[c(i)] += slope;
      products[c(i)] += slope * xhat(i);
    }
    for (const long double sum : sums) dbeta.push_back(static_cast<double>(sum));
    for (const long double sum : products) dgamma.push_back(static_cast<double>(sum));
    for (size_t i = 0; i < x.size(); ++i) {
      const double centred =
          params.training ? dresidual[i] - dbeta[c(i)] / count - xhat(i) * dgamma[c(i)] / count
                          : dresidual[i];
      dx.push_back(gamma[c(i)] * rstd[c(i)] * centred);
    }
  }
};

TEST_P(BatchNormKernels, MatchesTheReferenceInEveryLayout) {
  for (const Layouts& layout : layouts()) {
    for (const DType dtype : dtypes()) {
      for (int bits = 0; bits < 4; ++bits) {
        SCOPED_TRACE(
            detail::concat(layout.shape, " ", name_of(layout.format), " ", dtype, " ", bits));
        Operands in;
        in.params.relu = (bits & 1) != 0;
        const int64_t numel = numel_of(layout.shape), channels = layout.shape[1];
        in.x = tensor(test_values(numel, -1, 3, 1), layout.shape, dtype, layout.format);
        if ((bits & 2) != 0) {
          in.residual = tensor(test_values(numel, -1, 1, 2), layout.shape, dtype, layout.format);
        }
        in.gamma = channels_of(test_values(channels, -2, 2, 3), dtype);
        in.beta = channels_of(test_values(channels, -1, 1, 4), dtype);
        in.running_mean = channels_of(test_values(channels, -1, 1, 5), dtype);
        in.running_var = channels_of(test_values(channels, 0.5, 2, 6), dtype);
        const Values old_mean = values_of(in.running_mean), old_var = values_of(in.running_var);
        const Reference reference(layout.shape, in.params, values_of(in.x),
                                  in.residual ? values_of(in.residual) : Values(),
                                  values_of(in.gamma), values_of(in.beta),
                                  Values(static_cast<size_t>(numel), 0.0));
        const Outputs out = train(in);
        // CUDA sums squares in f32 around one value of the channel, which costs a few more
        // roundings the further that value lies from the mean.
        const double wider = device().is_cuda() ? 3 : 1;
        expect_near(out.y, reference.y, 2, 8 * wider);
        expect_near(out.mean, reference.mean, 2, 2 * wider);
        Values rstd, running_mean, running_var;
        const double count = static_cast<double>(numel / channels);
        for (size_t k = 0; k < reference.mean.size(); ++k) {
          rstd.push_back(1 / std::sqrt(reference.variance[k] + in.params.eps));
          running_mean.push_back(0.9 * old_mean[k] + 0.1 * reference.mean[k]);
          running_var.push_back(0.9 * old_var[k] +
                                0.1 * reference.variance[k] * count / (count - 1));
        }
        expect_near(out.rstd, rstd, 8 * wider);
        expect_near(in.running_mean, running_mean, 2, 2 * wider);
        expect_near(in.running_var, running_var, 4 * wider, 2 * wider);
        EXPECT_EQ(values_of(apply(in, out.mean, out.rstd)), values_of(out.y))
            << "applied again from the same statistics";
      }
    }
  }
}

TEST_P(BatchNormKernels, BackwardMatchesTheReferenceWithTheMaskReadOrRecomputed) {
  for (const Layouts& layout : layouts()) {
    for (const DType dtype : dtypes()) {
      for (int bits = 0; bits < 8; ++bits) {
        SCOPED_TRACE(
            detail::concat(layout.shape, " ", name_of(layout.format), " ", dtype, " ", bits));
        Operands in;
        in.params.relu = (bits & 1) != 0;
        in.params.training = (bits & 2) != 0;
        const bool with_residual = (bits & 4) != 0;
        const int64_t numel = numel_of(layout.shape), channels = layout.shape[1];
        in.x = tensor(test_values(numel, -1, 3, 1), layout.shape, dtype, layout.format);
        if (with_residual) {
          in.residual = tensor(test_values(numel, -1, 1, 2), layout.shape, dtype, layout.format);
        }
        in.gamma = channels_of(test_values(channels, 0.5, 2, 3), dtype);
        in.beta = channels_of(test_values(channels, -1, 1, 4), dtype);
        const Tensor dy = tensor(test_values(numel, -1, 1, 5), layout.shape, dtype, layout.format);
        const Outputs out = train(in);
        const Reference reference(layout.shape, in.params, values_of(in.x),
                                  in.residual ? values_of(in.residual) : Values(),
                                  values_of(in.gamma), values_of(in.beta), values_of(dy));
        const auto like_x = [&] { return uninitialised(layout.shape, dtype, layout.format); };
        const auto like_gamma = [&] { return uninitialised({channels}, statistics(dtype)); };
        const auto run = [&](bool read, const Tensor& gradient, const Tensor& dx,
                             const Tensor& dresidual, const Tensor& dgamma, const Tensor& dbeta) {
          const Tensor scratch = workspace(in.x);
          slots::batch_norm_backward(in.x, read ? out.y.view() : View{}, gradient, in.gamma,
                                     in.beta, out.mean, out.rstd, in.params, view(scratch),
                                     view(dx), view(dresidual), view(dgamma), view(dbeta));
        };
        const Tensor dx = like_x(), dresidual = like_x();
        const Tensor dgamma = like_gamma(), dbeta = like_gamma();
        run(true, dy, dx, dresidual, dgamma, dbeta);
        const double root = std::sqrt(static_cast<double>(numel / channels));
        expect_near(dx, reference.dx, 2, 32);
        expect_near(dresidual, reference.dresidual, 0);
        expect_near(dgamma, reference.dgamma, 4, 8 * root);
        expect_near(dbeta, reference.dbeta, 4, 8 * root);

        // Over dy, and without what is not asked for: the same bits.
        const Tensor over = tensor(values_of(dy), layout.shape, dtype, layout.format);
        run(true, over, over, Tensor(), Tensor(), Tensor());
        EXPECT_EQ(values_of(over), values_of(dx));
        const Tensor residual_over = tensor(values_of(dy), layout.shape, dtype, layout.format);
        const Tensor dx_again = like_x();
        run(true, residual_over, dx_again, residual_over, Tensor(), Tensor());
        EXPECT_EQ(values_of(residual_over), values_of(dresidual));
        EXPECT_EQ(values_of(dx_again), values_of(dx));
        const Tensor dgamma_alone = like_gamma();
        run(true, dy, Tensor(), Tensor(), dgamma_alone, Tensor());
        // Without dx another launch may do the sums, in another order.
        expect_near(dgamma_alone, reference.dgamma, 4, 8 * root);
        if (with_residual) continue;  // then y cannot be recomputed from x alone
        const Tensor dx_recomputed = like_x(), dbeta_recomputed = like_gamma();
        run(false, dy, dx_recomputed, Tensor(), Tensor(), dbeta_recomputed);
        EXPECT_EQ(values_of(dx_recomputed), values_of(dx));
        EXPECT_EQ(values_of(dbeta_recomputed), values_of(dbeta));
      }
    }
  }
}

TEST_P(BatchNormKernels, HalvesBeyond256DoNotOverflow) {
  const Operands in = column({300, -300, 300, -300}, DType::f16);
  expect_near(train(in).y, {1, -1, 1, -1});
  EXPECT_NEAR(values_of(in.running_var)[0], 12000.9, 1e-2);
}

TEST_P(BatchNormKernels, ALargeMeanDoesNotCancelTheVariance) {
  const Operands in = column({9999, 10001, 9999, 10001}, DType::f32);
  const Outputs out = train(in);
  EXPECT_EQ(values_of(out.mean)[0], 10000);
  for (const double y : values_of(out.y)) EXPECT_NEAR(std::abs(y), 0.999995, 1e-6);

  // The same in many elements, and with an outlier in front.
  Values many;
  for (int i = 0; i < 50000; ++i) many.push_back(i % 2 == 0 ? 9999 : 10001);
  EXPECT_NEAR(values_of(train(column(many, DType::f32)).rstd)[0], 0.999995, 1e-5);
}

TEST_P(BatchNormKernels, TheRunningVarianceIsUnbiased) {
  Operands in = column({1, 1, 1, 1, 3, 3, 3, 3}, DType::f32);
  train(in);
  EXPECT_NEAR(values_of(in.running_mean)[0], 0.2, 1e-6);
  EXPECT_NEAR(values_of(in.running_var)[0], 1.0142857, 1e-6);
  const Tensor rstd = uninitialised({1});
  slots::batch_norm_rstd(in.running_var, in.params.eps, rstd);
  Operands evaluation = column({2}, DType::f32);
  evaluation.params.training = false;
  EXPECT_NEAR(values_of(apply(evaluation, in.running_mean, rstd))[0], 1.787270, 2e-6);
}

TEST_P(BatchNormKernels, ASmallEpsIsRespected) {
  Operands in = column({0.001, -0.001, 0.001, -0.001}, DType::f32);
  in.params.eps = 1e-6;
  for (const double y : values_of(train(in).y)) EXPECT_NEAR(std::abs(y), 0.7071068, 1e-6);
}

TEST_P(BatchNormKernels, AnOverflowedBatchLeavesTheRunningAveragesAlone) {
  Operands in = column({1, 3}, DType::f32);
  train(in);
  in.x = tensor({INFINITY, 1}, {2, 1});
  train(in);
  in.x = tensor({NAN, 1}, {2, 1});
  train(in);
  in.x = tensor({1, 3}, {2, 1});
  train(in);
  EXPECT_NEAR(values_of(in.running_mean)[0], 0.38, 1e-6);
  EXPECT_NEAR(values_of(in.running_var)[0], 1.19, 1e-6);
}

TEST_P(BatchNormKernels, AnEmptyBatchHasZeroParameterGradients) {
  Operands in;
  in.x = tensor({}, {0, 3, 2, 2}, DType::f32, MemoryFormat::channels_last);
  in.running_mean = channels_of({1, 2, 3}, DType::f32);
  in.running_var = channels_of({4, 5, 6}, DType::f32);
  const Outputs out = train(in);
  EXPECT_EQ(values_of(in.running_mean), (Values{1, 2, 3}));
  EXPECT_EQ(values_of(in.running_var), (Values{4, 5, 6}));
  const Tensor dgamma = uninitialised({3}), dbeta = uninitialised({3});
  slots::batch_norm_backward(in.x, View{}, in.x, View{}, View{}, out.mean, out.rstd, in.params,
                             View{}, View{}, View{}, dgamma, dbeta);
  EXPECT_EQ(values_of(dgamma), Values(3, 0.0));
  EXPECT_EQ(values_of(dbeta), Values(3, 0.0));
}

}  // namespace
}  // namespace headroom
