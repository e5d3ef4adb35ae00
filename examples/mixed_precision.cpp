// Mixed precision: activations and products in half, weights and their gradients in f32. Trains the
// same network in f32, under autocast, and with half copies of the weights that the optimizer
// writes, and shows the bytes of each.
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "kernels/register.h"
#include "nn/layers.h"
#include "optim/optimizer.h"

using namespace headroom;

namespace {

constexpr int64_t kBatch = 32;

enum class Mode { f32, autocast, half_copies };

struct Result {
  int64_t peak_bytes = 0;
  int64_t saved_bytes = 0;      // activations kept for backward, at the peak
  int64_t cast_copy_bytes = 0;  // half copies of weights, at the peak
  double loss = 0;
};

std::unique_ptr<Sequential> make_network(const TensorOptions& tensor) {
  auto out = std::make_unique<Sequential>();
  int64_t in = 3;
  for (const int64_t channels : {16, 16, 32}) {
    out->append(std::make_shared<Conv2d>(Conv2d::Options{.in = in,
                                                         .out = channels,
                                                         .kernel = {3, 3},
                                                         .conv = {.padding = {1, 1}},
                                                         .bias = false},
                                         tensor));
    out->append(std::make_shared<BatchNorm2d>(
        BatchNorm2d::Options{.channels = channels, .relu = true}, tensor));
    in = channels;
  }
  out->append(std::make_shared<GlobalAvgPool2d>());
  out->append(std::make_shared<Flatten>());
  out->append(std::make_shared<Linear>(Linear::Options{.in = in, .out = 10}, tensor));
  return out;
}

Result train(Mode mode) {
  manual_seed(1);
  const Device device = Device::cpu();
  const TensorOptions options{DType::f32, device, MemoryFormat::channels_last};
  const auto model = make_network(options);
  Sgd optimizer(decay_groups(model->parameters(), 0), {.lr = 0.05, .momentum = 0.9});
  std::optional<GradScaler> scaler;
  if (mode != Mode::f32) scaler.emplace(GradScalerOptions{}, device);
  // With copies that the optimizer writes in the same pass as the weights, no step casts a weight.
  // Without, the region makes one per weight and step, and drops it when the region ends.
  if (mode == Mode::half_copies) optimizer.keep_half_copies(DType::f16);

  Tensor images = empty({kBatch, 3, 32, 32}, options);
  uniform_(images, -1, 1);
  std::vector<int64_t> classes;
  for (int64_t i = 0; i < kBatch; ++i) classes.push_back(i % 10);
  const Tensor labels = from_vector(classes, {kBatch}, {DType::i64});
  Result out;
  for (int step = 0; step < 4; ++step) {
    // Optimizer state is made in the first step, so the peak is that of a later one.
    if (step == 1) reset_peak_memory_stats(device);
    Tensor logits;
    if (scaler) {
      const Autocast region(DType::f16);
      logits = (*model)(images);
    } else {
      logits = (*model)(images);
    }
    const Tensor loss = cross_entropy(logits, labels);  // f32 from half logits
    // The loss is multiplied by the scale through backward's seed; step() divides it out again, and
    // skips itself when a gradient overflowed.
    backward(loss, scaler ? scaler->seed() : Tensor());
    optimizer.step({.scaler = scaler ? &*scaler : nullptr});
    optimizer.zero_grad();
    out.loss = loss.item();
  }
  const MemoryStats stats = allocator_of(device).stats();
  out.peak_bytes = max_memory_allocated(device);
  out.saved_bytes = stats.peak_by_tag[static_cast<size_t>(Tag::saved_activation)];
  out.cast_copy_bytes = stats.peak_by_tag[static_cast<size_t>(Tag::cast_copy)];
  if (scaler) {
    std::printf("  loss scale %.0f, %d of 4 steps applied\n", scaler->current_scale(),
                static_cast<int>(optimizer.applied_steps()));
  }
  return out;
}

Result show(const char* name, Mode mode) {
  std::printf("%s\n", name);
  const Result out = train(mode);
  std::printf("  loss %.4f, peak %s, saved activations %s, half copies %s\n", out.loss,
              format_bytes(out.peak_bytes).c_str(), format_bytes(out.saved_bytes).c_str(),
              format_bytes(out.cast_copy_bytes).c_str());
  return out;
}

}  // namespace

int main() {
  register_kernels();
  const Result full = show("f32", Mode::f32);
  const Result half = show("f16 under autocast", Mode::autocast);
  const Result kept = show("f16 with the optimizer's half copies", Mode::half_copies);
  std::printf("mixed precision takes %.0f %% of the f32 peak\n",
              100.0 * static_cast<double>(half.peak_bytes) / static_cast<double>(full.peak_bytes));
  return half.peak_bytes < full.peak_bytes && kept.peak_bytes < full.peak_bytes ? 0 : 1;
}
