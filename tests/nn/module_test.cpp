// The module tree: names, modes, state, memory paths.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>

#include "core/autograd/autograd.h"
#include "core/tensor/generator.h"
#include "nn/layers.h"
#include "tests/support/message_of.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

std::vector<std::string> names_of(const std::vector<NamedTensor>& list) {
  std::vector<std::string> out;
  for (const NamedTensor& entry : list) out.push_back(entry.name);
  return out;
}

using test::message_of;

std::shared_ptr<Sequential> small_net() {
  auto inner = std::make_shared<Sequential>();
  inner->append(std::make_shared<Conv2d>(Conv2d::Options{.in = 1, .out = 2, .kernel = {3, 3}}));
  inner->append(std::make_shared<BatchNorm2d>(BatchNorm2d::Options{.channels = 2}));
  auto net = std::make_shared<Sequential>();
  net->append("features", inner);
  net->append("drop", std::make_shared<Dropout>(0.5));
  net->append("flat", std::make_shared<Flatten>());
  net->append("fc", std::make_shared<Linear>(Linear::Options{.in = 8, .out = 3}));
  return net;
}

TEST(Module, NamesParametersBuffersAndCountersByTheirPlaceInTheTree) {
  const auto net = small_net();
  EXPECT_EQ(names_of(net->named_parameters()),
            (std::vector<std::string>{"features.0.weight", "features.0.bias", "features.1.weight",
                                      "features.1.bias", "fc.weight", "fc.bias"}));
  EXPECT_EQ(names_of(net->named_buffers()),
            (std::vector<std::string>{"features.1.running_mean", "features.1.running_var"}));
  EXPECT_EQ(names_of(net->state_dict()),
            (std::vector<std::string>{"features.0.weight", "features.0.bias", "features.1.weight",
                                      "features.1.bias", "features.1.running_mean",
                                      "features.1.running_var", "features.1.num_batches_tracked",
                                      "fc.weight", "fc.bias"}));
  EXPECT_EQ(net->parameter_count(), 2 * 9 + 2 + 2 + 2 + 8 * 3 + 3);
}

TEST(Module, TagsParametersAndBuffers) {
  const auto net = small_net();
  for (const NamedTensor& entry : net->named_parameters()) {
    EXPECT_EQ(entry.tensor.storage()->tag(), Tag::parameter) << entry.name;
    EXPECT_TRUE(entry.tensor.requires_grad()) << entry.name;
  }
  for (const NamedTensor& entry : net->named_buffers()) {
    EXPECT_EQ(entry.tensor.storage()->tag(), Tag::buffer) << entry.name;
    EXPECT_FALSE(entry.tensor.requires_grad()) << entry.name;
  }
}

TEST(Module, ChargesActivationsAndGradientsToItsPath) {
  const auto net = small_net();
  const Tensor y = (*net)(ones({2, 1, 4, 4}));
  EXPECT_EQ(path_name(y.storage()->path()), "fc");
  EXPECT_EQ(path_name(y.grad_fn()->path()), "fc");
  backward(sum(y));
  EXPECT_EQ(path_name(net->named_parameters()[0].tensor.grad().storage()->path()), "features.0");
  EXPECT_EQ(memory_context().path, 0);
}

TEST(Module, ModesReachAllModulesBelow) {
  const auto net = small_net();
  net->eval();
  for (const auto& [path, module] : net->named_modules()) EXPECT_FALSE(module->training()) << path;
  net->train();
  for (const auto& [path, module] : net->named_modules()) EXPECT_TRUE(module->training()) << path;
  EXPECT_EQ(net->named_modules().front().first, "");
  EXPECT_EQ(net->named_modules()[2].first, "features.0");
}

TEST(StateDict, RoundTripsThroughOtherDtypesAndLayouts) {
  manual_seed(1);
  const auto from = small_net();
  (*from)(ones({2, 1, 4, 4}));  // moves the statistics and the counter
  manual_seed(2);
  const auto to = small_net();
  std::vector<NamedTensor> state = from->state_dict();
  for (NamedTensor& entry : state) {
    if (entry.tensor.rank() == 4) {
      entry.tensor = contiguous(entry.tensor, MemoryFormat::channels_last);
    }
    if (entry.name == "fc.weight") entry.tensor = cast(entry.tensor, DType::f64);
  }
  std::reverse(state.begin(), state.end());
  to->load_state_dict(state);
  const auto a = from->state_dict(), b = to->state_dict();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].tensor.to_vector<double>(), b[i].tensor.to_vector<double>()) << a[i].name;
    EXPECT_EQ(a[i].tensor.dtype(), b[i].tensor.dtype()) << a[i].name;
  }
}

TEST(StateDict, SharesStorageWithTheModule) {
  const auto net = small_net();
  Tensor bias = net->state_dict().back().tensor;
  fill_(bias, 7);
  EXPECT_EQ(net->named_parameters().back().tensor.to_vector<float>(), (Floats{7, 7, 7}));
}

TEST(StateDict, RefusesWhatDoesNotFitBeforeWritingAnything) {
  const auto net = small_net();
  const Floats before = net->named_parameters()[0].tensor.to_vector<float>();
  const auto expect_refused = [&](const std::vector<NamedTensor>& state, const char* part) {
    const std::string message = message_of([&] { net->load_state_dict(state); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(net->named_parameters()[0].tensor.to_vector<float>(), before);
  };
  const auto other = small_net()->state_dict();
  auto state = other;
  state.pop_back();
  expect_refused(state, "'fc.bias' is missing");
  state = other;
  state.push_back({"fc.scale", ones({3})});
  expect_refused(state, "'fc.scale'");
  state = other;
  state.back().tensor = ones({4});
  expect_refused(state, "has shape [4] but the model needs [3]");
  expect_refused({}, "missing");
}

TEST(StateDict, RefusesCountersThatAreNoCounts) {
  const auto net = small_net();
  const auto refusal_with = [&](const Tensor& counter) {
    auto state = net->state_dict();
    for (NamedTensor& entry : state) {
      if (entry.name == "features.1.num_batches_tracked") entry.tensor = counter;
    }
    return message_of([&] { net->load_state_dict(state); });
  };
  const auto count = [](int64_t value) {
    return from_vector(std::vector<int64_t>{value}, {}, {DType::i64});
  };
  EXPECT_EQ(refusal_with(count(3)), "nothing was thrown");
  EXPECT_EQ(refusal_with(from_vector(std::vector<uint8_t>{3}, {}, {DType::u8})),
            "nothing was thrown");
  const std::string name = "load_state_dict: 'features.1.num_batches_tracked' is ";
  EXPECT_EQ(refusal_with(scalar(NAN)), name + "f32 but a count is an integer");
  EXPECT_EQ(refusal_with(count(-1)).find(name + "-1, needed is 0 .. "), 0u);
  EXPECT_EQ(refusal_with(count(INT64_MAX)).find(name + "9223372036854775807"), 0u);
}

TEST(StateDict, CountersAreExactBeyondWhatAnF32Counts) {
  const auto net = small_net();
  auto state = net->state_dict();
  const int64_t large = (int64_t{1} << 53) + 1;
  for (NamedTensor& entry : state) {
    if (entry.name == "features.1.num_batches_tracked") {
      entry.tensor = from_vector(std::vector<int64_t>{large}, {}, {DType::i64});
    }
  }
  net->load_state_dict(state);
  for (const NamedTensor& entry : net->state_dict()) {
    if (entry.name == "features.1.num_batches_tracked") {
      EXPECT_EQ(entry.tensor.to_vector<int64_t>()[0], large);
    }
  }
}

TEST(Module, ZeroGradClearsEveryGradient) {
  const auto net = small_net();
  backward(sum((*net)(ones({2, 1, 4, 4}))));
  net->zero_grad();
  for (const NamedTensor& entry : net->named_parameters()) {
    EXPECT_FALSE(entry.tensor.grad().defined()) << entry.name;
  }
}

TEST(Sequential, RunsItsModulesInOrderUnderTheirNames) {
  Sequential net({std::make_shared<Activation>(ActivationKind::relu),
                  std::make_shared<Activation>(ActivationKind::sigmoid)});
  EXPECT_EQ(net.size(), 2u);
  EXPECT_EQ(net(full({1}, -5)).item(), 0.5);  // sigmoid(relu(-5))
  EXPECT_EQ(net.named_modules()[2].first, "1");
  EXPECT_THROW(net.append(nullptr), InvalidArgument);
  Sequential empty_one;
  const Tensor x = ones({2});
  EXPECT_EQ(empty_one(x).impl(), x.impl());
}

}  // namespace
}  // namespace headroom
