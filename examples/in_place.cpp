// In-place activations: y overwrites x, so a layer keeps one tensor where it kept two. What the
// version counters are for: a write to something that backward needs is an error, not a wrong
// gradient.
#include <cstdio>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "kernels/register.h"

using namespace headroom;

namespace {

// Three times conv - leaky ReLU. Returns the peak of forward and backward. Out of place leaky_relu
// keeps its input, and the next convolution keeps its output; in place they are one tensor.
int64_t peak_of_chain(const Tensor& x, const Tensor& weight, bool in_place) {
  reset_peak_memory_stats(x.device());
  Tensor y = x;
  for (int layer = 0; layer < 3; ++layer) {
    Tensor z = conv2d(y, weight, {}, {.padding = {1, 1}});
    y = in_place ? leaky_relu_(z, 0.1) : leaky_relu(z, 0.1);
  }
  const Tensor loss = sum(y);
  y = {};
  backward(loss);
  return max_memory_allocated(x.device());
}

// sigmoid keeps its output for backward; writing to it in between is noticed.
bool write_is_noticed(const Tensor& weight) {
  Tensor y = sigmoid(weight);
  const Tensor loss = sum(y);
  add_(y, 1.0);
  try {
    backward(loss);
  } catch (const Error& error) {
    std::printf("refused: %s\n", error.what());
    return true;
  }
  return false;
}

// A leaf that requires a gradient cannot be written while gradients are recorded; under NoGrad it
// can, which is how optimizers and initialisers write.
bool leaf_is_guarded(Tensor& weight) {
  try {
    mul_(weight, 0.5);
    return false;
  } catch (const InvalidArgument& error) {
    std::printf("refused: %s\n", error.what());
  }
  const NoGrad no_grad;
  mul_(weight, 0.5);
  return true;
}

}  // namespace

int main() {
  register_kernels();
  manual_seed(1);
  const TensorOptions options{DType::f32, Device::cpu(), MemoryFormat::channels_last};
  Tensor x = empty({8, 16, 32, 32}, options);
  Tensor weight = empty({16, 16, 3, 3}, options);
  uniform_(x, -1, 1);
  uniform_(weight, -0.1, 0.1);
  weight.set_requires_grad(true);

  const int64_t out_of_place = peak_of_chain(x, weight, false);
  const int64_t in_place = peak_of_chain(x, weight, true);
  std::printf("peak out of place %s, in place %s\n", format_bytes(out_of_place).c_str(),
              format_bytes(in_place).c_str());
  const bool noticed = write_is_noticed(weight) && leaf_is_guarded(weight);
  return in_place < out_of_place && noticed ? 0 : 1;
}
