// Evaluation without a tape: under NoGrad ops record and keep nothing, so a forward pass holds two
// activations at a time instead of all, and a larger batch fits.
#include <cstdio>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "kernels/register.h"
#include "nn/models/models.h"

using namespace headroom;

namespace {

// Peak of one forward pass above what was allocated before it, such as the parameters.
int64_t forward_bytes(Module& model, const Tensor& images) {
  const Device device = images.device();
  const int64_t before = memory_allocated(device);
  reset_peak_memory_stats(device);
  const Tensor logits = model(images);
  return max_memory_allocated(device) - before;
}

}  // namespace

int main() {
  register_kernels();
  manual_seed(1);
  const TensorOptions options{DType::f32, Device::cpu(), MemoryFormat::channels_last};
  const auto model =
      make_model("lenet", {.classes = 10, .channels = 1, .image_size = 28, .tensor = options});
  Tensor images = empty({64, 1, 28, 28}, options);
  uniform_(images, -1, 1);

  const int64_t recorded = forward_bytes(*model, images);
  int64_t unrecorded = 0;
  {
    // EvalScope sets the mode (dropout, batch norm) and gives it back; NoGrad is what saves memory.
    // One does not imply the other.
    const EvalScope evaluation(*model);
    const NoGrad no_grad;
    unrecorded = forward_bytes(*model, images);
  }
  std::printf("forward with a tape    %s above the parameters\n", format_bytes(recorded).c_str());
  std::printf("forward under NoGrad   %s above the parameters\n", format_bytes(unrecorded).c_str());
  std::printf("training mode afterwards: %s\n", model->training() ? "yes" : "no");
  return unrecorded < recorded && model->training() ? 0 : 1;
}
