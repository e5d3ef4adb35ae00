// What the tape keeps and when it lets go: saved tensors, long chains, the memory of a walk.
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/core/autograd/tape_helpers.h"

namespace headroom {
namespace {

using namespace testing_autograd;

TEST(Backward, FreesSavedTensorsWhileItRuns) {
  constexpr int kLayers = 8;
  constexpr int64_t kBytes = 1 << 20;
  Tensor x = leaf(Floats(kBytes / 4, 1));
  Tensor y = x;
  for (int i = 0; i < kLayers; ++i) y = sigmoid(y);
  const Tensor loss = sum(y);
  y = {};
  reset_peak_memory_stats(Device::cpu());
  const int64_t before = allocated();
  backward(loss);
  // The graph's eight outputs go; x's gradient comes. One gradient at a time on top.
  EXPECT_LE(max_memory_allocated(Device::cpu()), before + 2 * kBytes + 4096);
  EXPECT_LE(allocated(), before - (kLayers - 1) * kBytes + 1024);
}

TEST(Node, AChainOfAHundredThousandIsReleasedWithoutNesting) {
  constexpr int kLength = 100'000;
  std::thread small_stack([] {
    Tensor x = leaf({1});
    const int64_t before = allocated();
    {
      Tensor y = x;
      for (int i = 0; i < kLength; ++i) y = add(y, 0.0);
    }
    EXPECT_EQ(allocated(), before) << "dropped without backward";
    Tensor y = x;
    for (int i = 0; i < kLength; ++i) y = add(y, 0.0);
    backward(y);
    EXPECT_EQ(x.grad().item(), 1);
  });
  small_stack.join();
}

// A recipe is a second way from a consumer to its producer.
TEST(Node, AChainHeldByRecipesIsReleasedWithoutNesting) {
  Tensor x = leaf({1, 2, 3, 4}, {2, 2});
  Tensor gamma = leaf({1, 1}), beta = leaf({0, 0});
  const int64_t before = allocated();
  {
    Tensor y = x;
    for (int i = 0; i < 20'000; ++i) y = batch_norm(y, {gamma, beta, {}, {}});
  }
  EXPECT_EQ(allocated(), before);
}

TEST(Node, SavesOnlyWhatAWantedGradientNeeds) {
  constexpr int64_t kBytes = 4 << 16;
  const Tensor plain = full({1 << 16}, 2);
  Tensor wanted = leaf(Floats(1 << 16, 3));
  const auto kept_by = [](const std::function<Tensor()>& op, int64_t output_bytes) {
    const int64_t before = allocated();
    const Tensor y = op();
    return allocated() - before - output_bytes;
  };
  // The factor that is saved is somebody's already; a temporary one shows.
  EXPECT_EQ(kept_by([&] { return mul(wanted, add(plain, 1)); }, kBytes), kBytes);
  EXPECT_EQ(kept_by([&] { return mul(plain, add(wanted, 1)); }, kBytes), 0);
  EXPECT_EQ(kept_by([&] { return add(wanted, add(plain, 1)); }, kBytes), 0);
  EXPECT_EQ(kept_by([&] { return mul(add(plain, 1), plain); }, kBytes), 0) << "no gradient at all";
  EXPECT_EQ(kept_by([&] { return relu(neg(wanted)); }, kBytes), 0) << "relu needs its output alone";
  EXPECT_EQ(kept_by([&] { return log(neg(wanted)); }, kBytes), kBytes);
}

TEST(Node, AMatrixProductKeepsAnOperandOnlyForTheOthersGradient) {
  Tensor w = leaf(Floats(256 * 256, 0.1f), {256, 256});
  const Tensor x = ones({256, 256});
  const int64_t before = allocated();
  const Tensor frozen_weight = linear(add(w, 0.0), x);  // dx alone: keeps x, which is here anyway
  EXPECT_EQ(allocated() - before, 256 * 256 * 4);
}

TEST(Node, ListsWhatItKeeps) {
  Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor y = mul(a, b);
  const auto& saved = y.grad_fn()->saved();
  ASSERT_EQ(saved.size(), 2u);
  EXPECT_STREQ(saved[0]->op, "mul");
  EXPECT_EQ(saved[0]->tensor.storage(), a.storage());
  backward(sum(y));
  EXPECT_TRUE(y.grad_fn()->saved().empty());
  EXPECT_TRUE(y.grad_fn()->released());
}

}  // namespace
}  // namespace headroom
