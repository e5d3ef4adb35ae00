// What SavePolicy::offload does to memory: the device's peak falls by a rule that meta devices
// know, nothing is left behind on either side, and running out on either side is clean.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "core/autograd/autograd.h"
#include "core/autograd/offload.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "tests/kernels/kernel_test.h"
#include "tests/support/message_of.h"

namespace headroom {
namespace {

using test::message_of;
using testing_kernels::KernelTest;
using testing_kernels::test_values;
using testing_kernels::Values;
using testing_kernels::values_of;

const Shape kShape = {2, 1 << 18};  // 2 MiB of f32
constexpr int64_t kBytes = int64_t{2} << 20;

// Each link saves its output, which nobody else holds.
Tensor chain(const Tensor& x, int length) {
  Tensor h = x;
  for (int i = 0; i < length; ++i) h = sigmoid(h);
  return sum(h);
}

class OffloadMemory : public KernelTest {
 protected:
  void TearDown() override {
    if (!has_runtime(device())) return;
    for (CachingAllocator* allocator : {&allocator_of(device()), &host()}) {
      allocator->set_failure_hook({});
      allocator->set_memory_limit(0);
    }
  }

  CachingAllocator& host() const { return host_allocator_of(device()); }
  Device meta() const { return Device::meta(GetParam()); }

  static Tensor leaf_on(Device device) {
    Tensor x = empty(kShape, {DType::f32, device});
    fill_(x, 0.5);
    return x.set_requires_grad(true);
  }
};

TEST_P(OffloadMemory, KeepsNoMoreOnTheDeviceThanCopiesUnderWay) {
  for (const Device where : {device(), meta()}) {
    const Tensor x = leaf_on(where);
    const int64_t before = memory_allocated(where);
    reset_peak_memory_stats(where);
    const SavePolicyScope scope(SavePolicy::offload);
    const Tensor loss = chain(x, 12);
    EXPECT_EQ(memory_allocated(where) - before, kOffloadWindow * kBytes + kMinBlockBytes);
    // An op's output beside what is on its way, its input among that.
    EXPECT_EQ(max_memory_allocated(where) - before, (kOffloadWindow + 1) * kBytes);
    EXPECT_EQ(host_allocator_of(where).allocated_bytes(), 12 * kBytes);
    backward(loss);
    // What is needed, as many more, and the gradient.
    EXPECT_LE(max_memory_allocated(where) - before,
              (kOffloadWindow + 2) * kBytes + 2 * kMinBlockBytes);
    EXPECT_EQ(host_allocator_of(where).allocated_bytes(), 0);
    EXPECT_EQ(memory_allocated(where) - before, kBytes + kMinBlockBytes) << "gradient and loss";
  }
}

TEST_P(OffloadMemory, IsPredictedByMeta) {
  const auto readings = [&](Device where) {
    empty_cache(where);
    host_allocator_of(where).empty_cache();
    std::vector<int64_t> out;
    for (const int length : {5, 9, 2}) {
      const Tensor x = leaf_on(where);
      for (const bool retain : {false, true}) {
        allocator_of(where).reset_peak_stats();
        host_allocator_of(where).reset_peak_stats();
        const SavePolicyScope scope(SavePolicy::offload);
        const Tensor loss = chain(x, length);
        backward(loss, {}, {.retain_graph = retain});
        for (const CachingAllocator* allocator :
             {&allocator_of(where), &host_allocator_of(where)}) {
          out.push_back(allocator->max_allocated_bytes());
          out.push_back(allocator->max_reserved_bytes());
          out.push_back(allocator->allocated_bytes());
        }
      }
    }
    return out;
  };
  EXPECT_EQ(readings(meta()), readings(device()));
}

TEST_P(OffloadMemory, ChargesWhatComesBackAsTheTensorThatLeft) {
  const Tensor x = leaf_on(device());
  const SavePolicyScope scope(SavePolicy::offload);
  Tensor h;
  {
    const PathScope path("layer");
    h = exp(x);  // saves it
  }
  const SavedTensor saved(h.grad_fn()->saved().at(0));
  h = chain(h, kOffloadWindow + 1);
  const std::shared_ptr<Storage> storage = saved.get().storage();
  EXPECT_EQ(storage->tag(), Tag::saved_activation);
  EXPECT_EQ(path_name(storage->path()), "layer");
  const Tensor taken = saved.take();
  EXPECT_EQ(storage->tag(), Tag::temporary) << "an op's own now";
}

TEST_P(OffloadMemory, AnOpThatTakesATensorHoldsTheLastHandle) {
  const Tensor x = leaf_on(device());
  const SavePolicyScope scope(SavePolicy::offload);
  Tensor h = exp(x);
  const SavedTensor first(h.grad_fn()->saved().at(0));
  h = chain(h, kOffloadWindow + 1);
  EXPECT_TRUE(first.take().is_unique()) << "from the host";
  Tensor y = exp(x);
  const SavedTensor last(y.grad_fn()->saved().at(0));
  y = sum(y);
  EXPECT_TRUE(last.take().is_unique()) << "its copy was under way";
}

TEST_P(OffloadMemory, PinsNothingInASteadyStep) {
  host().empty_cache();
  const Tensor x = leaf_on(device());
  const SavePolicyScope scope(SavePolicy::offload);
  const auto pinned = [&] { return host().stats()[Pool::all].segment_count.total_allocated; };
  const int64_t before = pinned();
  backward(chain(x, 12));
  const int64_t in_first_step = pinned() - before;
  EXPECT_GT(in_first_step, 0);
  EXPECT_LE(in_first_step, 2) << "twelve blocks of 2 MiB share segments of 20 MiB";
  for (int i = 0; i < 5; ++i) {
    backward(chain(x, 12));
    chain(x, 7);  // and a graph that is dropped
  }
  EXPECT_EQ(pinned() - before, in_first_step);
  host().empty_cache();
  EXPECT_EQ(host().reserved_bytes(), 0);
}

TEST_P(OffloadMemory, ADroppedGraphLeavesNothing) {
  const Tensor x = leaf_on(device());
  const int64_t before = memory_allocated(device());
  const SavePolicyScope scope(SavePolicy::offload);
  Tensor loss = chain(x, 6);
  EXPECT_GT(host().allocated_bytes(), 0);
  loss = {};
  EXPECT_EQ(memory_allocated(device()), before);
  EXPECT_EQ(host().allocated_bytes(), 0);
  // With a part of it brought back.
  loss = chain(x, 6);
  const SavedTensor last(loss.grad_fn()->edges().at(0)->saved().at(0));
  last.get();
  loss = {};
  EXPECT_EQ(last.get().numel(), numel_of(kShape)) << "of which a handle is left";
}

TEST_P(OffloadMemory, SaysThatTheHostIsOutOfMemory) {
  host().empty_cache();
  host().set_memory_limit(kLargeSegmentBytes);
  const Tensor x = leaf_on(device());
  const int64_t before = memory_allocated(device());
  const SavePolicyScope scope(SavePolicy::offload);
  const auto step = [&] {
    const PathScope path("layer");
    backward(chain(x, 12));
  };
  EXPECT_THROW(step(), OutOfMemory);
  const std::string message = message_of(step);
  const std::string begin =
      detail::concat("out of host memory for ", device(), ": sigmoid in layer asked for 2.00 MiB");
  EXPECT_EQ(message.substr(0, begin.size()), begin);
  EXPECT_NE(message.find("limit 20.00 MiB, host has "), std::string::npos) << message;
  EXPECT_EQ(memory_allocated(device()), before);
  EXPECT_EQ(host().allocated_bytes(), 0);
  host().set_memory_limit(0);
  step();
  EXPECT_TRUE(x.grad().defined());
}

// Norms with recipes, a residual, a checkpoint, masks and half types.
Tensor network(const Tensor& x, const Tensor& w, const Tensor& gamma, const Tensor& beta) {
  const Autocast region(DType::f16);
  BatchNormOptions with_relu;
  with_relu.relu = true;
  // By value: the block runs again in backward, when this function is left.
  const auto block = [=](const Tensor& in) {
    const Tensor h = conv2d(in, w, {}, {.padding = {1, 1}});
    return batch_norm(h, {gamma, beta, {}, {}}, with_relu, in);
  };
  Tensor h = conv2d(x, w, {}, {.padding = {1, 1}});
  h = batch_norm(h, {gamma, beta, {}, {}}, with_relu);
  h = checkpoint(block, block(h));
  return sum(max_pool2d(relu(add(h, 1)), {.kernel = {2, 2}}));
}

// Every request of a step fails once: on the device, then on the host.
TEST_P(OffloadMemory, AFailedRequestAnywhereLeavesNothingAndLosesNothing) {
  const TensorOptions nhwc{DType::f32, device(), MemoryFormat::channels_last};
  const Tensor w =
      from_vector(test_values(8 * 8 * 9, -1, 1), {8, 8, 3, 3}, nhwc).set_requires_grad(true);
  const Tensor gamma = full({8}, 1.5, {DType::f32, device()}).set_requires_grad(true);
  const Tensor beta = full({8}, 0.5, {DType::f32, device()}).set_requires_grad(true);
  const Tensor image = from_vector(test_values(4 * 8 * 129 * 129), {4, 8, 129, 129}, nhwc);
  struct Step {
    Tensor x;
    std::function<Tensor(const Tensor&)> loss_of;
    int on_host;  // requests
  };
  for (Step step : {Step{leaf_on(device()), [](const Tensor& x) { return chain(x, 8); }, 8},
                    Step{image.detach().set_requires_grad(true),
                         [&](const Tensor& x) { return network(x, w, gamma, beta); }, 3}}) {
    const auto run = [&] {
      const SavePolicyScope scope(SavePolicy::offload);
      backward(step.loss_of(step.x));
      return values_of(step.x.grad());
    };
    const auto clear = [&] {
      for (Tensor t : {step.x, w, gamma, beta}) t.set_grad({});
    };
    const Values wanted = run();
    clear();
    const int64_t before = memory_allocated(device());
    for (CachingAllocator* allocator : {&allocator_of(device()), &host()}) {
      const bool is_host = allocator == &host();
      int failures = 0, done_without = 0;
      for (int64_t at = 1;; ++at) {
        int64_t requests = 0;
        bool refused = false;
        // Workspaces are spared: a convolution that is refused one goes on with other sums.
        allocator->set_failure_hook([&](int64_t request, int64_t) {
          requests = request;
          refused |= request == at && memory_context().tag != Tag::workspace;
          return refused && request == at;
        });
        std::optional<Values> got;
        try {
          got = run();
        } catch (const OutOfMemory&) {
          ++failures;
        }
        allocator->set_failure_hook({});
        clear();
        ASSERT_EQ(memory_allocated(device()), before) << "request " << at;
        ASSERT_EQ(host().allocated_bytes(), 0) << "request " << at;
        if (requests < at) break;  // the step has no more
        done_without += refused && got.has_value();
        if (got) {
          ASSERT_EQ(*got, wanted) << "request " << at;
        }
      }
      EXPECT_EQ(failures > 10, !is_host);
      EXPECT_TRUE(!is_host || failures == step.on_host) << failures;
      // What is brought back early can come when it is needed instead.
      EXPECT_EQ(done_without > 0, !is_host);
    }
    EXPECT_EQ(run(), wanted);
    clear();
  }
}

HEADROOM_ON_EACH_DEVICE(OffloadMemory);

// A step that does not fit, and does with its activations on the host.
TEST(OffloadOnMeta, FitsWhereKeepingDoesNot) {
  const Device meta = Device::meta(DeviceType::cuda);
  empty_cache(meta);
  allocator_of(meta).set_memory_limit(int64_t{60} << 20);
  const auto fits = [&](SavePolicy policy) {
    Tensor x = empty(kShape, {DType::f32, meta});
    x.set_requires_grad(true);
    const SavePolicyScope scope(policy);
    try {
      backward(chain(x, 40));
      return true;
    } catch (const OutOfMemory&) {
      return false;
    }
  };
  EXPECT_FALSE(fits(SavePolicy::keep));
  EXPECT_TRUE(fits(SavePolicy::offload));
  allocator_of(meta).set_memory_limit(0);
  empty_cache(meta);
  host_allocator_of(meta).empty_cache();
}

}  // namespace
}  // namespace headroom
