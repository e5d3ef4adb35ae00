// The table that memory_summary() prints: here of the second training step under autocast, when
// backward is done and the optimizer's step is to come. It runs on meta:cuda, which counts what a
// GPU would hold, so the table is the same on every machine. Input tensors are made under a tag of
// their own, and the forward pass is a phase, as in a program that wants to read its reports.
#include <cstdio>
#include <numeric>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/memory/scopes.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "kernels/register.h"
#include "nn/models/models.h"
#include "optim/grad_scaler.h"
#include "optim/optimizer.h"

using namespace headroom;

namespace {

constexpr int64_t kBatch = 64;
constexpr int kSteps =
    2;  // the first makes the optimizer's state, the second is like all later ones

}  // namespace

int main() {
  register_kernels();
  const Device device = Device::meta(DeviceType::cuda);
  const auto model = make_model(
      "resnet18", {.classes = 10, .tensor = {DType::f32, device, MemoryFormat::channels_last}});
  Sgd optimizer(decay_groups(model->parameters(), 5e-4), {.lr = 0.05, .momentum = 0.9});
  optimizer.keep_half_copies(DType::f16);
  GradScaler scaler(GradScalerOptions{}, device);

  Tensor images, labels;
  {
    const TagScope tag(Tag::input);  // without it they would be temporary, and saved_activation
    images = empty({kBatch, 3, 32, 32}, {DType::f16, device, MemoryFormat::channels_last});
    uniform_(images, -1, 1);
    labels = zeros({kBatch}, {DType::i64, device});
  }
  for (int step = 1; step <= kSteps; ++step) {
    if (step == kSteps) reset_peak_memory_stats(device);
    Tensor loss;
    {
      const PhaseScope phase(Phase::forward);  // backward() and step() have phases of their own
      const Autocast region(DType::f16);
      loss = cross_entropy((*model)(images), labels);
    }
    backward(loss, scaler.seed());
    if (step == kSteps) break;
    optimizer.step({.scaler = &scaler});
    optimizer.zero_grad();
  }
  std::printf("%s", memory_summary(device).c_str());

  const MemoryStats stats = allocator_of(device).stats();
  const int64_t by_tag =
      std::accumulate(stats.peak_by_tag.begin(), stats.peak_by_tag.end(), int64_t{0});
  const bool is_whole = by_tag == max_memory_allocated(device);
  std::printf("the tags %s the peak\n", is_whole ? "sum to" : "do not sum to");
  return is_whole ? 0 : 1;
}
