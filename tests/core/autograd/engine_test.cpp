// The walk over the tape: which gradients arrive, what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/autograd/autograd.h"
#include "core/ops/contract.h"
#include "core/ops/ops.h"
#include "tests/core/autograd/tape_helpers.h"

namespace headroom {
namespace {

using namespace testing_autograd;

// An op that does what a test tells it to.
struct Probe : Node {
  std::function<Grads(Tensor)> fn;
  explicit Probe(std::function<Grads(Tensor)> fn) : fn(std::move(fn)) {}
  const char* name() const override { return "probe"; }
  Tensor forward(const Tensor& x) {
    Tensor y = empty_like(x);
    slots::copy(x, y);
    return y;
  }
  Grads backward(Tensor dy) override { return fn(std::move(dy)); }
};

TEST(Backward, RunsEachNodeOnceAfterAllItsConsumers) {
  // A diamond of diamonds has 2^20 paths; each node may run only once.
  Tensor x = leaf({1});
  int runs = 0;
  Tensor y = x;
  for (int i = 0; i < 20; ++i) {
    y = apply(Probe{[&](Tensor dy) {
                ++runs;
                return Grads{dy};
              }},
              y);
    y = add(y, y);
  }
  backward(y);
  EXPECT_EQ(runs, 20);
  EXPECT_EQ(x.grad().item(), 1 << 20);
}

TEST(Backward, TakesNodesInReverseProgramOrder) {
  Tensor x = leaf({1});
  std::vector<int> order;
  std::vector<Tensor> parts;
  for (int i = 0; i < 4; ++i) {
    parts.push_back(apply(Probe{[&order, i](Tensor dy) {
                            order.push_back(i);
                            return Grads{dy};
                          }},
                          x));
  }
  // Summed in another order than they were made.
  backward(add(add(parts[2], parts[0]), add(parts[3], parts[1])));
  EXPECT_EQ(order, (std::vector<int>{3, 2, 1, 0}));
}

TEST(Backward, AddsToAGradientThatIsThere) {
  Tensor x = leaf({1, 2});
  backward(sum(mul(x, 3)));
  backward(sum(mul(x, 4)));
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{7, 7}));
}

TEST(Backward, UnusedInputsGetNoGradient) {
  Tensor used = leaf({1, 2}), unused = leaf({3, 4});
  const Tensor side = mul(unused, 2);
  backward(sum(mul(used, 2)));
  EXPECT_FALSE(unused.grad().defined());
  EXPECT_TRUE(used.grad().defined());
}

TEST(Backward, ATensorUsedTwiceByOneOpCountsTwice) {
  Tensor x = leaf({3});
  backward(mul(x, x));
  EXPECT_EQ(x.grad().item(), 6);
  Tensor y = leaf({5});
  backward(add(y, y));
  EXPECT_EQ(y.grad().item(), 2);
}

TEST(Backward, SharedInputsSumOverTheirUses) {
  Tensor x = leaf({2});
  // d/dx (x^2 + 3x + x * x^2) = 2x + 3 + 3x^2
  const Tensor square = mul(x, x);
  backward(add(add(square, mul(x, 3)), mul(x, square)));
  EXPECT_EQ(x.grad().item(), 4 + 3 + 12);
}

// The gradient of a sum's input is a view that repeats one number; what adds to it or writes it in
// place has to notice.
TEST(Backward, RepeatedGradientsAreNeverWrittenInPlace) {
  Tensor x = leaf({1, 2, 3});
  const Tensor y = mul(x, 1);
  backward(add(sum(neg(y)), sum(relu(y))));
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{0, 0, 0}));
}

TEST(Backward, RepeatedGradientsAreNotAddedToInPlace) {
  Tensor x = leaf({1, 2, 3});
  const Tensor y = mul(x, 1);
  backward(add(mul(sum(y), 2), mul(sum(y), 3)));
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{5, 5, 5}));
}

// One gradient handed to two consumers: neither may write over what the other still reads.
TEST(Backward, AGradientSharedByTwoBranchesIsIntactInBoth) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor u = mul(mul(a, 1), 2), v = mul(mul(b, 1), 5);
  backward(sum(mul(add(u, v), add(u, v))));
  EXPECT_EQ(a.grad().to_vector<float>(), (Floats{4 * 17, 4 * 24}));
  EXPECT_EQ(b.grad().to_vector<float>(), (Floats{10 * 17, 10 * 24}));
}

TEST(Backward, TheSeedIsReadAndNeverWritten) {
  for (const bool whole : {true, false}) {
    Tensor x = leaf({1, -2, 3});
    const Tensor seed = whole ? from_vector(Floats{1, 10, 100}, {3}) : scalar(7);
    const Floats before = seed.to_vector<float>();
    backward(neg(relu(neg(mul(x, 2)))), seed);
    EXPECT_EQ(seed.to_vector<float>(), before);
    EXPECT_EQ(x.grad().to_vector<float>(), whole ? (Floats{0, 20, 0}) : (Floats{0, 14, 0}));
  }
}

TEST(Backward, ALeafsGradientIsNotTheSeedItself) {
  Tensor x = leaf({1, 2});
  Tensor seed = ones({2});
  backward(x, seed);
  fill_(seed, 9);
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{1, 1}));
}

TEST(Backward, SeedsThatDoNotFitAreRefused) {
  Tensor x = leaf({1, 2, 3});
  const Tensor y = mul(x, 2);
  EXPECT_NE(message_of([&] { backward(y); }).find("needs a seed"), std::string::npos);
  EXPECT_THROW(backward(y, ones({2})), InvalidArgument);
  EXPECT_THROW(backward(y, ones({3}, {DType::f32, Device::meta(DeviceType::cpu)})),
               InvalidArgument);
  EXPECT_FALSE(x.grad().defined());
  backward(y, ones({3}));  // the refusals released nothing
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{2, 2, 2}));
}

TEST(Backward, ASeedIsTakenInTheOutputsType) {
  for (const bool whole : {true, false}) {
    Tensor x = leaf({1, 2, 3, 4}, {2, 2}), w = leaf({1, 0, 0, 1}, {2, 2});
    const Tensor y = matmul(cast(x, DType::f16), cast(w, DType::f16));
    backward(y, whole ? full({2, 2}, 3, {DType::f64}) : scalar(3));
    EXPECT_EQ(x.grad().to_vector<float>(), Floats(4, 3));
    EXPECT_EQ(w.grad().to_vector<float>(), (Floats{12, 12, 18, 18}));
  }
  Tensor x = leaf({1, 2});
  EXPECT_THROW(backward(mul(x, 2), ones({2}, {DType::i64})), InvalidArgument);
}

// 65536 is no half, 65536 / 1024 is.
TEST(Backward, AMeanOfHalvesDividesItsGradientBeforeItRounds) {
  Tensor x = ones({1024}, {DType::f16});
  x.set_requires_grad(true);
  Tensor loss;
  {
    const Autocast region(DType::f16);
    loss = mean(x);
  }
  backward(loss, scalar(65536));
  EXPECT_EQ(x.grad().to_vector<float>(), Floats(1024, 64));
}

TEST(Backward, OutsideAGraphIsRefused) {
  EXPECT_NE(message_of([] { backward(ones({})); }).find("not part of a graph"), std::string::npos);
  EXPECT_THROW(backward(Tensor()), InvalidArgument);
  Tensor x = leaf({1});
  EXPECT_THROW(backward(mul(x, 2).detach()), InvalidArgument);
}

TEST(Backward, ASecondLossThroughAReleasedPartIsRefusedToo) {
  Tensor x = leaf({2});
  const Tensor shared = mul(x, x);
  const Tensor first = mul(shared, 3), second = mul(shared, 5);
  backward(first);
  EXPECT_NE(message_of([&] { backward(second); }).find("a second time"), std::string::npos);
}

// Whatever writes gradients over what forward saved must not when the graph is kept.
TEST(Backward, AKeptGraphGivesTheSameGradientsEveryTime) {
  const Tensor images = from_vector(
      [] {
        Floats values;
        for (int i = 0; i < 2 * 3 * 6 * 6; ++i) values.push_back(std::sin(static_cast<float>(i)));
        return values;
      }(),
      {2, 3, 6, 6}, {DType::f32, Device::cpu(), MemoryFormat::channels_last});
  Tensor x = images.detach();
  x.set_requires_grad(true);
  Tensor w = full({4, 3, 3, 3}, 0.1, images.options());
  Tensor gamma = full({4}, 2), beta = full({4}, 0.1), fc = full({5, 4}, 0.3);
  {
    const NoGrad no_grad;
    uniform_(w, -1, 1);
    uniform_(fc, -1, 1);
  }
  std::vector<Tensor> leaves = {x, w, gamma, beta, fc};
  for (Tensor& each : leaves) each.set_requires_grad(true);
  BatchNormState state{gamma, beta, {}, {}};
  const Tensor conv = conv2d(x, w, {}, {.padding = {1, 1}});
  const Tensor normed = batch_norm(conv, state, {.relu = true});
  const Tensor joined = batch_norm(conv2d(normed, full({4, 4, 1, 1}, 0.5, images.options())), state,
                                   {.relu = true}, normed);
  const Tensor pooled = max_pool2d(joined, {.kernel = {2, 2}});
  const Tensor logits = linear(flatten(global_avg_pool2d(pooled), 1), fc);
  const Tensor loss =
      cross_entropy(logits, from_vector(std::vector<int64_t>{1, 3}, {2}, {DType::i64}));
  std::vector<Floats> first;
  for (int pass = 0; pass < 3; ++pass) {
    for (Tensor& each : leaves) each.set_grad({});
    backward(loss, {}, {.retain_graph = pass < 2});
    for (size_t i = 0; i < leaves.size(); ++i) {
      const Floats now = leaves[i].grad().to_vector<float>();
      if (pass == 0) {
        first.push_back(now);
        EXPECT_GT(std::abs(*std::max_element(now.begin(), now.end())), 0.0f);
      } else {
        EXPECT_EQ(now, first[i]) << "leaf " << i << " in pass " << pass;
      }
    }
  }
}

TEST(Backward, GradientsDoNotShareMemoryWithActivationsOrEachOther) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor y = add(a, b);  // both get the very gradient of y
  backward(y, ones({2}));
  Tensor grad = a.grad();
  fill_(grad, 100);
  EXPECT_EQ(b.grad().to_vector<float>(), (Floats{1, 1}));
}

TEST(Backward, AGradientThatIsAPartOfALargerOneDoesNotKeepTheWhole) {
  Tensor a = leaf(Floats(256, 1));
  const int64_t before = allocated();
  // The constant part's gradient is not wanted; a's is the first 1 KiB of 1 MiB + 1 KiB.
  backward(sum(mul(concat({a, ones({1 << 18})}, 0), 2)));
  EXPECT_EQ(a.grad().to_vector<float>(), Floats(256, 2));
  EXPECT_EQ(allocated() - before, 1024);
}

TEST(Backward, LeavesGradientsInTheLeafsLayout) {
  const TensorOptions nhwc{DType::f32, Device::cpu(), MemoryFormat::channels_last};
  Tensor x = ones({2, 3, 4, 5}, nhwc);
  x.set_requires_grad(true);
  backward(sum(mul(permute(x, {0, 3, 1, 2}), 2)));
  EXPECT_EQ(x.grad().format(), MemoryFormat::channels_last);
  EXPECT_TRUE(x.grad().is_dense());
}

TEST(Backward, AWrongGradientOfAnOpIsNamed) {
  Tensor x = leaf({1, 2});
  const Tensor wrong_shape = apply(Probe{[](Tensor) { return Grads{zeros({3})}; }}, mul(x, 2));
  EXPECT_NE(message_of([&] { backward(wrong_shape, ones({2})); }).find("mul"), std::string::npos);
  const Tensor wrong_count = apply(Probe{[](Tensor) { return Grads{}; }}, mul(x, 2));
  EXPECT_NE(message_of([&] { backward(wrong_count, ones({2})); }).find("probe"), std::string::npos);
}

TEST(Backward, AnOpThatOwesNothingMayReturnNoGradient) {
  Tensor x = leaf({1, 2});
  backward(sum(apply(Probe{[](Tensor) { return Grads{Tensor()}; }}, mul(x, 2))));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Backward, AnExceptionLeavesModesAndMemoryAsTheyWere) {
  Tensor x = leaf(Floats(1 << 16, 1));
  const int64_t before = allocated();
  for (int i = 0; i < 3; ++i) {
    Tensor y = relu(mul(x, 2));
    y = apply(Probe{[](Tensor) -> Grads { throw DeviceError("lost"); }}, y);
    const Tensor loss = sum(exp(y));
    EXPECT_THROW(backward(loss), DeviceError);
    EXPECT_TRUE(grad_enabled());
    EXPECT_EQ(memory_context().phase, Phase::none);
    EXPECT_STREQ(memory_context().op, "");
    EXPECT_FALSE(detail::graph_is_retained());
    EXPECT_THROW(backward(loss), Error) << "half of the graph is gone";
  }
  EXPECT_EQ(allocated(), before);
  EXPECT_FALSE(x.grad().defined());
}

}  // namespace
}  // namespace headroom
