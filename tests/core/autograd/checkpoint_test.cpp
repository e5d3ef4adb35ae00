// Activation checkpointing: the second run is the first again, and leaves no trace of its own.
#include <gtest/gtest.h>

#include <functional>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "nn/layers.h"
#include "tests/support/message_of.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

Tensor leaf(const Floats& values, const Shape& shape) {
  Tensor x = from_vector(values, shape);
  x.set_requires_grad(true);
  return x;
}
Tensor leaf(const Floats& values) { return leaf(values, {static_cast<int64_t>(values.size())}); }

using test::message_of;

int64_t allocated() { return memory_allocated(Device::cpu()); }

TEST(Checkpoint, NeedsNoGradientWhereNothingDoes) {
  const Tensor y = checkpoint([](const Tensor& in) { return mul(in, 2); }, ones({2}));
  EXPECT_FALSE(y.requires_grad());
  Tensor w = leaf({3, 4});
  const NoGrad no_grad;
  EXPECT_FALSE(checkpoint([&](const Tensor& in) { return mul(in, w); }, ones({2})).requires_grad());
}

TEST(Checkpoint, AnInputWrittenBeforeBackwardIsNoticed) {
  Tensor p = leaf({1, 2}), w = leaf({3, 3});
  Tensor h = mul(p, 1);
  const Tensor y = checkpoint([&](const Tensor& in) { return mul(in, w); }, h);
  {
    const NoGrad no_grad;
    fill_(h, 5);
  }
  EXPECT_NE(message_of([&] { backward(sum(y)); }).find("checkpoint"), std::string::npos);
  EXPECT_FALSE(w.grad().defined());
}

TEST(Checkpoint, GivesTheGradientsOfThePlainRunBitForBit) {
  manual_seed(1);
  Tensor w1 = empty({16, 16}), w2 = empty({16, 16}), x = empty({8, 16});
  for (Tensor* t : {&w1, &w2, &x}) {
    normal_(*t);
    t->set_requires_grad(true);
  }
  const auto block = [&](const Tensor& in) {
    return tanh(linear(dropout(relu(linear(in, w1)), {.p = 0.2}), w2));
  };
  std::vector<Floats> plain;
  for (const bool checkpointed : {false, true}) {
    manual_seed(2);
    for (Tensor* t : {&w1, &w2, &x}) t->set_grad({});
    Tensor y = x;
    for (int i = 0; i < 3; ++i) y = checkpointed ? checkpoint(block, y) : block(y);
    backward(sum(mul(y, y)));
    std::vector<Floats> now;
    for (Tensor* t : {&w1, &w2, &x}) now.push_back(t->grad().to_vector<float>());
    if (checkpointed) {
      EXPECT_EQ(now, plain);
    } else {
      plain = now;
    }
  }
}

TEST(Checkpoint, KeepsItsInputAlone) {
  constexpr int64_t kBytes = 4 << 16;
  Tensor x = leaf(Floats(1 << 16, 0.1f));
  const auto block = [](const Tensor& in) {
    Tensor y = in;
    for (int i = 0; i < 6; ++i) y = sigmoid(y);
    return y;
  };
  const int64_t before = allocated();
  const Tensor y = checkpoint(block, x);
  EXPECT_EQ(allocated() - before, kBytes);  // the output
  ASSERT_EQ(y.grad_fn()->saved().size(), 1u);
  EXPECT_EQ(y.grad_fn()->saved()[0]->tensor.storage(), x.storage());
}

TEST(Checkpoint, HoldsNeitherItsSecondOutputNorTheGradientLongerThanNeeded) {
  constexpr int64_t kBytes = 4 << 18;
  Tensor x = leaf(Floats(1 << 18, 0.1f));
  const auto block = [](const Tensor& in) {
    Tensor y = in;
    for (int i = 0; i < 4; ++i) y = neg(y);
    return y;
  };
  const Tensor y = checkpoint(block, x);
  const Tensor loss = sum(mul(y, 2));
  reset_peak_memory_stats(Device::cpu());
  const int64_t before = allocated();
  backward(loss);
  // The gradient of y and, while the function runs again, its three results, which are one
  // expression; in backward the gradient alone, written over and over, which ends as x's.
  EXPECT_LE(max_memory_allocated(Device::cpu()) - before, 4 * kBytes + 2 * kMinBlockBytes);
  EXPECT_EQ(allocated() - before, kBytes);
}

TEST(Checkpoint, ChargesWhatFlowsThroughItAsTemporary) {
  Tensor p = leaf(Floats(1 << 16, 0.1f));
  const auto& parts = [] {
    return allocator_of(Device::cpu()).stats().current_by_tag[static_cast<size_t>(Tag::gradient)];
  };
  const int64_t before = parts();
  int64_t seen = -1;
  struct Watch : Node {
    std::function<void()> fn;
    const char* name() const override { return "watch"; }
    Tensor forward(const Tensor& x) { return add(x, 0.0).detach(); }
    Grads backward(Tensor dy) override {
      fn();
      return {dy};
    }
  };
  Watch watch;
  watch.fn = [&] { seen = parts() - before; };
  const Tensor h = apply(std::move(watch), mul(p, 1));
  const Tensor y = checkpoint([](const Tensor& in) { return mul(in, 3); }, h);
  backward(sum(y));
  EXPECT_EQ(seen, 0);
  EXPECT_EQ(p.grad().storage()->tag(), Tag::gradient);
}

TEST(Checkpoint, NestsAndCountsRunsOfTheInnerFunction) {
  Tensor w = leaf({0.5f, 0.25f}), x = leaf({1, 2});
  int inner_runs = 0;
  const auto inner = [&](const Tensor& in) {
    ++inner_runs;
    return mul(tanh(mul(in, w)), w);
  };
  const auto outer = [&](const Tensor& in) {
    return sigmoid(checkpoint(inner, checkpoint(inner, in)));
  };
  const Tensor y = checkpoint(outer, x);
  EXPECT_EQ(inner_runs, 2);
  backward(sum(y));
  // The outer second run calls both again, and each inner one runs once more for its own tape.
  EXPECT_EQ(inner_runs, 6);
  EXPECT_FALSE(in_recomputation());
  const Floats dw = w.grad().to_vector<float>(), dx = x.grad().to_vector<float>();
  w.set_grad({});
  x.set_grad({});
  backward(sum(sigmoid(inner(inner(x)))));
  EXPECT_EQ(dw, w.grad().to_vector<float>());
  EXPECT_EQ(dx, x.grad().to_vector<float>());
}

TEST(Checkpoint, AnExceptionInTheFunctionPassesAndLeavesModesAlone) {
  Tensor x = leaf({1, 2});
  const int64_t before = allocated();
  const GeneratorState random = default_generator().state();
  EXPECT_THROW(checkpoint([](const Tensor&) -> Tensor { throw DeviceError("first"); }, x),
               DeviceError);
  EXPECT_TRUE(grad_enabled());
  int runs = 0;
  {
    const Tensor y = checkpoint(
        [&](const Tensor& in) {
          if (++runs == 2) throw DeviceError("second");
          return mul(in, 2);
        },
        x);
    EXPECT_EQ(message_of([&] { backward(sum(y)); }), "second");
  }
  EXPECT_TRUE(grad_enabled());
  EXPECT_FALSE(in_recomputation());
  EXPECT_FALSE(autocast_state().enabled);
  EXPECT_EQ(default_generator().state(), random);
  EXPECT_EQ(allocated(), before);
}

TEST(Checkpoint, AFunctionWhoseSecondRunDiffersIsNamed) {
  Tensor x = leaf({1, 2, 3, 4});
  int runs = 0;
  const Tensor y = checkpoint(
      [&](const Tensor& in) { return ++runs == 1 ? mul(in, 2) : sum(in, {.keep_dims = true}); }, x);
  const std::string message = message_of([&] { backward(sum(y)); });
  EXPECT_NE(message.find("checkpoint"), std::string::npos) << message;
  EXPECT_NE(message.find("[4]"), std::string::npos) << message;
}

TEST(Checkpoint, ReturningTheInputOrATensorOfOthersLeavesThatTensorAlone) {
  Tensor x = leaf({1, 2}), w = leaf({3, 4});
  Tensor y = checkpoint([](const Tensor& in) { return in; }, x);
  EXPECT_TRUE(x.is_leaf());
  backward(sum(mul(y, 5)));
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{5, 5}));
  y = checkpoint([&](const Tensor&) { return w; }, x);
  EXPECT_TRUE(w.is_leaf()) << "a parameter has become the output of an op";
  const Tensor constant = ones({2});
  y = checkpoint(
      [&](const Tensor& in) {
        mul(in, 2);
        return constant;
      },
      x);
  EXPECT_FALSE(constant.requires_grad());
}

TEST(Checkpoint, RunsAgainForEachBackwardOfAKeptGraph) {
  Tensor x = leaf({1, 2});
  int runs = 0;
  const Tensor y = sum(checkpoint(
      [&](const Tensor& in) {
        ++runs;
        return mul(in, in);
      },
      x));
  backward(y, {}, {.retain_graph = true});
  backward(y);
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{4, 8}));
  EXPECT_THROW(backward(y), Error);
}

// The input of a block is often a norm's output, which is kept by its recipe.
TEST(Checkpoint, TakesAnInputThatIsMadeAgain) {
  Tensor x = leaf({1, 5, 2, 8}, {4, 1}), gamma = leaf({2}), beta = leaf({0.5f}), w = leaf({3});
  const auto run = [&](bool checkpointed) {
    for (Tensor* t : {&x, &gamma, &beta, &w}) t->set_grad({});
    const Tensor h = batch_norm(x, {gamma, beta, {}, {}}, {.relu = true});
    const auto block = [&](const Tensor& in) { return tanh(mul(in, w)); };
    backward(sum(checkpointed ? checkpoint(block, h) : block(h)));
    std::vector<Floats> out;
    for (Tensor* t : {&x, &gamma, &beta, &w}) out.push_back(t->grad().to_vector<float>());
    return out;
  };
  EXPECT_EQ(run(true), run(false));
}

// A skip connection that the function takes from outside: its producers belong to the graph around
// the checkpoint and run once, after everyone who uses them.
TEST(Checkpoint, ATensorOfTheGraphThatTheFunctionUsesRunsBackwardOnce) {
  Tensor p = leaf({0.5f, 2}), w = leaf({3, -1});
  const auto run = [&](int depth) {
    for (Tensor* t : {&p, &w}) t->set_grad({});
    const Tensor shared = mul(p, p);
    const Tensor h = tanh(shared), skip = sigmoid(shared);
    std::function<Tensor(const Tensor&)> block = [&](const Tensor& in) {
      return add(mul(mul(in, w), h), mul(skip, skip));  // h once as x and once as itself
    };
    for (int i = 0; i < depth; ++i) {
      block = [inner = block](const Tensor& in) { return checkpoint(inner, in); };
    }
    const Tensor y = block(h);
    const Tensor loss = sum(add(add(y, mul(skip, 5)), mul(shared, h)));
    backward(loss, {}, {.retain_graph = true});
    backward(loss);
    EXPECT_THROW(backward(loss), Error);
    return std::vector<Floats>{p.grad().to_vector<float>(), w.grad().to_vector<float>()};
  };
  const std::vector<Floats> plain = run(0);
  for (const int depth : {1, 2}) {
    const std::vector<Floats> now = run(depth);
    for (size_t i = 0; i < plain.size(); ++i) {
      for (size_t j = 0; j < 2; ++j) EXPECT_NEAR(now[i][j], plain[i][j], 1e-5) << depth;
    }
  }
}

TEST(Checkpoint, ReturnsATensorOfTheGraphWithItsGradient) {
  Tensor p = leaf({1, 2});
  const Tensor skip = mul(p, 3);
  const Tensor y = checkpoint([&](const Tensor&) { return skip; }, ones({2}));
  backward(sum(add(y, mul(skip, 2))));
  EXPECT_EQ(p.grad().to_vector<float>(), (Floats{9, 9}));
}

// A parameter that moved, or a skip connection that was overwritten: the second run would compute
// something else, which a plain run notices by its saved tensors.
TEST(Checkpoint, WhatItsFunctionUsesMustNotChangeBeforeItsSecondRun) {
  Tensor p = leaf({1, 2}), w = leaf({3, 3});
  Tensor skip = mul(p, 1);
  const auto block = [&](const Tensor& in) { return add(mul(in, w), skip); };
  Tensor y = checkpoint(block, ones({2}));
  {
    const NoGrad no_grad;
    mul_(w, 2.0);
  }
  const std::string message = message_of([&] { backward(sum(y)); });
  EXPECT_NE(message.find("f32[2]"), std::string::npos) << message;
  EXPECT_NE(message.find("in place"), std::string::npos) << message;
  EXPECT_FALSE(p.grad().defined());
  y = checkpoint(block, ones({2}));
  relu_(skip);
  EXPECT_THROW(backward(sum(y)), Error);
  // Written by the function itself, it is refused at once.
  const auto writes = [&](const Tensor& in) {
    mul_(skip, 2.0);
    return mul(in, skip);
  };
  const std::string at_once = message_of([&] { checkpoint(writes, ones({2})); });
  EXPECT_NE(at_once.find("clone"), std::string::npos) << at_once;
}

// An evaluation between forward and backward, or one that a failure left behind.
TEST(Checkpoint, RunsAgainInTheModesOfItsFirstRun) {
  Tensor x = leaf({1, 5, 2, 8, 4, 4, 0, 3}, {4, 2});
  const auto run = [&](int depth, bool train_first) {
    x.set_grad({});
    manual_seed(4);
    const auto dropped = std::make_shared<Dropout>(0.5);
    const auto norm = std::make_shared<BatchNorm2d>(BatchNorm2d::Options{.channels = 2});
    Sequential net({norm, dropped, std::make_shared<Dropout>(0.0), norm});
    net.train(train_first);
    std::function<Tensor(const Tensor&)> block = [&](const Tensor& in) { return net(in); };
    for (int i = 0; i < depth; ++i) {
      block = [inner = block](const Tensor& in) { return checkpoint(inner, in); };
    }
    const Tensor y = block(x);
    const int64_t tracked = norm->batches_tracked();
    net.train(!train_first);
    backward(y, from_vector(Floats{1, -2, 3, 0.5f, 2, 1, -1, 4}, {4, 2}));
    EXPECT_EQ(norm->batches_tracked(), tracked);
    EXPECT_EQ(net.training(), !train_first);
    return x.grad().to_vector<float>();
  };
  for (const bool train_first : {true, false}) {
    const Floats plain = run(0, train_first);
    EXPECT_EQ(run(1, train_first), plain);
    EXPECT_EQ(run(2, train_first), plain);
  }
}

TEST(Checkpoint, OfHalfActivationsPassesHalfGradients) {
  Tensor x = full({4}, 0.5, {DType::f16});
  x.set_requires_grad(true);
  const Tensor y = checkpoint([](const Tensor& in) { return mul(in, in); }, mul(x, 1));
  EXPECT_EQ(y.dtype(), DType::f16);
  backward(sum(cast(y, DType::f32)));
  EXPECT_EQ(x.grad().to_vector<float>(), Floats(4, 1));
}

}  // namespace
}  // namespace headroom
