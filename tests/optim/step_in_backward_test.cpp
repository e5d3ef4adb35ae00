// The step inside backward: the bits of an ordinary step, and no two gradients alive at once.
#include "optim/step_in_backward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "nn/layers.h"
#include "tests/kernels/kernel_test.h"
#include "tests/optim/optimizer_helpers.h"

namespace headroom {
namespace {

using namespace testing_optim;
using testing_kernels::KernelTest;
using testing_kernels::Values;
using testing_kernels::values_of;

enum class Rule : uint8_t { sgd, momentum, adamw };

std::unique_ptr<Optimizer> make(Rule rule, const std::vector<Tensor>& parameters) {
  auto groups = decay_groups(parameters, 0.01);
  if (rule == Rule::adamw) return std::make_unique<Adam>(groups, adam(0.01, true));
  return std::make_unique<Sgd>(groups, sgd(0.05, rule == Rule::momentum ? 0.9 : 0));
}

class StepInBackwardTest : public KernelTest {
 protected:
  struct Setup {
    bool in_backward = false;
    Rule rule = Rule::momentum;
    bool checkpointed = false;
    bool half = false;
    int accum = 1;
  };

  // Weights, half copies and optimizer state after four steps of a small net.
  Values trained(const Setup& setup) const {
    manual_seed(2);
    const TensorOptions nhwc{DType::f32, device(), MemoryFormat::channels_last};
    const TensorOptions plain{DType::f32, device()};
    const auto first = std::make_shared<Sequential>();
    Conv2d::Options conv{.in = 3, .out = 8, .kernel = {3, 3}};
    conv.conv.padding = {1, 1};
    first->append(std::make_shared<Conv2d>(conv, nhwc));
    first->append(
        std::make_shared<BatchNorm2d>(BatchNorm2d::Options{.channels = 8, .relu = true}, plain));
    Linear fc(Linear::Options{.in = 8, .out = 4}, plain);
    std::vector<Tensor> parameters = first->parameters();
    for (const Tensor& p : fc.parameters()) parameters.push_back(p);
    const std::unique_ptr<Optimizer> optimizer = make(setup.rule, parameters);
    if (setup.half) optimizer->keep_half_copies(DType::bf16);
    Tensor images = empty({6, 3, 5, 5}, nhwc);
    normal_(images);
    const Tensor labels = integers({0, 1, 2, 3, 0, 1}, {6});
    const auto pass = [&] {
      const Autocast region(DType::bf16, setup.half);
      const auto stage = [&](const Tensor& x) { return (*first)(x); };
      const Tensor features = setup.checkpointed ? checkpoint(stage, images) : stage(images);
      backward(cross_entropy(fc(flatten(global_avg_pool2d(features), 1)), labels));
    };
    for (int step = 0; step < 4; ++step) {
      for (int a = 1; a < setup.accum; ++a) pass();
      if (setup.in_backward) {
        StepInBackward stepping(*optimizer);
        pass();
        for (const Tensor& p : parameters) EXPECT_FALSE(p.grad().defined());
        stepping.finish();
      } else {
        pass();
        optimizer->step();
        optimizer->zero_grad();
      }
    }
    Values out;
    const auto append = [&](const Tensor& t) {
      for (const double v : values_of(t)) out.push_back(v);
    };
    for (const Tensor& p : parameters) {
      append(p);
      if (p.half_copy().defined()) append(p.half_copy());
    }
    for (const OptimizerState& entry : optimizer->state_dict()) append(entry.tensor);
    return out;
  }

  void expect_same_bits(Setup setup) const {
    setup.in_backward = true;
    const Values inside = trained(setup);
    setup.in_backward = false;
    EXPECT_EQ(inside, trained(setup));
  }
};

TEST_P(StepInBackwardTest, GivesTheBitsOfAnOrdinaryStep) {
  for (const Rule rule : {Rule::sgd, Rule::momentum, Rule::adamw}) {
    expect_same_bits({.rule = rule});
    expect_same_bits({.rule = rule, .accum = 3});
  }
  expect_same_bits({.checkpointed = true});
  expect_same_bits({.rule = Rule::adamw, .half = true});
  expect_same_bits({.checkpointed = true, .half = true, .accum = 2});
}

// A weight used by several nodes is stepped after the last of them; an earlier step would change
// what the others read, which their version check would notice.
TEST_P(StepInBackwardTest, WaitsForEveryUseOfASharedParameter) {
  for (const bool checkpointed : {false, true}) {
    Tensor w = tensor({2}, {1}).set_requires_grad(true);
    const Tensor x = tensor({3}, {1});
    Sgd optimizer({{.parameters = {w}}}, sgd(0.01));
    StepInBackward stepping(optimizer);
    const auto times_w = [&](const Tensor& in) { return mul(in, w); };
    Tensor y = x;
    for (int i = 0; i < 3; ++i) y = checkpointed ? checkpoint(times_w, y) : times_w(y);
    backward(sum(y));
    stepping.finish();
    EXPECT_NEAR(w.item(), 2 - 0.01 * 3 * 2 * 2 * 3, 1e-5) << checkpointed;
  }
}

TEST_P(StepInBackwardTest, LeavesParametersWithoutAGradientAndTheirCountsAlone) {
  const auto run = [&](bool in_backward) {
    Tensor a = tensor({1}, {1}).set_requires_grad(true);
    Tensor b = tensor({1}, {1}).set_requires_grad(true);
    Adam optimizer({{.parameters = {a, b}, .weight_decay = 0.1}}, adam(0.1));
    for (int step = 0; step < 6; ++step) {
      const auto pass = [&] {
        Tensor loss = mul(a, 2.0 + step);
        if (step == 1 || step == 2 || step == 5) loss = add(loss, mul(b, 1.0 + step));
        backward(sum(loss));
      };
      if (in_backward) {
        StepInBackward stepping(optimizer);
        pass();
        stepping.finish();
      } else {
        pass();
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    return Values{a.item(), b.item(), static_cast<double>(optimizer.applied_steps())};
  };
  EXPECT_EQ(run(true), run(false));
}

// The gradient of one layer at a time.
TEST_P(StepInBackwardTest, KeepsTheGradientsOfOneLayerAlive) {
  constexpr int64_t kWidth = 256, kBytes = kWidth * kWidth * 4;
  for (const Device where : {device(), Device::meta(GetParam())}) {
    std::vector<Tensor> weights;
    for (int i = 0; i < 8; ++i) {
      weights.push_back(zeros({kWidth, kWidth}, {DType::f32, where}).set_requires_grad(true));
    }
    Sgd optimizer({{.parameters = weights}}, sgd(0.1));
    const auto most_gradient_bytes = [&](bool in_backward) {
      Tensor y = ones({1, kWidth}, {DType::f32, where});
      std::optional<StepInBackward> stepping;
      if (in_backward) stepping.emplace(optimizer);
      for (const Tensor& w : weights) y = matmul(y, w);
      const Tensor loss = sum(y);
      int64_t most = 0, now = 0;
      CachingAllocator& allocator = allocator_of(where);
      allocator.record_events(1 << 12);
      backward(loss);
      for (const MemoryEvent& event : allocator.events()) {
        if (event.kind == MemoryEvent::Kind::free && event.previous_tag == Tag::gradient) {
          now -= event.bytes;
        } else if (event.kind == MemoryEvent::Kind::retag) {
          now += (event.tag == Tag::gradient) * event.bytes;
          now -= (event.previous_tag == Tag::gradient) * event.bytes;
        } else if (event.kind == MemoryEvent::Kind::allocate && event.tag == Tag::gradient) {
          now += event.bytes;
        }
        most = std::max(most, now);
      }
      allocator.record_events(0);
      if (in_backward) {
        stepping->finish();
      } else {
        optimizer.step();
        optimizer.zero_grad();
      }
      return most;
    };
    EXPECT_EQ(most_gradient_bytes(false), 8 * kBytes) << where;
    EXPECT_EQ(most_gradient_bytes(true), kBytes) << where;
  }
}

TEST_P(StepInBackwardTest, LetsGoOfTheParametersWhenItEnds) {
  Tensor w = tensor({1}, {1}).set_requires_grad(true);
  Sgd optimizer({{.parameters = {w}}}, sgd(0.1));
  { const StepInBackward unused(optimizer); }
  backward(sum(mul(w, 3)));
  EXPECT_EQ(w.grad().item(), 3);
  EXPECT_EQ(w.item(), 1);
  StepInBackward stepping(optimizer);
  stepping.finish();  // takes the gradient that is there
  EXPECT_NEAR(w.item(), 0.7, 1e-6);
  stepping.finish();  // and nothing twice
  EXPECT_NEAR(w.item(), 0.7, 1e-6);
}

HEADROOM_ON_EACH_DEVICE(StepInBackwardTest);

}  // namespace
}  // namespace headroom
