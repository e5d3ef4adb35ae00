// The optimizer's state: saved, loaded, refused.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "core/ops/ops.h"
#include "optim/optimizer.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

Tensor leaf(const Floats& values) {
  Tensor w = from_vector(values, {static_cast<int64_t>(values.size())});
  w.set_requires_grad(true);
  return w;
}

void step_with(Optimizer& optimizer, Tensor& w, float gradient) {
  optimizer.zero_grad();
  w.set_grad(full(w.shape(), gradient));
  optimizer.step();
}

std::unique_ptr<Adam> adam_of(std::vector<Tensor> parameters, double lr = 0.01) {
  AdamOptions options;
  options.lr = lr;
  return std::make_unique<Adam>(std::vector<ParameterGroup>{{.parameters = std::move(parameters)}},
                                options);
}

// Its own copy, as a file would give it back.
std::vector<OptimizerState> copy_of(const std::vector<OptimizerState>& state) {
  std::vector<OptimizerState> out;
  for (const OptimizerState& entry : state) out.push_back({entry.name, clone(entry.tensor)});
  return out;
}

TEST(OptimizerState, RoundTripIsBitForBitWithCohortsAndMissingGradients) {
  Tensor a = leaf({1, 2}), b = leaf({3}), never = leaf({5});
  Tensor a2 = leaf({1, 2}), b2 = leaf({3}), never2 = leaf({5});
  const auto first = adam_of({a, b, never});
  step_with(*first, a, 0.3f);
  step_with(*first, a, 0.4f);
  first->zero_grad();
  a.set_grad(full({2}, 0.1));
  b.set_grad(full({1}, 0.2));
  first->step();
  const auto second = adam_of({a2, b2, never2});
  Tensor a_values = a2.detach(), b_values = b2.detach();
  copy_(a_values, a.detach());
  copy_(b_values, b.detach());
  second->load_state_dict(copy_of(first->state_dict()));
  for (int i = 0; i < 3; ++i) {
    const std::vector<std::pair<Optimizer*, std::vector<Tensor*>>> runs = {
        {first.get(), {&a, &b, &never}}, {second.get(), {&a2, &b2, &never2}}};
    for (const auto& [optimizer, parameters] : runs) {
      optimizer->zero_grad();
      parameters[0]->set_grad(full({2}, 0.1 * i));
      parameters[1]->set_grad(full({1}, -0.3));
      if (i == 2) parameters[2]->set_grad(full({1}, 1));
      optimizer->step();
    }
    EXPECT_EQ(a.to_vector<float>(), a2.to_vector<float>());
    EXPECT_EQ(b.item(), b2.item());
    EXPECT_EQ(never.item(), never2.item());
  }
  const auto one = first->state_dict(), two = second->state_dict();
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].name, two[i].name);
    EXPECT_EQ(one[i].tensor.to_vector<double>(), two[i].tensor.to_vector<double>()) << one[i].name;
  }
}

TEST(OptimizerState, LoadingTakesCopies) {
  Tensor w = leaf({1});
  const auto first = adam_of({w});
  step_with(*first, w, 1);
  const auto state = first->state_dict();
  Tensor v = leaf({1});
  const auto second = adam_of({v});
  second->load_state_dict(state);
  step_with(*second, v, 5);
  step_with(*second, v, 5);
  EXPECT_EQ(first->applied_steps(), 1) << "the two share a counter";
  EXPECT_NEAR(first->state_dict()[0].tensor.item(), 0.1, 1e-6);
}

TEST(OptimizerState, RefusesWhatDoesNotFitBeforeAnythingChanges) {
  Tensor w = leaf({1, 2});
  const auto optimizer = adam_of({w});
  step_with(*optimizer, w, 1);
  const auto good = copy_of(optimizer->state_dict());
  const auto expect_refused = [&](const std::vector<OptimizerState>& state, const char* part) {
    try {
      optimizer->load_state_dict(state);
      ADD_FAILURE() << "accepted, wanted: " << part;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_EQ(optimizer->applied_steps(), 1);
    EXPECT_NEAR(optimizer->state_dict()[0].tensor.to_vector<float>()[0], 0.1, 1e-6);
  };
  const auto edited = [&](const char* name, const Tensor& with) {
    auto state = copy_of(good);
    for (OptimizerState& entry : state) {
      if (entry.name == name) entry.tensor = with;
    }
    return state;
  };
  auto state = copy_of(good);
  std::erase_if(state, [](const auto& entry) { return entry.name == "0.second_moment"; });
  expect_refused(state, "'0.second_moment' is missing");
  state = copy_of(good);
  std::erase_if(state, [](const auto& entry) { return entry.name == "applied_steps.0"; });
  expect_refused(state, "applied_steps.0");
  state = copy_of(good);
  state.push_back({"1.first_moment", zeros({1})});
  expect_refused(state, "unknown entry '1.first_moment'");
  expect_refused(edited("0.first_moment", zeros({3})), "has shape [3] but needs [2]");
  expect_refused(edited("0.cohort", from_vector(std::vector<int64_t>{7}, {}, {DType::i64})),
                 "'0.cohort' is 7, needed is 0 .. 0");
  expect_refused({}, "applied_steps.0");
  // Kernels read counts as they lie, and take them for places in the table of rates.
  const auto count = [](int64_t value) {
    return from_vector(std::vector<int64_t>{value}, {}, {DType::i64});
  };
  expect_refused(edited("applied_steps.0", scalar(1)), "'applied_steps.0' is f32 but needs i64");
  expect_refused(edited("applied_steps.0", count(-5)), "'applied_steps.0' is -5");
  expect_refused(edited("applied_steps.0", count(INT64_MAX)), "'applied_steps.0' is 9223372036854");
  expect_refused(edited("0.cohort", scalar(1e300, {DType::f64})), "'0.cohort' is f64");
  expect_refused(edited("0.cohort", count(-1)), "'0.cohort' is -1");
  optimizer->load_state_dict(good);
}

TEST(OptimizerState, AStateOfAnotherAlgorithmIsRefused) {
  Tensor w = leaf({1});
  SgdOptions options;
  options.momentum = 0.9;
  Sgd sgd({{.parameters = {w}}}, options);
  step_with(sgd, w, 1);
  EXPECT_THROW(adam_of({w})->load_state_dict(copy_of(sgd.state_dict())), InvalidArgument);
}

TEST(OptimizerState, OfAnUnusedOptimizerLoadsToo) {
  Tensor w = leaf({1});
  const auto fresh = adam_of({w});
  const auto other = adam_of({w});
  step_with(*other, w, 1);
  other->load_state_dict(copy_of(fresh->state_dict()));
  EXPECT_EQ(other->applied_steps(), 0);
  Tensor v = leaf({static_cast<float>(w.item())});
  const auto reference = adam_of({v});
  step_with(*other, w, 1);
  step_with(*reference, v, 1);
  EXPECT_EQ(w.item(), v.item());
}

}  // namespace
}  // namespace headroom
