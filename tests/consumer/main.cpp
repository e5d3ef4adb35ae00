// Trains a small network with the installed library, reads its memory, and survives running out
// of it. Exit code 0 if all went as it should; the reason on standard error otherwise.
#include <cstdio>
#include <memory>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "kernels/register.h"
#include "nn/layers.h"
#include "nn/models/models.h"
#include "optim/optimizer.h"

using namespace headroom;

namespace {

int fail(const char* why) {
  std::fprintf(stderr, "consumer: %s\n", why);
  return 1;
}

// The loss before and after thirty steps on one batch.
struct Losses {
  double first = 0, last = 0;
};

Losses train(Module& model, Optimizer& optimizer, const Tensor& images, const Tensor& labels) {
  Losses out;
  constexpr int kSteps = 30;
  for (int step = 0; step < kSteps; ++step) {
    const Tensor loss = cross_entropy(model(images), labels);
    backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    (step == 0 ? out.first : out.last) = loss.item();
  }
  return out;
}

}  // namespace

int main() {
  register_kernels();
  manual_seed(1);
  const Device cpu = Device::cpu();
  ModelOptions options;
  options.channels = 1;
  options.image_size = 12;
  const std::shared_ptr<Module> model = make_model("lenet", options);
  Sgd optimizer(decay_groups(model->parameters(), 5e-4), {.lr = 0.05, .momentum = 0.9});
  Tensor images = empty({8, 1, 12, 12});
  normal_(images);
  const Tensor labels =
      from_vector(std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}, {8}, {DType::i64, cpu});
  const Losses losses = train(*model, optimizer, images, labels);
  if (!(losses.last < losses.first / 2)) return fail("the network did not learn");

  const int64_t before = memory_allocated(cpu);
  if (before <= 0 || max_memory_allocated(cpu) <= before) return fail("the statistics are off");
  allocator_of(cpu).set_memory_limit(memory_reserved(cpu) + (int64_t{16} << 20));
  try {
    const Tensor large = empty({int64_t{64} << 20});
    return fail("a tensor beyond the limit was made");
  } catch (const OutOfMemory& error) {
    if (error.facts().requested_bytes != int64_t{256} << 20) return fail("the facts are off");
  }
  if (memory_allocated(cpu) != before) return fail("the failure kept memory");
  std::printf("loss %.3f to %.3f\n", losses.first, losses.last);
  return 0;
}
