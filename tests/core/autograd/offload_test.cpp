// SavePolicy::offload: gradients are those of kept tensors, whatever happens between.
#include "core/autograd/offload.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "tests/kernels/kernel_test.h"
#include "tests/support/late_copies.h"
#include "tests/support/message_of.h"

namespace headroom {
namespace {

using test::message_of;
using testing_kernels::KernelTest;
using testing_kernels::kFormats;
using testing_kernels::test_values;
using testing_kernels::Values;
using testing_kernels::values_of;

// Odd, and over kOffloadMinBytes in half types too.
const Shape kOddShape = {2, 31, 97, 89};
// Exactly 1 MiB of f32, the least that is taken.
const Shape kLeastShape = {4, 8, 128, 64};

class Offload : public KernelTest {
 protected:
  void SetUp() override {
    KernelTest::SetUp();
    if (IsSkipped()) return;
    EXPECT_EQ(on_host(), 0) << "something of an earlier test waits on the host";
  }

  CachingAllocator& host() const { return host_allocator_of(device()); }
  int64_t on_host() const { return host().allocated_bytes(); }
  // Copies to the host so far, in bytes.
  int64_t taken() const { return host().stats()[Pool::all].allocated_bytes.total_allocated; }

  Tensor wanted(const Shape& shape, DType dtype = DType::f32,
                MemoryFormat format = MemoryFormat::contiguous, uint64_t seed = 1) const {
    return tensor(test_values(numel_of(shape), 0.5, 2, seed), shape, dtype, format)
        .set_requires_grad(true);
  }

  // A loss whose parts save outputs, inputs, both of one tensor, and a tensor that others save too;
  // no intermediate is held outside the graph.
  static Tensor chain(const Tensor& x, int length = 2) {
    Tensor h = mul(x, 2);
    for (int i = 0; i < length; ++i) {
      h = sigmoid(h);
      h = mul(h, log(add(h, 1)));
      h = div(h, add(relu(h), 1));
    }
    return sum(mul(h, h));
  }

  using Loss = std::function<Tensor(const Tensor&)>;
  Values gradient(SavePolicy policy, const Tensor& x, const Loss& loss_of) const {
    Tensor leaf = x.detach().set_requires_grad(true);
    const SavePolicyScope scope(policy);
    backward(loss_of(leaf));
    return values_of(leaf.grad());
  }
  void expect_same_gradient(const Tensor& x, const Loss& loss_of) const {
    const int64_t before = taken();
    const Values kept = gradient(SavePolicy::keep, x, loss_of);
    EXPECT_EQ(taken(), before);
    EXPECT_EQ(gradient(SavePolicy::offload, x, loss_of), kept) << x.describe();
    EXPECT_GT(taken(), before) << "nothing was offloaded";
    EXPECT_EQ(on_host(), 0);
  }
};

TEST_P(Offload, GivesTheGradientsOfKeptTensorsForEveryTypeAndLayout) {
  for (const DType dtype : dtypes()) {
    for (const MemoryFormat format : kFormats) {
      expect_same_gradient(wanted(kOddShape, dtype, format), [](const Tensor& x) {  //
        return chain(x);
      });
    }
  }
}

TEST_P(Offload, TakesViewsWithTheirStorage) {
  expect_same_gradient(wanted(kOddShape), [](const Tensor& x) {
    const Tensor h = exp(x);
    const Tensor part = slice(h, 3, 7, 60), turned = transpose(h, 1, 3);
    return add(sum(mul(part, part)), sum(mul(turned, sigmoid(turned))));
  });
  expect_same_gradient(wanted({1, 300'000}), [](const Tensor& x) {
    const Tensor wide = expand(exp(x), {5, 300'000});
    return sum(mul(wide, sigmoid(wide)));
  });
}

TEST_P(Offload, GoesWithBatchNormConvolutionsAndPools) {
  const Tensor x = wanted({4, 16, 65, 67}, DType::f32, MemoryFormat::channels_last);
  const Tensor w = wanted({16, 16, 3, 3}, DType::f32, MemoryFormat::channels_last, 3);
  const Tensor gamma = wanted({16}), beta = wanted({16});
  expect_same_gradient(x, [&](const Tensor& in) {
    BatchNormOptions with_relu;
    with_relu.relu = true;
    Tensor h = conv2d(in, w, {}, {.padding = {1, 1}});
    h = batch_norm(h, {gamma, beta, {}, {}}, with_relu);
    const Tensor skip = h;
    h = conv2d(h, w, {}, {.padding = {1, 1}});
    h = batch_norm(h, {gamma, beta, {}, {}}, with_relu, skip);
    return sum(sigmoid(max_pool2d(relu(h), {.kernel = {2, 2}})));
  });
}

// The order of streams, with a copy stream that does nothing before it must.
TEST_P(Offload, WaitsForEveryCopyThatItNeeds) {
  if (device().is_cuda()) GTEST_SKIP() << "the CPU's memory stands in for a late GPU's";
  const Tensor x = wanted(kOddShape);
  const auto loss_of = [](const Tensor& in) { return chain(in, 6); };
  const Values kept = gradient(SavePolicy::keep, x, loss_of);
  const test::LateCopyScope late(device());
  EXPECT_EQ(gradient(SavePolicy::offload, x, loss_of), kept);
  EXPECT_GT(late.copies(), 20);
  // Graphs that end while copies are under way, whose blocks serve the next one.
  const SavePolicyScope scope(SavePolicy::offload);
  for (int i = 0; i < 3; ++i) {
    Tensor leaf = x.detach().set_requires_grad(true);
    chain(leaf, 1 + i);
  }
  EXPECT_EQ(gradient(SavePolicy::offload, x, loss_of), kept);
  // What was brought back early for a graph that is not walked, and gave its block to others.
  Tensor other = x.detach().set_requires_grad(true), leaf = x.detach().set_requires_grad(true);
  const Tensor older = loss_of(other);
  backward(loss_of(leaf));
  std::vector<Tensor> reusing;
  for (int i = 0; i < 12; ++i) reusing.push_back(full(kOddShape, 7, x.options()));
  backward(older);
  EXPECT_EQ(values_of(other.grad()), kept);
  const Values sevens(static_cast<size_t>(x.numel()), 7);
  for (const Tensor& t : reusing) EXPECT_EQ(values_of(t), sevens);
}

TEST_P(Offload, CopiesAStorageOnceHoweverManySaveIt) {
  const SavePolicyScope scope(SavePolicy::offload);
  const Tensor x = wanted(kLeastShape);
  const int64_t before = taken();
  const Tensor h = mul(x, 2);
  const Tensor part = slice(h, 0, 0, 2);
  const Tensor loss = add(sum(mul(h, exp(h))), sum(mul(part, part)));
  EXPECT_EQ(taken() - before, 2 * h.nbytes()) << "h and exp(h)";
}

TEST_P(Offload, LeavesAloneWhatWouldNotComeFree) {
  const SavePolicyScope scope(SavePolicy::offload);
  const Tensor parameter = wanted(kLeastShape);
  Tensor input, half;
  {
    const TagScope tag(Tag::input);
    input = tensor(test_values(numel_of(kLeastShape)), kLeastShape);
  }
  const Tensor small = wanted({4, 8, 128, 63});
  const int64_t before = taken();
  const Tensor of_parameter = mul(parameter, mul(parameter, input));
  EXPECT_EQ(taken() - before, parameter.nbytes()) << "the inner product alone";
  const Tensor of_small = mul(exp(small), small);
  EXPECT_EQ(taken() - before, parameter.nbytes());
  Tensor kept;
  {
    const SavePolicyScope keep(SavePolicy::keep);
    kept = exp(parameter);  // keeps its output
  }
  const Tensor again = mul(kept, kept);
  EXPECT_EQ(taken() - before, parameter.nbytes()) << "what another node keeps does not come free";
  const NoGrad no_grad;
  mul(exp(parameter), parameter);
  EXPECT_EQ(taken() - before, parameter.nbytes()) << "nothing is saved";
}

TEST_P(Offload, UsesTheOriginalWhileTheProgramHoldsIt) {
  const SavePolicyScope scope(SavePolicy::offload);
  const Tensor x = wanted(kLeastShape);
  const Tensor h = exp(x);  // saves h
  const Tensor loss = sum(h);
  const auto& saved = h.grad_fn()->saved();
  ASSERT_EQ(saved.size(), 1u);
  ASSERT_TRUE(saved[0]->offloaded);
  EXPECT_EQ(SavedTensor(saved[0]).get().storage(), h.storage());
}

TEST_P(Offload, NoticesAWriteInPlaceAsKeepDoes) {
  const auto message = [&](SavePolicy policy, bool is_held) {
    const SavePolicyScope scope(policy);
    Tensor h = mul(wanted(kLeastShape), 2);
    Tensor y = log(h);  // saves h
    add_(h, 1.0);
    const Tensor held = is_held ? h : Tensor();
    h = {};
    // More copies than may be under way: h's block comes free.
    for (int i = 0; i <= kOffloadWindow; ++i) y = exp(y);
    return message_of([&] { backward(sum(y)); });
  };
  for (const bool is_held : {true, false}) {
    const std::string kept = message(SavePolicy::keep, is_held);
    EXPECT_NE(kept.find("written in place since: it was at version 0"), std::string::npos) << kept;
    EXPECT_EQ(message(SavePolicy::offload, is_held), kept);
  }
  EXPECT_EQ(on_host(), 0);
}

// Saved, written in place, saved again: the second copy is another one.
TEST_P(Offload, CopiesAgainWhatWasWrittenMeanwhile) {
  expect_same_gradient(wanted(kLeastShape), [&](const Tensor& x) {
    Tensor h = mul(x, 2);
    const Tensor aside = log(h);  // saves h, and lives until the backward that does not reach it
    Tensor y = h;
    for (int i = 0; i <= kOffloadWindow; ++i) y = sigmoid(y);
    add_(h, 1.0);
    const int64_t before = taken();
    Tensor z = log(h);
    EXPECT_EQ(taken() - before, save_policy() == SavePolicy::offload ? h.nbytes() : 0);
    h = {};
    for (int i = 0; i <= kOffloadWindow; ++i) z = sigmoid(z);
    z = sum(z);
    backward(z, {}, {.retain_graph = true});
    return z;
  });
}

TEST_P(Offload, RunsBackwardTwiceOverAKeptGraph) {
  Tensor x = wanted(kOddShape), once = wanted(kOddShape);
  {
    const SavePolicyScope keep(SavePolicy::keep);
    const Tensor loss = chain(once);
    backward(loss, {}, {.retain_graph = true});
    backward(loss);
  }
  const SavePolicyScope scope(SavePolicy::offload);
  const Tensor loss = chain(x);
  const int64_t waiting = on_host();
  x.set_grad(zeros(x.shape(), x.options()));
  const int64_t before = memory_allocated(device());
  backward(loss, {}, {.retain_graph = true});
  EXPECT_EQ(on_host(), waiting);
  EXPECT_LE(memory_allocated(device()), before) << "what was brought back leaves again";
  backward(loss);
  EXPECT_EQ(on_host(), 0);
  EXPECT_EQ(values_of(x.grad()), values_of(once.grad()));
  EXPECT_NE(message_of([&] { backward(loss); }).find("a second time"), std::string::npos);
}

TEST_P(Offload, InterleavesGraphs) {
  const auto run = [&](SavePolicy policy) {
    const SavePolicyScope scope(policy);
    Tensor a = wanted(kLeastShape), b = wanted(kLeastShape, DType::f32, kFormats[0], 7);
    const Tensor loss_a = chain(a, 2), loss_b = chain(b, 3);
    backward(loss_a);  // the older first
    const Tensor loss_c = chain(a, 1);
    backward(loss_b);
    backward(loss_c);
    Values out = values_of(a.grad());
    for (const double v : values_of(b.grad())) out.push_back(v);
    return out;
  };
  EXPECT_EQ(run(SavePolicy::offload), run(SavePolicy::keep));
  EXPECT_EQ(on_host(), 0);
}

// The block's input waits on the host; what its second run saves is used at once.
TEST_P(Offload, TakesACheckpointsInputAndNotItsSecondRun) {
  const auto loss_of = [](const Tensor& x) {
    Tensor h = mul(x, 2);
    for (int i = 0; i < 3; ++i) {
      h = checkpoint([](const Tensor& in) { return log(add(exp(in), sigmoid(in))); }, h);
    }
    return sum(h);
  };
  expect_same_gradient(wanted(kOddShape), loss_of);
  const SavePolicyScope scope(SavePolicy::offload);
  const Tensor x = wanted(kOddShape);
  const Tensor loss = loss_of(x);
  const int64_t before = taken();
  backward(loss);
  EXPECT_EQ(taken(), before);
}

TEST_P(Offload, GoesWithAutocast) {
  const Tensor w = wanted({512, 1024}, DType::f32, MemoryFormat::contiguous, 5);
  expect_same_gradient(wanted({1100, 1024}), [&](const Tensor& x) {
    const Autocast region(DType::f16);
    const Tensor h = linear(exp(x), w, {});
    return mean(mul(h, linear(sigmoid(h), transpose(slice(w, 1, 0, 512), 0, 1), {})));
  });
}

HEADROOM_ON_EACH_DEVICE(Offload);

}  // namespace
}  // namespace headroom
