// Contract tests of batch normalisation on each device, against plain f64 loops. The shapes are
// chosen for the ways CUDA has: one launch or two, 16-byte or single-element access, rows or
// planes.
#include <cmath>
#include <optional>

#include "core/ops/workspace.h"
#include "tests/kernels/kernel_test.h"

namespace headroom::testing_kernels {
namespace {

struct Case {
  Shape shape;
  DType dtype;
  MemoryFormat format;
  bool relu = false;
  bool residual = false;
  bool affine = true;
  bool unaligned = false;  // images start one element into their storage
};

std::string name_of(const Case& c) {
  return detail::concat(c.dtype, to_string(c.shape), " ", headroom::name_of(c.format),
                        c.relu ? " relu" : "", c.residual ? " residual" : "",
                        c.affine ? "" : " plain", c.unaligned ? " unaligned" : "");
}

int64_t area_of(const Shape& shape) { return shape.rank() == 4 ? shape[2] * shape[3] : 1; }

// One batch norm with its operands and f64 reference.
class BatchNormCall {
 public:
  BatchNormCall(Device device, const Case& c) : device_(device), case_(c) {
    const int64_t channels = c.shape[1];
    x = image(test_values(numel_of(c.shape), -2, 2, 3), 1.5);
    if (c.residual) residual = image(test_values(numel_of(c.shape), -1, 1, 5));
    dy = image(test_values(numel_of(c.shape), -1, 1, 7));
    if (c.affine) {
      gamma = per_channel(test_values(channels, -1.5, 1.5, 11));
      beta = per_channel(test_values(channels, -0.5, 0.5, 13));
    }
    mean = per_channel(Values(static_cast<size_t>(channels), NAN));
    rstd = per_channel(Values(static_cast<size_t>(channels), NAN));
    running_mean = per_channel(test_values(channels, -1, 1, 17));
    running_var = per_channel(test_values(channels, 0.5, 2, 19));
    workspace = empty({batch_norm_workspace_bytes(device, x.view())}, {DType::u8, device});
    params.relu = c.relu;
  }

  // A new image tensor laid out as the case says; every channel shifted by a multiple of `shift`.
  Tensor image(Values values, double shift = 0) const {
    const int64_t channels = case_.shape[1], area = area_of(case_.shape);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] += shift * static_cast<double>((static_cast<int64_t>(i) / area) % channels % 3);
    }
    const Tensor dense = from_vector(values, case_.shape, {case_.dtype, device_, case_.format});
    if (!case_.unaligned) return dense;
    const Tensor room = empty({dense.numel() + 1}, {case_.dtype, device_});
    const Tensor moved =
        Tensor::make(room.storage(), 1, case_.shape, dense.strides(), case_.dtype, case_.format);
    slots::copy(dense, moved);
    return moved;
  }
  Tensor empty_image() const {
    return image(Values(static_cast<size_t>(numel_of(case_.shape)), NAN));
  }
  Tensor per_channel(const Values& values) const {
    return from_vector(values, {static_cast<int64_t>(values.size())}, {DType::f32, device_});
  }
  static View optional(const Tensor& tensor) { return tensor ? tensor.view() : View{}; }

  void train(const Tensor& y) const {
    slots::batch_norm_train(x, optional(residual), optional(gamma), optional(beta), params,
                            workspace, y, mean, rstd, running_mean, running_var);
  }
  void apply(const Tensor& y) const {
    slots::batch_norm_apply(x, optional(residual), optional(gamma), optional(beta), mean, rstd,
                            params, y);
  }
  void backward(const Tensor& y, const Tensor& dx, const Tensor& dresidual, const Tensor& dgamma,
                const Tensor& dbeta) const {
    slots::batch_norm_backward(x, optional(y), dy, optional(gamma), optional(beta), mean, rstd,
                               params, workspace, optional(dx), optional(dresidual),
                               optional(dgamma), optional(dbeta));
  }

  Tensor x, residual, dy, gamma, beta, mean, rstd, running_mean, running_var, workspace;
  BatchNormParams params;

 private:
  Device device_;
  Case case_;
};

struct Statistics {
  Values mean, variance;
};

Statistics statistics_of(const Values& x, const Shape& shape) {
  const int64_t channels = shape[1], area = area_of(shape);
  const double count = static_cast<double>(x.size()) / static_cast<double>(channels);
  Statistics out{Values(static_cast<size_t>(channels)), Values(static_cast<size_t>(channels))};
  const auto channel = [&](size_t i) {
    return static_cast<size_t>(static_cast<int64_t>(i) / area % channels);
  };
  for (size_t i = 0; i < x.size(); ++i) out.mean[channel(i)] += x[i] / count;
  for (size_t i = 0; i < x.size(); ++i) {
    const double away = x[i] - out.mean[channel(i)];
    out.variance[channel(i)] += away * away / count;
  }
  return out;
}

Values or_constant(const Tensor& tensor, int64_t channels, double constant) {
  return tensor ? values_of(tensor) : Values(static_cast<size_t>(channels), constant);
}

void check_forward(const BatchNormCall& norm, const Case& c, const Tensor& y,
                   const Values& old_mean, const Values& old_var) {
  const int64_t channels = c.shape[1], area = area_of(c.shape);
  const Values x = values_of(norm.x), gamma = or_constant(norm.gamma, channels, 1);
  const Values beta = or_constant(norm.beta, channels, 0);
  const Values residual = norm.residual ? values_of(norm.residual) : Values(x.size(), 0.0);
  const Statistics statistics = statistics_of(x, c.shape);
  const double count = static_cast<double>(x.size()) / static_cast<double>(channels);
  Values expected(x.size()), rstd(statistics.mean.size()), moved_mean = rstd, moved_var = rstd;
  for (size_t k = 0; k < rstd.size(); ++k) {
    rstd[k] = 1 / std::sqrt(statistics.variance[k] + norm.params.eps);
    moved_mean[k] = 0.9 * old_mean[k] + 0.1 * statistics.mean[k];
    moved_var[k] = 0.9 * old_var[k] + 0.1 * statistics.variance[k] * count / (count - 1);
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t k = static_cast<size_t>(static_cast<int64_t>(i) / area % channels);
    const double value = gamma[k] * (x[i] - statistics.mean[k]) * rstd[k] + beta[k] + residual[i];
    expected[i] = c.relu && value < 0 ? 0 : value;
  }
  expect_near(norm.mean, statistics.mean, 4, 4);
  expect_near(norm.rstd, rstd, 16);
  expect_near(norm.running_mean, moved_mean, 4, 4);
  expect_near(norm.running_var, moved_var, 16);
  expect_near(y, expected, 2, 64);
}

void check_backward(const BatchNormCall& norm, const Case& c, const Tensor& y, const Tensor& dx,
                    const Tensor& dresidual, const Tensor& dgamma, const Tensor& dbeta,
                    const Values& dy) {
  const int64_t channels = c.shape[1], area = area_of(c.shape);
  const Values x = values_of(norm.x), output = values_of(y);
  const Values gamma = or_constant(norm.gamma, channels, 1);
  const Values mean = values_of(norm.mean), rstd = values_of(norm.rstd);
  const double count = static_cast<double>(x.size()) / static_cast<double>(channels);
  Values masked(x.size()), sum(mean.size()), product(mean.size()), expected(x.size());
  const auto channel = [&](size_t i) {
    return static_cast<size_t>(static_cast<int64_t>(i) / area % channels);
  };
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t k = channel(i);
    masked[i] = c.relu && !(output[i] > 0) ? 0 : dy[i];
    sum[k] += masked[i];
    product[k] += masked[i] * (x[i] - mean[k]) * rstd[k];
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t k = channel(i);
    const double corrected =
        norm.params.training
            ? masked[i] - sum[k] / count - (x[i] - mean[k]) * rstd[k] * product[k] / count
            : masked[i];
    expected[i] = gamma[k] * rstd[k] * corrected;
  }
  if (dx) expect_near(dx, expected, 2, 64);
  if (dresidual) expect_near(dresidual, masked, 0);
  if (dgamma) expect_near(dgamma, product, 2, 64 + count / 4);
  if (dbeta) expect_near(dbeta, sum, 2, 64 + count / 4);
}

class BatchNormPaths : public KernelTest {
 protected:
  std::vector<Case> cases() const {
    constexpr MemoryFormat kNhwc = MemoryFormat::channels_last;
    constexpr MemoryFormat kNchw = MemoryFormat::contiguous;
    std::vector<Case> out;
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      out.push_back({{64, 128, 4, 4}, dtype, kNhwc, true});  // one launch, clusters
      out.push_back({{64, 128, 4, 4}, dtype, kNhwc, true, true});
      out.push_back({{3, 10, 7, 5}, dtype, kNhwc, true, true});  // odd channels
      out.push_back({{2, 16, 9, 9}, dtype, kNhwc, false, false, true, true});
      out.push_back({{5, 6, 7, 9}, dtype, kNchw, true, true});  // planes
      out.push_back({{5, 6, 16, 8}, dtype, kNchw, true});
      out.push_back({{3, 1, 33, 65}, dtype, kNhwc, true, true});  // one channel: a plane
      out.push_back({{37, 20}, dtype, kNchw, true});
      out.push_back({{20, 4096}, dtype, kNchw, false, false, false});
    }
    out.push_back({{2, 1}, DType::f32, kNchw});
    out.push_back({{2, 3, 1, 1}, DType::f32, kNhwc, true});
    if (device().is_cpu()) return out;
    // Two launches: more than the shared memory of a cluster holds.
    out.push_back({{4, 16, 128, 128}, DType::f32, kNhwc, true, true});
    out.push_back({{4, 24, 128, 130}, DType::bf16, kNhwc, true});
    out.push_back({{4, 24, 128, 130}, DType::f16, kNhwc, true});
    out.push_back({{4, 16, 128, 128}, DType::f16, kNhwc, true, true});
    out.push_back({{4, 10, 128, 130}, DType::f16, kNhwc, true, true});  // single elements
    out.push_back({{4, 16, 128, 128}, DType::f16, kNhwc, true, false, false, true});
    out.push_back({{2, 3, 160, 200}, DType::f16, kNchw, false, true});
    return out;
  }
};
HEADROOM_ON_EACH_DEVICE(BatchNormPaths);

TEST_P(BatchNormPaths, NormaliseByTheBatchAndMoveTheRunningAverages) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const BatchNormCall norm(device(), c);
    const Values old_mean = values_of(norm.running_mean), old_var = values_of(norm.running_var);
    const Tensor y = norm.empty_image();
    norm.train(y);
    check_forward(norm, c, y, old_mean, old_var);
    if (HasFatalFailure()) return;
  }
}

TEST_P(BatchNormPaths, ApplyGivesTheSameBitsAsTraining) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    const BatchNormCall norm(device(), c);
    const Tensor y = norm.empty_image(), again = norm.empty_image();
    norm.train(y);
    norm.apply(again);
    ASSERT_EQ(values_of(y), values_of(again));
  }
}

TEST_P(BatchNormPaths, GiveAllGradients) {
  for (const Case& c : cases()) {
    for (const bool training : {true, false}) {
      SCOPED_TRACE(name_of(c) + (training ? "" : " eval"));
      BatchNormCall norm(device(), c);
      const Tensor y = norm.empty_image();
      norm.train(y);
      norm.params.training = training;
      const Tensor dx = norm.empty_image(), dresidual = norm.empty_image();
      const Values nothing(static_cast<size_t>(c.shape[1]), NAN);
      const Tensor dgamma = norm.per_channel(nothing), dbeta = norm.per_channel(nothing);
      norm.backward(y, dx, dresidual, dgamma, dbeta);
      check_backward(norm, c, y, dx, dresidual, dgamma, dbeta, values_of(norm.dy));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(BatchNormPaths, RecomputeTheMaskToTheBit) {
  for (const Case& c : cases()) {
    if (c.residual || !c.relu) continue;
    SCOPED_TRACE(name_of(c));
    BatchNormCall norm(device(), c);
    const Tensor y = norm.empty_image();
    norm.train(y);
    const Values nothing(static_cast<size_t>(c.shape[1]), NAN);
    const Tensor dx = norm.empty_image(), dx_again = norm.empty_image();
    const Tensor dgamma = norm.per_channel(nothing), dgamma_again = norm.per_channel(nothing);
    norm.backward(y, dx, Tensor(), dgamma, Tensor());
    norm.backward(Tensor(), dx_again, Tensor(), dgamma_again, Tensor());
    ASSERT_EQ(values_of(dx), values_of(dx_again));
    ASSERT_EQ(values_of(dgamma), values_of(dgamma_again));
  }
}

TEST_P(BatchNormPaths, WriteGradientsOverTheirOperands) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    BatchNormCall norm(device(), c);
    const Tensor y = norm.empty_image();
    norm.train(y);
    const Values dy = values_of(norm.dy);
    const Tensor dx = norm.empty_image();
    norm.backward(y, dx, Tensor(), Tensor(), Tensor());
    const Values expected = values_of(dx);
    norm.backward(y, norm.dy, Tensor(), Tensor(), Tensor());  // dx over dy
    ASSERT_EQ(values_of(norm.dy), expected);

    norm.dy = norm.image(dy);
    norm.backward(y, dx, norm.dy, Tensor(), Tensor());  // dresidual over dy
    check_backward(norm, c, y, dx, norm.dy, Tensor(), Tensor(), dy);
    ASSERT_EQ(values_of(dx), expected);

    norm.dy = norm.image(dy);
    norm.backward(y, norm.x, Tensor(), Tensor(), Tensor());  // dx over x
    ASSERT_EQ(values_of(norm.x), expected);
    if (HasFatalFailure()) return;
  }
}

TEST_P(BatchNormPaths, WriteOnlyTheGradientsThatAreWanted) {
  const int64_t side = device().is_cuda() ? 128 : 16;
  const Case c{{4, 16, side, side}, DType::f16, MemoryFormat::channels_last, true};
  BatchNormCall norm(device(), c);
  const Tensor y = norm.empty_image();
  norm.train(y);
  const Values dy = values_of(norm.dy), nothing(16, NAN);
  const Tensor dgamma = norm.per_channel(nothing), dbeta = norm.per_channel(nothing);
  const Tensor dresidual = norm.empty_image();
  norm.backward(y, Tensor(), Tensor(), dgamma, Tensor());
  norm.backward(y, Tensor(), Tensor(), Tensor(), dbeta);
  norm.backward(y, Tensor(), dresidual, Tensor(), Tensor());
  check_backward(norm, c, y, Tensor(), dresidual, dgamma, dbeta, dy);
}

TEST_P(BatchNormPaths, RepeatTheirBits) {
  const int64_t side = device().is_cuda() ? 130 : 13;
  const Case c{{4, 24, side, side}, DType::f16, MemoryFormat::channels_last, true};
  const BatchNormCall norm(device(), c);
  const Tensor y = norm.empty_image(), dx = norm.empty_image(), again = norm.empty_image();
  norm.train(y);
  const Values mean = values_of(norm.mean), rstd = values_of(norm.rstd);
  norm.backward(y, dx, Tensor(), Tensor(), Tensor());
  for (int i = 0; i < 5; ++i) {
    norm.train(y);
    ASSERT_EQ(values_of(norm.mean), mean);
    ASSERT_EQ(values_of(norm.rstd), rstd);
    norm.backward(y, again, Tensor(), Tensor(), Tensor());
    ASSERT_EQ(values_of(again), values_of(dx));
  }
}

TEST_P(BatchNormPaths, GiveTheInverseDeviationForEvaluation) {
  const Tensor variance = tensor({1, 0, 3.99999, 100}, {4}), rstd = uninitialised({4});
  slots::batch_norm_rstd(variance, 1e-5, rstd);
  expect_near(rstd, {1 / std::sqrt(1.00001), 1 / std::sqrt(1e-5), 0.5, 1 / std::sqrt(100.00001)},
              3);
}

}  // namespace
}  // namespace headroom::testing_kernels
