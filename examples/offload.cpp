// Saved tensors on the host: what backward needs leaves the device while the forward pass goes on,
// and comes back ahead of its use. The peak falls, and the gradients are the same to the bit.
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

constexpr int kLayers = 12;

// conv - norm with ReLU, at one size: each layer keeps one map of 1 MiB for backward.
std::unique_ptr<Sequential> make_network(const TensorOptions& tensor) {
  auto out = std::make_unique<Sequential>();
  for (int i = 0; i < kLayers; ++i) {
    out->append(std::make_shared<Conv2d>(
        Conv2d::Options{.in = 16, .out = 16, .kernel = {3, 3}, .conv = {.padding = {1, 1}}},
        tensor));
    out->append(
        std::make_shared<BatchNorm2d>(BatchNorm2d::Options{.channels = 16, .relu = true}, tensor));
  }
  return out;
}

struct Result {
  int64_t peak_bytes = 0, host_bytes = 0;
  std::vector<std::vector<float>> gradients;
};

Result forward_backward(Sequential& network, const Tensor& images, SavePolicy policy) {
  const CachingAllocator& host = host_allocator_of(images.device());
  network.zero_grad();
  reset_peak_memory_stats(images.device());
  Tensor loss;
  {
    const SavePolicyScope scope(policy);  // asked when an op saves: around the forward pass
    const Tensor y = network(images);
    loss = mean(mul(y, y));
  }
  Result out;
  out.host_bytes = host.allocated_bytes();
  backward(loss);
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
  Tensor images = empty({16, 16, 32, 32}, options);
  uniform_(images, -1, 1);

  const Result kept = forward_backward(*network, images, SavePolicy::recompute);
  const Result offloaded = forward_backward(*network, images, SavePolicy::offload);
  const bool same = kept.gradients == offloaded.gradients;
  std::printf("peak with saved tensors kept      %s\n", format_bytes(kept.peak_bytes).c_str());
  std::printf("peak with saved tensors offloaded %s\n", format_bytes(offloaded.peak_bytes).c_str());
  std::printf("%s waited on the host; gradients are %s\n",
              format_bytes(offloaded.host_bytes).c_str(), same ? "equal to the bit" : "different");
  return same && offloaded.peak_bytes < kept.peak_bytes && kept.host_bytes == 0 ? 0 : 1;
}
