// The peak before running: the same training steps on meta:cpu, where nothing is computed and no
// memory is held, and on the cpu. The allocators of both arrive at the same numbers, to the byte;
// meta:cuda says what a GPU would hold, on a machine that has none.
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

constexpr int64_t kBatch = 32;

struct Peaks {
  int64_t allocated = 0, reserved = 0;
  bool operator==(const Peaks&) const = default;
};

// Of the second step: the first one makes gradients and optimizer state. Every device has an
// allocator of its own, and this program uses each once, so all start empty.
Peaks peaks_on(Device device) {
  manual_seed(1);
  const TensorOptions options{DType::f32, device, MemoryFormat::channels_last};
  const auto model =
      make_model("lenet", {.classes = 10, .channels = 1, .image_size = 28, .tensor = options});
  Adam optimizer(decay_groups(model->parameters(), 0), {.lr = 1e-3});
  Tensor images = empty({kBatch, 1, 28, 28}, options);
  uniform_(images, -1, 1);
  const Tensor labels = zeros({kBatch}, {DType::i64, device});
  for (int step = 0; step < 2; ++step) {
    reset_peak_memory_stats(device);
    backward(cross_entropy((*model)(images), labels));
    optimizer.step();
    optimizer.zero_grad();
  }
  return {max_memory_allocated(device), max_memory_reserved(device)};
}

void show(const char* what, const Peaks& peaks) {
  std::printf("%-20s allocated %9lld B, reserved %9lld B\n", what,
              static_cast<long long>(peaks.allocated), static_cast<long long>(peaks.reserved));
}

}  // namespace

int main() {
  register_kernels();
  const Peaks predicted = peaks_on(Device::meta(DeviceType::cpu));
  show("predicted (meta:cpu)", predicted);
  const Peaks real = peaks_on(Device::cpu());
  show("real (cpu)", real);
  std::printf("prediction and run are %s\n", predicted == real ? "equal to the byte" : "different");
  show("a GPU (meta:cuda)", peaks_on(Device::meta(DeviceType::cuda)));
  return predicted == real ? 0 : 1;
}
