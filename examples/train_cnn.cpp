// The library embedded in a program of its own: a network built here learns to tell bars that are
// drawn here, and the allocator says what the run held and what for.
#include <cstdio>
#include <memory>
#include <random>
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

constexpr int64_t kSide = 16, kBatch = 32;
constexpr int64_t kClasses = 4;  // horizontal, vertical, falling, rising
constexpr int kSteps = 60;

// conv - norm with ReLU - pool, twice, then one linear layer.
class BarNet : public Module {
 public:
  explicit BarNet(const TensorOptions& tensor) {
    layers_ = register_module("layers", std::make_shared<Sequential>());
    int64_t in = 1;
    for (const int64_t out : {8, 16}) {
      layers_->append(std::make_shared<Conv2d>(
          Conv2d::Options{
              .in = in, .out = out, .kernel = {3, 3}, .conv = {.padding = {1, 1}}, .bias = false},
          tensor));
      layers_->append(std::make_shared<BatchNorm2d>(
          BatchNorm2d::Options{.channels = out, .relu = true}, tensor));
      layers_->append(std::make_shared<MaxPool2d>(Pool2dOptions{}));
      in = out;
    }
    layers_->append(std::make_shared<Flatten>());
    const int64_t features = in * (kSide / 4) * (kSide / 4);
    layers_->append(
        std::make_shared<Linear>(Linear::Options{.in = features, .out = kClasses}, tensor));
  }

 protected:
  Tensor forward(const Tensor& x) override { return (*layers_)(x); }

 private:
  std::shared_ptr<Sequential> layers_;
};

struct Batch {
  Tensor images;  // [n,1,16,16]
  Tensor labels;  // i64 [n]
};

// Noise with a bright bar through a random place.
Batch draw_batch(std::mt19937& random, const TensorOptions& options) {
  std::uniform_real_distribution<float> noise(0, 1);
  std::uniform_int_distribution<int64_t> place(4, kSide - 5), any_class(0, kClasses - 1);
  std::vector<float> pixels(static_cast<size_t>(kBatch * kSide * kSide));
  std::vector<int64_t> labels;
  for (float& pixel : pixels) pixel = noise(random);
  for (int64_t n = 0; n < kBatch; ++n) {
    const int64_t row = place(random), column = place(random), label = any_class(random);
    for (int64_t t = -3; t <= 3; ++t) {
      const int64_t y = row + (label == 0 ? 0 : label == 3 ? -t : t);
      const int64_t x = column + (label == 1 ? 0 : t);
      pixels[static_cast<size_t>((n * kSide + y) * kSide + x)] += 1;
    }
    labels.push_back(label);
  }
  const TagScope tag(Tag::input);  // what the report charges these bytes to
  return {from_vector(pixels, {kBatch, 1, kSide, kSide}, options),
          from_vector(labels, {kBatch}, {DType::i64, options.device})};
}

// The share of a fresh batch that the model gets right.
double accuracy(BarNet& model, std::mt19937& random, const TensorOptions& options) {
  const EvalScope evaluation(model);  // batch norm uses its running averages
  const NoGrad no_grad;               // nothing is kept for backward
  const Batch batch = draw_batch(random, options);
  Tensor correct = zeros({}, {DType::i64, options.device});
  count_correct(model(batch.images), batch.labels, correct);
  return correct.item() / static_cast<double>(kBatch);
}

}  // namespace

int main() {
  register_kernels();
  manual_seed(1);
  std::mt19937 random(1);
  const Device device = has_runtime(Device::cuda()) ? Device::cuda() : Device::cpu();
  const TensorOptions options{DType::f32, device, MemoryFormat::channels_last};
  BarNet model(options);
  Sgd optimizer(decay_groups(model.parameters(), 5e-4), {.lr = 0.05, .momentum = 0.9});

  for (int step = 1; step <= kSteps; ++step) {
    const Batch batch = draw_batch(random, options);
    const Tensor loss = cross_entropy(model(batch.images), batch.labels);
    backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (step % 20 == 0) std::printf("step %d  loss %.4f\n", step, loss.item());
  }
  const double right = accuracy(model, random, options);
  std::printf("accuracy on unseen bars %.0f %%\n", 100 * right);

  const MemoryStats stats = allocator_of(device).stats();
  std::printf("peak %s, of which\n", format_bytes(max_memory_allocated(device)).c_str());
  for (int tag = 0; tag < kTagCount; ++tag) {
    const int64_t bytes = stats.peak_by_tag[static_cast<size_t>(tag)];
    if (bytes > 0) std::printf("  %-17s%s\n", name_of(Tag(tag)), format_bytes(bytes).c_str());
  }
  return right > 0.8 ? 0 : 1;
}
