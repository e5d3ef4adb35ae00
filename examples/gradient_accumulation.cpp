// Gradient accumulation: the gradient of a large batch with the memory of a small one.
// Micro-batches add their parts, each scaled by the images of the whole window, so that a short
// last one weighs what it should.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "kernels/register.h"
#include "nn/models/models.h"

using namespace headroom;

namespace {

constexpr int64_t kWindow = 60;  // images of one optimizer step

// Leaves in the parameters' .grad the gradient of the mean loss over the window, made in passes of
// `batch` images. Returns the peak of the bytes allocated.
int64_t accumulate(Module& model, const Tensor& images, const Tensor& labels, int64_t batch) {
  const Device device = images.device();
  model.zero_grad();
  reset_peak_memory_stats(device);
  const Tensor share = scalar(1.0 / static_cast<double>(kWindow), {DType::f32, device});
  for (int64_t begin = 0; begin < kWindow; begin += batch) {
    const int64_t end = std::min(begin + batch, kWindow);
    const Tensor logits = model(slice(images, 0, begin, end));
    // The sum over the micro-batch, and 1 / window as the seed: not the mean of each micro-batch,
    // which would give the images of a short one too much weight.
    const Tensor loss = cross_entropy(logits, slice(labels, 0, begin, end), {Reduction::sum});
    backward(loss, share);
  }
  return max_memory_allocated(device);
}

std::vector<std::vector<float>> gradients_of(const Module& model) {
  std::vector<std::vector<float>> out;
  for (const Tensor& parameter : model.parameters()) {
    out.push_back(parameter.grad().to_vector<float>());
  }
  return out;
}

// The largest difference, relative to the largest gradient.
double difference(const std::vector<std::vector<float>>& a,
                  const std::vector<std::vector<float>>& b) {
  double most = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < a[i].size(); ++j) {
      most = std::max(most, std::abs(double{a[i][j]} - double{b[i][j]}));
      largest = std::max(largest, std::abs(double{a[i][j]}));
    }
  }
  return most / largest;
}

}  // namespace

int main() {
  register_kernels();
  manual_seed(1);
  const TensorOptions options{DType::f32, Device::cpu(), MemoryFormat::channels_last};
  // A model without batch norm: its statistics are those of each micro-batch, so accumulation
  // changes them.
  const auto model =
      make_model("lenet", {.classes = 10, .channels = 1, .image_size = 28, .tensor = options});
  Tensor images = empty({kWindow, 1, 28, 28}, options);
  uniform_(images, -1, 1);
  std::vector<int64_t> classes;
  for (int64_t i = 0; i < kWindow; ++i) classes.push_back(i % 10);
  const Tensor labels = from_vector(classes, {kWindow}, {DType::i64});

  const int64_t whole_bytes = accumulate(*model, images, labels, kWindow);
  const auto whole = gradients_of(*model);
  std::printf("one pass of %d images: peak %s\n", static_cast<int>(kWindow),
              format_bytes(whole_bytes).c_str());
  bool good = true;
  for (const int64_t batch : {16, 8}) {  // the last passes take 12 and 4
    const int64_t bytes = accumulate(*model, images, labels, batch);
    const double error = difference(whole, gradients_of(*model));
    std::printf("passes of %d images: peak %s, gradients differ by %.1e of the largest\n",
                static_cast<int>(batch), format_bytes(bytes).c_str(), error);
    good = good && bytes < whole_bytes && error < 1e-5;
  }
  return good ? 0 : 1;
}
