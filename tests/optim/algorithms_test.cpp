// SGD, Adam and AdamW against traces worked out by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "core/ops/ops.h"
#include "tests/optim/optimizer_helpers.h"

namespace headroom {
namespace {

using namespace testing_optim;

TEST(Sgd, NesterovLooksAhead) {
  Tensor w = leaf({1});
  SgdOptions options = sgd(0.1, 0.9);
  options.nesterov = true;
  Sgd optimizer({{.parameters = {w}}}, options);
  // buf = 1, 1.9; update = g + 0.9 buf = 1.9, 2.71.
  for (const double wanted : {0.81, 0.539}) {
    step_with(optimizer, w, {1});
    EXPECT_NEAR(w.item(), wanted, 1e-6);
  }
}

TEST(Sgd, MaximizesWhenAsked) {
  Tensor w = leaf({1});
  SgdOptions options = sgd(0.1);
  options.maximize = true;
  Sgd optimizer({{.parameters = {w}}}, options);
  step_with(optimizer, w, {2});
  EXPECT_NEAR(w.item(), 1.2, 1e-6);
}

TEST(Sgd, RefusesSettingsOutOfRange) {
  Tensor w = leaf({1});
  const std::vector<ParameterGroup> groups = {{.parameters = {w}}};
  EXPECT_THROW(Sgd(groups, sgd(-0.1)), InvalidArgument);
  EXPECT_THROW(Sgd(groups, sgd(std::nan(""))), InvalidArgument);
  EXPECT_THROW(Sgd(groups, sgd(0.1, -1)), InvalidArgument);
  SgdOptions nesterov = sgd(0.1);
  nesterov.nesterov = true;
  EXPECT_THROW(Sgd(groups, nesterov), InvalidArgument);
  EXPECT_THROW(Sgd({{.parameters = {w}, .weight_decay = -1}}, sgd(0.1)), InvalidArgument);
}

TEST(Adam, RefusesSettingsOutOfRange) {
  Tensor w = leaf({1});
  const std::vector<ParameterGroup> groups = {{.parameters = {w}}};
  AdamOptions options = adam(0.1);
  options.beta1 = 1;
  EXPECT_THROW(Adam(groups, options), InvalidArgument);
  options = adam(0.1);
  options.eps = -1;
  EXPECT_THROW(Adam(groups, options), InvalidArgument);
}

TEST(Adam, InF64IsExactToF64) {
  Tensor w = leaf({1}, DType::f64);
  Adam optimizer({{.parameters = {w}}}, adam(0.125));
  optimizer.zero_grad();
  w.set_grad(from_vector(std::vector<double>{0.3}, {1}, {DType::f64}));
  optimizer.step();
  EXPECT_NEAR(w.to_vector<double>()[0], 1 - 0.125 * 0.3 / (0.3 + 1e-8), 1e-7);
  EXPECT_EQ(optimizer.state_dict()[0].tensor.dtype(), DType::f64);
}

}  // namespace
}  // namespace headroom
