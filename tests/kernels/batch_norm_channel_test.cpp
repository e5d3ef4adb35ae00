// Contract tests of batch normalisation on single channels whose statistics are known by hand:
// halves whose squares overflow, a small spread about a large mean, batches that are not finite.
// Channel counts are chosen for the ways CUDA has: a plane, rows in single elements, rows in
// vectors.
#include <cmath>

#include "core/ops/workspace.h"
#include "tests/kernels/kernel_test.h"

namespace headroom::testing_kernels {
namespace {

class BatchNormChannel : public KernelTest {};
HEADROOM_ON_EACH_DEVICE(BatchNormChannel);

// One channel of the given values, in every format that makes them a row or a plane.
struct OneChannel {
  Values y;
  double mean, rstd, running_mean, running_var;
};

OneChannel one_channel(Device device, const Values& values, DType dtype, double eps,
                       int64_t channels) {
  const Shape shape{static_cast<int64_t>(values.size()), channels, 1, 1};
  Values repeated;
  for (const double value : values) {
    for (int64_t k = 0; k < channels; ++k) repeated.push_back(value);
  }
  const Tensor x = from_vector(repeated, shape, {dtype, device, MemoryFormat::channels_last});
  const Tensor y = empty_like(x), mean = zeros({channels}, {DType::f32, device});
  const Tensor rstd = zeros({channels}, {DType::f32, device});
  const Tensor running_mean = zeros({channels}, {DType::f32, device});
  const Tensor running_var = ones({channels}, {DType::f32, device});
  const Tensor workspace =
      empty({batch_norm_workspace_bytes(device, x.view())}, {DType::u8, device});
  BatchNormParams params;
  params.eps = eps;
  slots::batch_norm_train(x, View{}, View{}, View{}, params, workspace, y, mean, rstd, running_mean,
                          running_var);
  OneChannel out{{},
                 values_of(mean)[0],
                 values_of(rstd)[0],
                 values_of(running_mean)[0],
                 values_of(running_var)[0]};
  const Values all = values_of(y);
  for (size_t i = 0; i < values.size(); ++i) {
    out.y.push_back(all[i * static_cast<size_t>(channels)]);
  }
  return out;
}

TEST_P(BatchNormChannel, SquareHalvesInF32) {
  for (const int64_t channels : {1, 3, 8}) {
    const OneChannel out =
        one_channel(device(), {300, -300, 300, -300}, DType::f16, 1e-5, channels);
    EXPECT_EQ(out.y, (Values{1, -1, 1, -1}));
    EXPECT_NEAR(out.running_var, 12000.9, 0.01);
  }
}

TEST_P(BatchNormChannel, KeepASmallSpreadAboutALargeMean) {
  for (const int64_t channels : {1, 3, 4}) {
    const OneChannel out =
        one_channel(device(), {9999, 10001, 9999, 10001}, DType::f32, 1e-5, channels);
    EXPECT_EQ(out.mean, 10000);
    EXPECT_NEAR(out.rstd, 0.999995, 1e-6);
    EXPECT_NEAR(out.y[0], -0.999995, 1e-6);
    EXPECT_NEAR(out.y[1], 0.999995, 1e-6);
  }
}

TEST_P(BatchNormChannel, LeaveTheRunningAveragesWhenTheBatchIsNotFinite) {
  for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    for (const int64_t channels : {1, 3, 8}) {
      for (const Values& values : {Values{1, bad}, Values{bad, 1}, Values{bad, bad}}) {
        const OneChannel out = one_channel(device(), values, DType::f16, 1e-5, channels);
        EXPECT_EQ(out.running_mean, 0);
        EXPECT_EQ(out.running_var, 1);
      }
    }
  }
}

}  // namespace
}  // namespace headroom::testing_kernels
