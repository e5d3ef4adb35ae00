// A memory limit makes any device look like a small one. Running out is an exception with facts,
// and everything the failed step had made is freed as it passes; weights and optimizer state change
// in step() alone, and that changes nothing if it runs out. So a program may catch it, take a
// smaller batch and go on. (What a forward pass moves stays moved: random state, running averages.)
#include <cstdio>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "kernels/register.h"
#include "nn/models/models.h"
#include "optim/optimizer.h"

using namespace headroom;

namespace {

constexpr int64_t kLimitBytes = int64_t{48} << 20;

double train_step(Module& model, Optimizer& optimizer, int64_t batch) {
  const TensorOptions options{DType::f32, Device::cpu(), MemoryFormat::channels_last};
  Tensor images = empty({batch, 1, 28, 28}, options);
  uniform_(images, -1, 1);
  const Tensor labels = zeros({batch}, {DType::i64});
  const Tensor loss = cross_entropy(model(images), labels);
  backward(loss);
  optimizer.step();
  optimizer.zero_grad();
  return loss.item();
}

void print_facts(int64_t batch, const OutOfMemory& error) {
  const OutOfMemory::Facts& facts = error.facts();
  std::printf("batch %d does not fit: asked for %s with %s allocated, %s reserved, limit %s\n",
              static_cast<int>(batch), format_bytes(facts.requested_bytes).c_str(),
              format_bytes(facts.allocated_bytes).c_str(),
              format_bytes(facts.reserved_bytes).c_str(), format_bytes(facts.limit_bytes).c_str());
}

}  // namespace

int main() {
  register_kernels();
  manual_seed(1);
  const Device device = Device::cpu();
  CachingAllocator& allocator = allocator_of(device);
  allocator.set_memory_limit(kLimitBytes);  // of what is reserved: cached bytes count
  const TensorOptions options{DType::f32, device, MemoryFormat::channels_last};
  const auto model =
      make_model("lenet", {.classes = 10, .channels = 1, .image_size = 28, .tensor = options});
  Sgd optimizer(decay_groups(model->parameters(), 0), {.lr = 0.01, .momentum = 0.9});

  int64_t batch = 512;
  bool ran_out = false;
  for (int step = 0; step < 3;) {
    try {
      const double loss = train_step(*model, optimizer, batch);
      std::printf("step %d with batch %d, loss %.4f\n", ++step, static_cast<int>(batch), loss);
    } catch (const OutOfMemory& error) {
      if (!ran_out) std::printf("%s\n", error.what());  // the whole message, once
      print_facts(batch, error);
      ran_out = true;
      if (batch == 1) return 1;
      // Gradients that a cut-short backward left behind must not count in the next step.
      optimizer.zero_grad();
      batch /= 2;
    }
  }
  const MemoryStats stats = allocator.stats();
  std::printf("went on with batch %d; peak reserved %s of %s, %d requests failed\n",
              static_cast<int>(batch), format_bytes(max_memory_reserved(device)).c_str(),
              format_bytes(kLimitBytes).c_str(), static_cast<int>(stats.out_of_memory));
  return ran_out && max_memory_reserved(device) <= kLimitBytes ? 0 : 1;
}
