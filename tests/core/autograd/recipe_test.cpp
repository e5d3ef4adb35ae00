// Recipes: batch norm's output is not kept but made again, bit for bit; and what drops a recipe.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "tests/support/message_of.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;

constexpr MemoryFormat kNhwc = MemoryFormat::channels_last;
constexpr int64_t kChannels = 8, kSide = 32;
constexpr int64_t kBytes = 4 * kChannels * kSide * kSide * 4;  // of one activation in f32

int64_t allocated() { return memory_allocated(Device::cpu()); }

using test::message_of;

class RecipeTest : public testing::Test {
 protected:
  void SetUp() override {
    manual_seed(3);
    x = random({4, kChannels, kSide, kSide});
    w = random({kChannels, kChannels, 3, 3});
    v = random({kChannels, kChannels, 1, 1});
    state.gamma = random({kChannels});
    state.beta = random({kChannels});
    state.running_mean = zeros({kChannels});
    state.running_var = ones({kChannels});
    for (Tensor* t : {&w, &v, &state.gamma, &state.beta}) t->set_requires_grad(true);
  }

  static Tensor random(const Shape& shape) {
    Tensor out = empty(shape, {DType::f32, Device::cpu(), kNhwc});
    normal_(out);
    return out;
  }

  Tensor conv(const Tensor& in) const { return conv2d(in, w, {}, {.padding = {1, 1}}); }
  Tensor norm(const Tensor& in, const Tensor& residual = {}) const {
    return batch_norm(in, state, {.relu = true}, residual);
  }
  void clear() {
    for (Tensor* t : {&w, &v, &state.gamma, &state.beta}) t->set_grad({});
  }
  std::vector<Floats> gradients() const {
    std::vector<Floats> out;
    for (const Tensor* t : {&w, &v, &state.gamma, &state.beta}) {
      out.push_back(t->grad().defined() ? t->grad().to_vector<float>() : Floats());
    }
    return out;
  }

  Tensor x, w, v;
  BatchNormState state;
};

TEST_F(RecipeTest, TheOutputOfNormAndReluIsNotKept) {
  const int64_t before = allocated();
  const Tensor y = conv2d(norm(conv(x)), v);
  // conv's output, which the norm reads again, and y itself; statistics are a block of 512 B each.
  EXPECT_EQ(allocated() - before, 2 * kBytes + 2 * kMinBlockBytes);
  const SavePolicyScope keep(SavePolicy::keep);
  const int64_t middle = allocated();
  const Tensor z = conv2d(norm(conv(x)), v);
  EXPECT_EQ(allocated() - middle, 3 * kBytes + 2 * kMinBlockBytes);
}

TEST_F(RecipeTest, AChainOfNormsKeepsItsFirstInputAlone) {
  const int64_t before = allocated();
  const Tensor y = conv2d(norm(norm(norm(conv(x)))), v);
  EXPECT_EQ(allocated() - before, 2 * kBytes + 6 * kMinBlockBytes);
}

TEST_F(RecipeTest, GivesTheGradientsOfKeptOutputsBitForBit) {
  const auto run = [&](SavePolicy policy) {
    clear();
    const SavePolicyScope scope(policy);
    const Tensor y = conv2d(norm(norm(conv(x))), v);
    backward(sum(mul(y, y)));
    return gradients();
  };
  EXPECT_EQ(run(SavePolicy::recompute), run(SavePolicy::keep));
}

TEST_F(RecipeTest, MakesTheOutputAgainBitForBit) {
  const Tensor y = norm(conv(x));
  const Floats first = y.to_vector<float>();
  const auto& recipe = y.impl()->recipe;
  ASSERT_NE(recipe, nullptr);
  for (int i = 0; i < 2; ++i) {
    const Tensor again = recipe->recompute();
    EXPECT_NE(again.storage(), y.storage());
    EXPECT_EQ(again.to_vector<float>(), first);
    EXPECT_EQ(again.format(), y.format());
  }
}

TEST_F(RecipeTest, WithAResidualThereIsNone) {
  const Tensor input = conv(x);
  EXPECT_EQ(norm(input, input).impl()->recipe, nullptr);
}

TEST_F(RecipeTest, WithoutATapeThereIsNone) {
  const NoGrad no_grad;
  EXPECT_EQ(norm(conv(x)).impl()->recipe, nullptr);
}

TEST_F(RecipeTest, AnInPlaceWriteToTheOutputDropsIt) {
  const int64_t before = allocated();
  Tensor y = norm(conv(x));
  add_(y, 1.0);
  EXPECT_EQ(y.impl()->recipe, nullptr);
  const Tensor z = conv2d(y, v);
  y = {};
  // Now the written output has to be kept.
  EXPECT_EQ(allocated() - before, 3 * kBytes + 2 * kMinBlockBytes);
  backward(sum(mul(z, z)));
  const auto in_place = gradients();
  clear();
  backward([&] {
    const Tensor out = conv2d(add(norm(conv(x)), 1.0), v);
    return sum(mul(out, out));
  }());
  EXPECT_EQ(in_place, gradients());
}

TEST_F(RecipeTest, AWriteThroughAnotherHandleDropsItToo) {
  const Tensor y = norm(conv(x));
  Tensor other = y.detach();
  fill_(other, 2);
  EXPECT_NE(y.impl()->recipe, nullptr);
  const Tensor z = conv2d(y, v);  // must keep the twos, not the recipe for what was there
  backward(sum(z));
  EXPECT_EQ(v.grad().to_vector<float>()[0], 2.0f * 4 * kSide * kSide);
}

// What was saved before the write is still what the consumer saw.
TEST_F(RecipeTest, AWriteAfterItWasSavedDoesNotReachTheConsumer) {
  Tensor y = norm(conv(x));
  const Tensor z = conv2d(y, v);
  {
    const NoGrad no_grad;
    fill_(y, 100);
  }
  backward(sum(mul(z, z)));
  const auto written = gradients();
  clear();
  backward([&] {
    const Tensor out = conv2d(norm(conv(x)), v);
    return sum(mul(out, out));
  }());
  EXPECT_EQ(written, gradients());
}

TEST_F(RecipeTest, AWriteToTheProducersInputIsAnError) {
  Tensor input = conv(x);
  const Tensor z = conv2d(norm(input), v);
  {
    const NoGrad no_grad;
    mul_(input, 2.0);
  }
  const std::string message = message_of([&] { backward(sum(z)); });
  for (const char* part : {"batch_norm", "f32[4,8,32,32] nhwc", "version 0", "version 1"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST_F(RecipeTest, AWriteToTheScaleIsAnError) {
  const Tensor z = conv2d(norm(conv(x)), v);
  {
    const NoGrad no_grad;
    mul_(state.gamma, 2.0);
  }
  EXPECT_NE(message_of([&] { backward(sum(z)); }).find("batch_norm"), std::string::npos);
}

TEST_F(RecipeTest, TrainingStatisticsMayMoveOnBeforeBackward) {
  const Tensor z = conv2d(norm(conv(x)), v);
  norm(conv(mul(x, 3)));  // another batch moves the running averages
  backward(sum(z));       // this one used its own statistics
  EXPECT_TRUE(v.grad().defined());
}

TEST_F(RecipeTest, EvaluationStatisticsThatMovedAreAnError) {
  BatchNormOptions options;
  options.training = false;
  const Tensor z = conv2d(batch_norm(conv(x), state, options), v);
  norm(conv(x));
  EXPECT_NE(message_of([&] { backward(sum(z)); }).find("in place"), std::string::npos);
}

// dx of the norm goes over dy and, where only this node kept it, over x.
TEST_F(RecipeTest, BackwardOfNormTakesNoActivationOfItsOwn) {
  const Tensor y = norm(conv(x));
  const Tensor seed = ones(y.shape(), y.options());
  Tensor z = mul(y, 1);
  reset_peak_memory_stats(Device::cpu());
  const int64_t before = allocated();
  backward(z, seed);
  // mul's gradient, which becomes dx; then the weight gradient and workspaces, far smaller.
  EXPECT_LT(max_memory_allocated(Device::cpu()) - before, kBytes + kBytes / 2);
}

// Both branches of a sum get one and the same gradient; a product in between gives each its own.
TEST_F(RecipeTest, AGradientThatAnotherBranchStillReadsIsNotWrittenOver) {
  const auto run = [&](bool residual, bool shared) {
    clear();
    const Tensor input = conv(x);
    const auto branch = [&](const Tensor& y) { return shared ? y : mul(y, 1); };
    const Tensor a = branch(norm(input)), b = branch(norm(input, residual ? x : Tensor()));
    const Tensor z = add(a, b);
    backward(z, x);
    return gradients();
  };
  for (const bool residual : {false, true}) EXPECT_EQ(run(residual, true), run(residual, false));
  // The gradient of a residual is wanted as well, and lies over dy where that is free.
  const auto with_residual_gradient = [&](bool shared) {
    clear();
    const Tensor input = conv(x), other = conv2d(x, v);
    const auto branch = [&](const Tensor& y) { return shared ? y : mul(y, 1); };
    backward(add(branch(norm(input)), branch(norm(input, other))), x);
    return gradients();
  };
  EXPECT_EQ(with_residual_gradient(true), with_residual_gradient(false));
}

TEST_F(RecipeTest, AnInputThatOthersHoldIsNotWrittenOver) {
  Tensor input = conv(x);
  const Floats before = input.to_vector<float>();
  backward(sum(mul(norm(input), norm(input))));
  EXPECT_EQ(input.to_vector<float>(), before);
  // Saved by the tape alone, but by two nodes of it.
  clear();
  Tensor shared = conv(x);
  const Tensor loss = add(sum(mul(norm(shared), 2)), sum(mul(shared, shared)));
  shared = {};
  backward(loss);
  const auto got = gradients()[0];
  clear();
  {
    const SavePolicyScope keep(SavePolicy::keep);
    const Tensor held = conv(x);
    backward(add(sum(mul(norm(held), 2)), sum(mul(held, held))));
  }
  EXPECT_EQ(got, gradients()[0]);
}

}  // namespace
}  // namespace headroom
