// Activation checkpointing: a stage keeps its input alone and runs again in backward. The peak
// falls, and the gradients are the same to the bit, dropout included.
#include <cstdio>
#include <memory>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "kernels/register.h"
#include "nn/layers.h"

using namespace headroom;

namespace {

constexpr int kStages = 4, kLayers = 3;

// Stages of three times conv - ReLU, with dropout at the end of each.
std::unique_ptr<Sequential> make_network(const TensorOptions& tensor) {
  auto out = std::make_unique<Sequential>();
  for (int stage = 0; stage < kStages; ++stage) {
    auto layers = std::make_shared<Sequential>();
    for (int i = 0; i < kLayers; ++i) {
      layers->append(std::make_shared<Conv2d>(
          Conv2d::Options{.in = 16, .out = 16, .kernel = {3, 3}, .conv = {.padding = {1, 1}}},
          tensor));
      layers->append(std::make_shared<Activation>(ActivationKind::relu));
    }
    layers->append(std::make_shared<Dropout>(0.2));
    out->append(layers);
  }
  return out;
}

struct Result {
  int64_t peak_bytes = 0;
  std::vector<std::vector<float>> gradients;
};

Result forward_backward(Sequential& network, const Tensor& images, bool under_checkpoint) {
  manual_seed(7);  // the same dropout masks in both runs
  network.zero_grad();
  reset_peak_memory_stats(images.device());
  Tensor y = images;
  for (size_t i = 0; i < network.size(); ++i) {
    Module& stage = network.at(i);
    if (under_checkpoint) {
      y = checkpoint([&stage](const Tensor& x) { return stage(x); }, y);
    } else {
      y = stage(y);
    }
  }
  const Tensor loss = mean(mul(y, y));
  y = {};  // a handle would keep the last output alive through backward
  backward(loss);
  Result out;
  out.peak_bytes = max_memory_allocated(images.device());
  for (const Tensor& parameter : network.parameters()) {
    out.gradients.push_back(parameter.grad().to_vector<float>());
  }
  return out;
}

}  // namespace

int main() {
  register_kernels();
  manual_seed(1);
  const TensorOptions options{DType::f32, Device::cpu(), MemoryFormat::channels_last};
  const auto network = make_network(options);
  Tensor images = empty({8, 16, 32, 32}, options);
  uniform_(images, -1, 1);

  const Result plain = forward_backward(*network, images, false);
  const Result less = forward_backward(*network, images, true);
  const bool same = plain.gradients == less.gradients;
  std::printf("peak keeping every activation %s\n", format_bytes(plain.peak_bytes).c_str());
  std::printf("peak keeping stage inputs     %s\n", format_bytes(less.peak_bytes).c_str());
  std::printf("gradients are %s\n", same ? "equal to the bit" : "different");
  return same && less.peak_bytes < plain.peak_bytes ? 0 : 1;
}
