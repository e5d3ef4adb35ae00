// Two thousand steps of changing shape, with memory running out at random requests: every failed
// step is taken back whole, nothing is leaked, and the run ends as one that was never disturbed.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "nn/layers.h"
#include "optim/optimizer.h"
#include "tests/cases/case_test.h"
#include "train/rollback.h"

namespace headroom {
namespace {

using cases::Backend;

constexpr int kSteps = 2000;
constexpr int64_t kLargestBatch = 12;

// What a step does; a function of its number alone.
struct Plan {
  int64_t batch, accum;
  bool checkpointed, amp;

  explicit Plan(int step) {
    std::mt19937 random(static_cast<unsigned>(step));
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<unsigned>(high - low + 1));
    };
    batch = draw(2, kLargestBatch);
    accum = draw(1, 4);
    checkpointed = draw(0, 1) == 1;
    amp = draw(0, 3) > 0;
  }
};

// A network with all that has state, and what trains it.
class Soak {
 public:
  explicit Soak(Device device) : device_(device) {
    manual_seed(3);
    const TensorOptions nhwc{DType::f32, device, MemoryFormat::channels_last};
    const TensorOptions plain{DType::f32, device};
    auto block = std::make_shared<Sequential>();
    Conv2d::Options conv{.in = 3, .out = 6, .kernel = {3, 3}};
    conv.conv.padding = {1, 1};
    block->append(std::make_shared<Conv2d>(conv, nhwc));
    block->append(
        std::make_shared<BatchNorm2d>(BatchNorm2d::Options{.channels = 6, .relu = true}, plain));
    block->append(std::make_shared<Dropout>(0.2));
    block_ = block;
    model_->append(block);
    model_->append(std::make_shared<MaxPool2d>(Pool2dOptions{}));
    model_->append(std::make_shared<Flatten>());
    model_->append(std::make_shared<Linear>(Linear::Options{.in = 6 * 9, .out = 4}, plain));
    optimizer_ = std::make_unique<Adam>(decay_groups(model_->parameters(), 0.01),
                                        AdamOptions{.lr = 1e-3, .decoupled = true});
    optimizer_->keep_half_copies(DType::f16);
    // Grows every few steps until it overflows, so that some steps are skipped.
    scaler_ = std::make_unique<GradScaler>(
        GradScalerOptions{.init_scale = 0x1p14, .growth_interval = 20}, device);
    losses_.open(device);
    rollback_ = Rollback(*model_, losses_);
    std::mt19937 random(5);
    std::vector<float> pixels(kLargestBatch * 3 * 36);
    for (float& v : pixels) v = static_cast<float>(random() % 1000) / 500.0f - 1;
    images_ = contiguous(from_vector(pixels, {kLargestBatch, 3, 6, 6}, plain), nhwc.format);
    std::vector<int64_t> labels(kLargestBatch);
    for (int64_t& label : labels) label = static_cast<int64_t>(random() % 4);
    labels_ = from_vector(labels, {kLargestBatch}, {DType::i64, device});
  }

  // The window's mean loss.
  double step(const Plan& plan) {
    rollback_.mark();
    for (int64_t a = 0; a < plan.accum; ++a) micro_batch(plan, a);
    optimizer_->step({.scaler = scaler_.get(), .clip_norm = 2});
    optimizer_->zero_grad();
    return losses_.last_window_mean();
  }

  void roll_back() { rollback_.restore(); }

  // Everything that a step may change.
  std::vector<double> state() const {
    std::vector<double> out = trained_state();
    for (const NamedTensor& entry : model_->named_buffers()) append(out, entry.tensor);
    for (const int64_t* counter : model_->counters()) out.push_back(static_cast<double>(*counter));
    out.push_back(static_cast<double>(default_generator().state().offset));
    return out;
  }
  // What changes only if the optimizer's step goes through.
  std::vector<double> trained_state() const {
    std::vector<double> out;
    for (const Tensor& p : model_->parameters()) {
      append(out, p);
      if (p.half_copy().defined()) append(out, p.half_copy());
    }
    for (const OptimizerState& entry : optimizer_->state_dict()) append(out, entry.tensor);
    out.push_back(scaler_->current_scale());
    out.push_back(static_cast<double>(scaler_->growth_tracker()));
    return out;
  }
  double mean_loss() { return losses_.mean(); }  // of all steps
  int64_t skipped(int steps) const { return steps - optimizer_->applied_steps(); }

 private:
  static void append(std::vector<double>& to, const Tensor& t) {
    for (const double v : t.to_vector<double>()) to.push_back(v);
  }

  Tensor forward(const Plan& plan, const Tensor& x) {
    Tensor y = plan.checkpointed ? checkpoint([this](const Tensor& in) { return (*block_)(in); }, x)
                                 : (*block_)(x);
    for (size_t i = 1; i < model_->size(); ++i) y = model_->at(i)(y);
    return y;
  }

  void micro_batch(const Plan& plan, int64_t index) {
    const int64_t begin = index % (kLargestBatch - plan.batch + 1);
    const Tensor x = contiguous(slice(images_, 0, begin, begin + plan.batch), images_.format());
    const Tensor target = slice(labels_, 0, begin, begin + plan.batch);
    Tensor logits;
    if (plan.amp) {
      const Autocast region(DType::f16);
      logits = forward(plan, x);
    } else {
      logits = forward(plan, x);
    }
    const Tensor loss = cross_entropy(logits, target, {.reduction = Reduction::sum});
    losses_.add(loss.detach(), plan.batch, index == 0);
    backward(loss, scaler_->seed(1.0 / static_cast<double>(plan.batch * plan.accum)));
  }

  Device device_;
  std::shared_ptr<Sequential> model_ = std::make_shared<Sequential>();
  std::shared_ptr<Sequential> block_;
  std::unique_ptr<Adam> optimizer_;
  std::unique_ptr<GradScaler> scaler_;
  LossMeter losses_;
  Rollback rollback_;
  Tensor images_, labels_;
};

class SoakTest : public cases::CaseTest {
 protected:
  void SetUp() override {
    CaseTest::SetUp();
    settings().deterministic = true;
  }
  void TearDown() override {
    if (has_runtime(device())) allocator().set_failure_hook({});
    CaseTest::TearDown();
  }
  CachingAllocator& allocator() { return allocator_of(device()); }
};

TEST_P(SoakTest, TwoThousandStepsWithFailuresAnywhereEndAsAnUndisturbedRun) {
  std::vector<double> wanted_losses;
  std::vector<double> wanted_state;
  double wanted_mean = 0;
  {
    Soak undisturbed(device());
    for (int i = 0; i < kSteps; ++i) wanted_losses.push_back(undisturbed.step(Plan(i)));
    wanted_state = undisturbed.state();
    wanted_mean = undisturbed.mean_loss();
    EXPECT_GT(undisturbed.skipped(kSteps), 0);
  }
  Soak soak(device());
  std::mt19937 random(7);
  int64_t between_steps = 0;  // bytes, once the first step has made the optimizer's state
  int failures = 0;
  for (int i = 0; i < kSteps; ++i) {
    const int64_t before_bytes = allocator().allocated_bytes();
    const std::vector<double> before = soak.state(), trained = soak.trained_state();
    double loss = 0;
    for (bool done = false; !done;) {
      // Later than the step's last request for about a third of the attempts.
      const auto at = static_cast<int64_t>(1 + random() % 250);
      // Workspaces are spared: a convolution that is refused one goes on with less, in other sums.
      allocator().set_failure_hook([at](int64_t request, int64_t) {
        return request >= at && memory_context().tag != Tag::workspace;
      });
      try {
        loss = soak.step(Plan(i));
        done = true;
      } catch (const OutOfMemory&) {
        ++failures;
      }
      allocator().set_failure_hook({});
      if (done) break;
      ASSERT_EQ(soak.trained_state(), trained) << "step " << i << ", request " << at;
      soak.roll_back();
      ASSERT_EQ(soak.state(), before) << "step " << i << ", request " << at;
      ASSERT_EQ(allocator().allocated_bytes(), before_bytes) << "step " << i << ", request " << at;
    }
    ASSERT_EQ(loss, wanted_losses[static_cast<size_t>(i)]) << "step " << i;
    if (i == 0) between_steps = allocator().allocated_bytes();
    ASSERT_EQ(allocator().allocated_bytes(), between_steps) << "step " << i;
  }
  EXPECT_EQ(soak.state(), wanted_state);
  EXPECT_EQ(soak.mean_loss(), wanted_mean);
  EXPECT_GT(failures, kSteps / 2);
}

HEADROOM_CASES(SoakTest);

}  // namespace
}  // namespace headroom
