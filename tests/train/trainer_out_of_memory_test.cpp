// Running out of memory at any request of a training step: nothing stays behind, nothing is half
// done, and the same step can be tried again.
#include <gtest/gtest.h>

#include <memory>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "nn/layers.h"
#include "optim/optimizer.h"
#include "train/trainer.h"

namespace headroom {
namespace {

using Doubles = std::vector<double>;

CachingAllocator& allocator() { return allocator_of(Device::cpu()); }

// A small network with all that has state, trained in half precision.
struct Stepper {
  std::shared_ptr<Sequential> model = std::make_shared<Sequential>();
  std::unique_ptr<Adam> optimizer;
  std::unique_ptr<GradScaler> scaler;
  Tensor images, labels;

  explicit Stepper(bool checkpointed) : checkpointed(checkpointed) {
    manual_seed(1);
    const TensorOptions nhwc{DType::f32, Device::cpu(), MemoryFormat::channels_last};
    Conv2d::Options conv{.in = 3, .out = 8, .kernel = {3, 3}};
    conv.conv.padding = {1, 1};
    model->append(std::make_shared<Conv2d>(conv, nhwc));
    model->append(std::make_shared<BatchNorm2d>(BatchNorm2d::Options{.channels = 8, .relu = true}));
    model->append(std::make_shared<MaxPool2d>(Pool2dOptions{}));
    model->append(std::make_shared<Dropout>(0.25));
    model->append(std::make_shared<Flatten>());
    model->append(std::make_shared<Linear>(Linear::Options{.in = 8 * 16, .out = 5}));
    optimizer = std::make_unique<Adam>(decay_groups(model->parameters(), 0.01),
                                       AdamOptions{.lr = 0.01, .decoupled = true});
    optimizer->keep_half_copies(DType::f16);
    scaler = std::make_unique<GradScaler>(GradScalerOptions{.init_scale = 128}, Device::cpu());
    images = empty({4, 3, 8, 8}, nhwc);
    normal_(images);
    labels = from_vector(std::vector<int64_t>{0, 1, 2, 3}, {4}, {DType::i64});
  }

  void step() {
    {
      Tensor logits;
      {
        const Autocast region(DType::f16);
        const auto forward = [this](const Tensor& x) { return (*model)(x); };
        logits = checkpointed ? checkpoint(forward, images) : forward(images);
      }
      backward(cross_entropy(logits, labels), scaler->seed());
    }
    optimizer->step({.scaler = scaler.get(), .clip_norm = 1});
    optimizer->zero_grad();
  }

  Doubles weights() const {
    Doubles out;
    for (const Tensor& p : model->parameters()) append(out, p);
    for (const Tensor& p : model->parameters()) {
      if (p.half_copy().defined()) append(out, p.half_copy());
    }
    return out;
  }
  Doubles optimizer_state() const {
    Doubles out;
    for (const OptimizerState& entry : optimizer->state_dict()) append(out, entry.tensor);
    out.push_back(scaler->current_scale());
    out.push_back(static_cast<double>(scaler->growth_tracker()));
    return out;
  }
  static void append(Doubles& to, const Tensor& t) {
    for (const double v : t.to_vector<double>()) to.push_back(v);
  }

  bool checkpointed;
};

// What a caller has to put back itself after a forward that did not reach its end: forward moves
// running averages, counters and the random state as it goes.
struct ForwardState {
  std::vector<NamedTensor> model;
  GeneratorState random;

  explicit ForwardState(const Stepper& setup) : random(default_generator().state()) {
    for (const NamedTensor& entry : setup.model->state_dict()) {
      model.push_back({entry.name, clone(entry.tensor)});
    }
  }
  void restore(Stepper& setup) const {
    setup.model->load_state_dict(model);
    default_generator().set_state(random);
  }
};

class OutOfMemoryInAStep : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  void TearDown() override { allocator().set_failure_hook({}); }
};

TEST_P(OutOfMemoryInAStep, LeavesNothingBehindWhereverItHappens) {
  const auto [warm, checkpointed] = GetParam();
  Doubles wanted_weights, wanted_state;
  {
    Stepper undisturbed(checkpointed);
    if (warm) undisturbed.step();
    undisturbed.step();
    wanted_weights = undisturbed.weights();
    wanted_state = undisturbed.optimizer_state();
  }
  int64_t failures = 0;
  bool failed = true;
  while (failed) {
    Stepper setup(checkpointed);
    if (warm) setup.step();
    const ForwardState forward(setup);
    const Doubles weights = setup.weights(), state = setup.optimizer_state();
    const int64_t before = allocator().allocated_bytes();
    failed = false;
    const int64_t at = failures + 1;
    allocator().set_failure_hook([at](int64_t request, int64_t) { return request == at; });
    try {
      setup.step();
    } catch (const OutOfMemory&) {
      failed = true;
      allocator().set_failure_hook({});
      // While the exception is alive: it must hold no tensor.
      setup.optimizer->zero_grad();
      ASSERT_EQ(allocator().allocated_bytes(), before) << "request " << at;
    }
    allocator().set_failure_hook({});
    if (!failed) break;
    ++failures;
    ASSERT_TRUE(grad_enabled()) << "request " << at;
    ASSERT_FALSE(autocast_state().enabled) << "request " << at;
    ASSERT_EQ(memory_context().phase, Phase::none) << "request " << at;
    ASSERT_EQ(setup.weights(), weights) << "request " << at;
    ASSERT_EQ(setup.optimizer_state(), state) << "request " << at;
    forward.restore(setup);
    setup.step();
    ASSERT_EQ(setup.weights(), wanted_weights) << "after a failure at request " << at;
    ASSERT_EQ(setup.optimizer_state(), wanted_state) << "after a failure at request " << at;
  }
  // Forward, backward and, in the first step, the optimizer's state were all reached.
  EXPECT_GT(failures, warm ? 30 : 40);
}

INSTANTIATE_TEST_SUITE_P(Steps, OutOfMemoryInAStep,
                         testing::Combine(testing::Bool(), testing::Bool()), [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Later" : "First") +
                                  (std::get<1>(info.param) ? "Checkpointed" : "");
                         });

TEST(OutOfMemoryInTraining, ATrainerThatDoesNotFitGivesEverythingBack) {
  TrainConfig config;
  config.model = "lenet";
  config.data = "random:1x16x16:4:64";
  config.device = "cpu";
  config.steps = 2;
  config.evaluate = false;
  TrainObserver nobody;
  const int64_t before = allocator().allocated_bytes();
  const double wanted = Trainer(config).run(nobody).train_loss;
  EXPECT_EQ(allocator().allocated_bytes(), before);
  // Enough for the model, not for a step; or not even for the model.
  for (const int64_t limit : {int64_t{64} << 20, int64_t{4} << 20}) {
    allocator().empty_cache();
    TrainConfig tight = config;
    tight.batch = 64;
    tight.model = "resnet18";
    tight.memory_limit_bytes = allocator().reserved_bytes() + limit;
    EXPECT_THROW(Trainer(tight).run(nobody), OutOfMemory);
    allocator().set_memory_limit(0);
    EXPECT_EQ(allocator().allocated_bytes(), before);
  }
  EXPECT_EQ(Trainer(config).run(nobody).train_loss, wanted);
}

TEST(OutOfMemoryInTraining, WhileAModelIsMadeTheMessageNamesIt) {
  allocator().empty_cache();
  TrainConfig config;
  config.model = "resnet18";
  config.data = "random:3x16x16:4:64";
  config.device = "cpu";
  config.memory_limit_bytes = allocator().reserved_bytes() + (int64_t{4} << 20);
  std::string message;
  try {
    Trainer trainer(config);
  } catch (const OutOfMemory& error) {
    message = error.what();
  }
  allocator().set_memory_limit(0);
  EXPECT_NE(message.find("resnet18"), std::string::npos) << message;
  EXPECT_EQ(memory_context().path, 0);
}

}  // namespace
}  // namespace headroom
