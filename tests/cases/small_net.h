// A small network with everything that has state: convolution, batch norm, dropout, Adam, half
// precision with a loss scaler.
#pragma once

#include <memory>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "nn/layers.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"

namespace headroom::cases {

struct SmallNet {
  static constexpr int64_t kSide = 8, kChannels = 32;

  Device device;
  std::shared_ptr<Sequential> model = std::make_shared<Sequential>();
  std::unique_ptr<Adam> optimizer;
  std::unique_ptr<GradScaler> scaler;
  Tensor images, labels;

  explicit SmallNet(Device device, int64_t batch = 4) : device(device) {
    manual_seed(1);
    const TensorOptions nhwc{DType::f32, device, MemoryFormat::channels_last};
    Conv2d::Options conv{.in = 3, .out = kChannels, .kernel = {3, 3}};
    conv.conv.padding = {1, 1};
    model->append(std::make_shared<Conv2d>(conv, nhwc));
    model->append(std::make_shared<BatchNorm2d>(
        BatchNorm2d::Options{.channels = kChannels, .relu = true}, nhwc));
    model->append(std::make_shared<MaxPool2d>(Pool2dOptions{}));
    model->append(std::make_shared<Dropout>(0.25));
    model->append(std::make_shared<Flatten>());
    model->append(std::make_shared<Linear>(
        Linear::Options{.in = kChannels * kSide * kSide / 4, .out = 5}, nhwc));
    optimizer = std::make_unique<Adam>(decay_groups(model->parameters(), 0.01),
                                       AdamOptions{.lr = 0.01, .decoupled = true});
    optimizer->keep_half_copies(DType::f16);
    scaler = std::make_unique<GradScaler>(
        GradScalerOptions{.init_scale = 128, .growth_interval = 3}, device);
    images = images_of(batch);
    labels = labels_of(batch);
  }

  // The same images for the same count, whatever was drawn before.
  Tensor images_of(int64_t count) const {
    const GeneratorState before = default_generator().state();
    manual_seed(77);
    Tensor out = empty({count, 3, kSide, kSide}, {DType::f32, device, MemoryFormat::channels_last});
    normal_(out);
    default_generator().set_state(before);
    return out;
  }
  Tensor labels_of(int64_t count) const {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(i % 5);
    return from_vector(values, {count}, {DType::i64, device});
  }

  // The training loss of one step.
  double step() { return step(images, labels); }
  double step(const Tensor& x, const Tensor& wanted) {
    Tensor loss;
    {
      const Autocast region(DType::f16);
      loss = cross_entropy((*model)(x), wanted);
    }
    backward(loss, scaler->seed());
    optimizer->step({.scaler = scaler.get(), .clip_norm = 1});
    optimizer->zero_grad();
    return loss.item();
  }
};

}  // namespace headroom::cases
