// The tape: in-place writes, a second backward, what a kept loss keeps, and shared weights.
#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

class AutogradCase : public CaseTest {};
HEADROOM_CASES(AutogradCase);

void expect_says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
  }
}

TEST_P(AutogradCase, O30_InPlaceReluFollowedByAnInPlaceResidualAdd) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    const std::string tensor_name = std::string(name_of(dtype)) + "[2]";
    const std::vector<std::pair<const char*, std::function<void(Tensor&)>>> activations = {
        {"relu", [](Tensor& t) { relu_(t); }},
        {"leaky_relu", [](Tensor& t) { leaky_relu_(t, 0.1); }},
        {"sigmoid", [](Tensor& t) { sigmoid_(t); }},
        {"tanh", [](Tensor& t) { tanh_(t); }},
        {"exp", [](Tensor& t) { exp_(t); }}};
    for (const auto& [name, activate] : activations) {
      Tensor x = leaf({-1, 2}, {2}, dtype);
      Tensor a = mul(x, 1);
      activate(a);
      add_(a, tensor({5, -3}, {2}, dtype));
      expect_says(message_of([&] { backward(sum(a)); }),
                  {name, tensor_name, "in place", "version 1", "version 2"});
      EXPECT_FALSE(x.grad().defined());
    }
    // Added out of place, or before the activation, the gradient is that of the old sign.
    Tensor x = leaf({-1, 2}, {2}, dtype);
    Tensor a = mul(x, 1);
    relu_(a);
    backward(sum(add(a, tensor({5, -3}, {2}, dtype))));
    EXPECT_EQ(values_of(x.grad()), (Values{0, 1}));
    x.set_grad({});
    a = mul(x, 1);
    add_(a, tensor({5, -3}, {2}, dtype));
    backward(sum(relu_(a)));
    EXPECT_EQ(values_of(x.grad()), (Values{1, 0}));
  }
}

TEST_P(AutogradCase, O31_InPlaceOnALeaf) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    Tensor w = leaf({1, 2}, {2}, dtype);
    const Tensor other = tensor({5, 6}, {2}, dtype);
    const std::vector<std::function<void()>> writes = {
        [&] { add_(w, 1.0); },    [&] { mul_(w, 2.0); },   [&] { add_(w, other); },
        [&] { sub_(w, other); },  [&] { mul_(w, other); }, [&] { div_(w, other); },
        [&] { relu_(w); },        [&] { neg_(w); },        [&] { fill_(w, 3); },
        [&] { copy_(w, other); }, [&] { uniform_(w); },    [&] { normal_(w); }};
    for (const auto& write : writes) expect_says(message_of(write), {"leaf", "no_grad"});
    EXPECT_EQ(values_of(w), (Values{1, 2}));
    const Tensor y = sum(mul(w, w));
    {
      const NoGrad no_grad;
      add_(w, 1.0);
    }
    EXPECT_EQ(values_of(w), (Values{2, 3}));
    EXPECT_TRUE(w.is_leaf());
    expect_says(message_of([&] { backward(y); }), {"mul", "in place", "version 0", "version 1"});
    EXPECT_FALSE(w.grad().defined());
    // An optimizer's step is such a write.
    Tensor v = leaf({1, 2}, {2}, dtype);
    const Tensor z = sum(mul(v, v));
    v.set_grad(tensor({1, 1}, {2}));
    Sgd({{.parameters = {v}}}, {.lr = 1}).step();
    expect_says(message_of([&] { backward(z); }), {"mul", "in place"});
  }
}

TEST_P(AutogradCase, O32_BackwardTwice) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    Tensor x = leaf({3}, {1}, dtype);
    const Tensor y = mul(x, x);
    backward(y);
    expect_says(message_of([&] { backward(y); }), {"a second time", "retain_graph"});
    EXPECT_EQ(x.grad().item(), 6);
    Tensor kept = leaf({3}, {1}, dtype);
    const Tensor z = mul(kept, kept);
    backward(z, {}, {.retain_graph = true});
    backward(z);
    EXPECT_EQ(kept.grad().item(), 12);
    EXPECT_THROW(backward(z), Error);
    EXPECT_EQ(kept.grad().item(), 12);
  }
}

// Also where only bytes are counted.
TEST_P(AutogradCase, O32_LossHandlesKeptForLogging) {
  for (const Device where : {device(), Device::meta(device().type)}) {
    {
      Tensor w = full({256, 1024}, 0.5, {DType::f32, where}).set_requires_grad(true);
      std::vector<Tensor> losses;
      int64_t after_first = 0;
      for (int i = 0; i < 100; ++i) {
        Tensor y = mul(w, 1.0);
        for (int layer = 0; layer < 6; ++layer) y = relu(y);
        losses.push_back(mean(y));
        y = {};
        backward(losses.back());
        if (i == 0) after_first = memory_allocated(where);
      }
      EXPECT_LE(memory_allocated(where) - after_first, 99 * 512) << where;
      // A loss that backward never reached lets go of its network with its last handle.
      {
        const Tensor unused = mean(relu(mul(w, 1.0)));
        EXPECT_GT(memory_allocated(where) - after_first, 1 << 20);
      }
      EXPECT_LE(memory_allocated(where) - after_first, 99 * 512) << where;
    }
  }
}

// What a loss was made by, and how, does not matter.
TEST_P(AutogradCase, O32_LossHandlesOfEveryKindKeepNothingElse) {
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> losses = {
      {"cross_entropy",
       [](const Tensor& y) {
         return cross_entropy(y, zeros({y.size(0)}, {DType::i64, y.device()}));
       }},
      {"mse_loss", [](const Tensor& y) { return mse_loss(y, zeros(y.shape(), y.options())); }},
      {"max", [](const Tensor& y) { return max(y); }},
      {"slice", [](const Tensor& y) { return sum(slice(max(y, 1, true).values, 0, 0, 1)); }},
      {"scaled", [](const Tensor& y) { return mul(mean(y), 1024.0); }},
      {"checkpoint",
       [](const Tensor& y) {
         // Holds a tensor of its own.
         const Tensor noise = ones(y.shape(), y.options());
         return checkpoint([noise](const Tensor& in) { return mean(mul(in, noise)); }, y);
       }},
      {"under autocast", [](const Tensor& y) {
         const Autocast region(DType::f16);
         return mean(linear(y, slice(y, 0, 0, 4)));
       }}};
  for (const Device where : {device(), Device::meta(device().type)}) {
    for (const auto& [name, loss_of] : losses) {
      Tensor w = full({64, 1024}, 0.5, {DType::f32, where}).set_requires_grad(true);
      std::vector<Tensor> kept;
      int64_t after_first = 0;
      for (int i = 0; i < 10; ++i) {
        kept.push_back(loss_of(relu(mul(w, 1.0))));
        backward(kept.back());
        if (i == 0) after_first = memory_allocated(where);
      }
      EXPECT_LE(memory_allocated(where) - after_first, 9 * 512) << name << " on " << where;
    }
  }
}

// Layers that all have the first one's weight.
class Tied : public Module {
 public:
  Tied(const Tensor& weight, int layers, bool under_checkpoint)
      : under_checkpoint_(under_checkpoint) {
    for (int i = 0; i < layers; ++i) {
      layers_.push_back(register_module(std::to_string(i), std::make_shared<Layer>(weight)));
    }
  }

 protected:
  Tensor forward(const Tensor& x) override {
    Tensor y = x;
    for (const auto& layer : layers_) {
      const auto run = [layer](const Tensor& in) { return (*layer)(in); };
      y = under_checkpoint_ ? checkpoint(run, y) : run(y);
    }
    return y;
  }

 private:
  class Layer : public Module {
   public:
    explicit Layer(const Tensor& weight) : weight_(register_parameter("weight", weight)) {}

   protected:
    Tensor forward(const Tensor& x) override {
      return weight_.rank() == 4 ? conv2d(x, weight_) : linear(x, weight_);
    }

   private:
    Tensor weight_;
  };
  bool under_checkpoint_;
  std::vector<std::shared_ptr<Layer>> layers_;
};

TEST_P(AutogradCase, O33_SharedWeightsAreOneParameter) {
  for (const bool convolution : {false, true}) {
    for (const bool under_checkpoint : {false, true}) {
      for (const bool amp : {false, true}) {
        for (const bool half_copies : {false, true}) {
          const Shape shape = convolution ? Shape{1, 1, 1, 1} : Shape{1, 1};
          const Tensor w = full(shape, 3, {DType::f32, device()});
          Tied net(w, 2, under_checkpoint);
          ASSERT_EQ(net.named_parameters().size(), 1u);
          EXPECT_EQ(net.parameter_count(), 1);
          const Tensor only = net.parameters()[0];
          // Given twice, it still counts once.
          Sgd optimizer({{.parameters = {only, only}, .weight_decay = 0.1}}, {.lr = 0.01});
          if (half_copies) optimizer.keep_half_copies(DType::f16);
          {
            const Autocast region(DType::f16, amp);
            backward(sum(net(full(shape, 2, {DType::f32, device()}))));
          }
          EXPECT_EQ(only.grad().item(), 12);
          optimizer.step();
          EXPECT_NEAR(only.item(), 2.877, 1e-6);
          EXPECT_EQ(net.state_dict().size(), 2u) << "either layer's file can be read alone";
        }
      }
    }
  }
  // Three uses: 3 * w^2 * x.
  Tied net(full({1, 1}, 3, {DType::f32, device()}), 3, false);
  const Tensor w = net.parameters()[0];
  Adam optimizer({{.parameters = {w, w}}}, {.lr = 0.5});
  backward(sum(net(full({1, 1}, 2, {DType::f32, device()}))));
  EXPECT_EQ(w.grad().item(), 54);
  optimizer.step();
  EXPECT_NEAR(w.item(), 2.5, 1e-6);
}

}  // namespace
}  // namespace headroom::cases
