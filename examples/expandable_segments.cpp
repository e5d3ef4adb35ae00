// Sizes that vary cut memory up. Here every step takes a few images more than the one before, so
// every activation is a little larger than the segment that held it; smaller blocks move in there,
// and what they leave free is of no use to the next larger one. Expandable segments map pages into
// one range of addresses instead: a free piece grows by what it lacks. Under the same limit the
// first way runs out of memory and the second does not.
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

constexpr int64_t kFirstBatch = 64, kLastBatch = 320, kMoreImages = 32;
constexpr int64_t kLimitBytes = int64_t{128} << 20;

// The largest batch that was done.
int64_t train_on_growing_batches(Device device) {
  const TensorOptions options{DType::f32, device, MemoryFormat::channels_last};
  const auto model =
      make_model("lenet", {.classes = 10, .channels = 1, .image_size = 28, .tensor = options});
  Sgd optimizer(decay_groups(model->parameters(), 0), {.lr = 0.01, .momentum = 0.9});
  int64_t done = 0;
  try {
    for (int64_t batch = kFirstBatch; batch <= kLastBatch; batch += kMoreImages) {
      Tensor images = empty({batch, 1, 28, 28}, options);
      uniform_(images, -1, 1);
      backward(cross_entropy((*model)(images), zeros({batch}, {DType::i64, device})));
      optimizer.step();
      optimizer.zero_grad();
      done = batch;
    }
  } catch (const OutOfMemory& error) {
    std::printf("  %s\n", error.what());
  }
  return done;
}

struct Outcome {
  int64_t batch = 0;
  int64_t reserved_bytes = 0;  // at the most
};

Outcome run(Device device, bool expandable, int64_t limit_bytes) {
  CachingAllocator& allocator = allocator_of(device);
  allocator.empty_cache();  // the run before has left nothing but cached memory
  allocator.set_expandable_segments(expandable);  // acts on new memory
  allocator.set_memory_limit(limit_bytes);
  allocator.reset_peak_stats();
  Outcome out;
  out.batch = train_on_growing_batches(device);
  out.reserved_bytes = allocator.max_reserved_bytes();
  std::printf("%s, %s: up to batch %d; at most %s allocated, %s reserved\n",
              expandable ? "expandable segments" : "segments",
              limit_bytes > 0 ? ("limit " + format_bytes(limit_bytes)).c_str() : "no limit",
              static_cast<int>(out.batch), format_bytes(allocator.max_allocated_bytes()).c_str(),
              format_bytes(out.reserved_bytes).c_str());
  return out;
}

}  // namespace

int main() {
  register_kernels();
  manual_seed(1);
  const Device device = Device::cpu();
  const Outcome plain = run(device, false, 0), expandable = run(device, true, 0);
  const Outcome plain_limited = run(device, false, kLimitBytes);
  const Outcome expandable_limited = run(device, true, kLimitBytes);
  const bool as_told = plain.batch == kLastBatch && expandable.batch == kLastBatch &&
                       expandable.reserved_bytes < plain.reserved_bytes &&
                       plain_limited.batch < kLastBatch && expandable_limited.batch == kLastBatch;
  std::printf("%s: under %s segments end at batch %d, expandable ones go on to %d\n",
              as_told ? "as told" : "not as told", format_bytes(kLimitBytes).c_str(),
              static_cast<int>(plain_limited.batch), static_cast<int>(expandable_limited.batch));
  return as_told ? 0 : 1;
}
