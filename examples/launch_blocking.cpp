// A GPU works behind the program's back: an op returns when its kernels are queued, so what goes
// wrong in one comes to light later, at some call that waits and has nothing to do with it.
// settings().launch_blocking (HEADROOM_LAUNCH_BLOCKING=1 for any program, --launch-blocking for
// train) makes every kernel wait for its end, and the op that is wrong is the one that throws. It
// is slow, so it is for finding the error and not for training. Running out of memory needs none of
// this: the host does the accounting, so the op that asks for too much throws by itself.
#include <cstdio>
#include <string>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/base/settings.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "kernels/register.h"
#include "nn/models/models.h"

using namespace headroom;

namespace {

constexpr int64_t kImages = 512, kClasses = 10;

struct Outcome {
  std::string at;       // the statement that threw
  std::string message;  // empty if none did
};

// A training step up to where the loss is read; says where it was when something was thrown.
Outcome step(Module& model, const Tensor& images, const Tensor& labels) {
  Outcome out;
  try {
    out.at = "forward";
    const Tensor logits = model(images);
    out.at = "cross_entropy";
    const Tensor loss = cross_entropy(logits, labels);
    out.at = "backward";
    backward(loss);
    out.at = "reading the loss";
    loss.item();
  } catch (const Error& error) {
    out.message = error.what();
  }
  return out;
}

void print(const char* what, bool blocking, const Outcome& outcome) {
  // A report of memory goes on with who holds the rest.
  const std::string first = outcome.message.substr(0, outcome.message.find(';'));
  std::printf("%s, launches %s: thrown at '%s'\n  %s\n", what, blocking ? "block" : "do not block",
              outcome.at.c_str(), first.c_str());
}

}  // namespace

int main() {
  register_kernels();
  const Device device = has_runtime(Device::cuda()) ? Device::cuda() : Device::cpu();
  const TensorOptions options{DType::f32, device, MemoryFormat::channels_last};
  const auto model = make_model(
      "lenet", {.classes = kClasses, .channels = 1, .image_size = 28, .tensor = options});
  const Tensor images = full({kImages, 1, 28, 28}, 0.5, options);

  // Labels that count from 1 instead of 0: class 10 of 10 classes. What a kernel finds in its data
  // cannot be known when it is launched.
  std::vector<int64_t> classes(kImages);
  for (size_t i = 0; i < classes.size(); ++i) classes[i] = 1 + static_cast<int64_t>(i) % kClasses;
  const Tensor labels = from_vector(classes, {kImages}, {DType::i64, device});

  bool as_told = true;
  for (const bool blocking : {false, true}) {
    settings().launch_blocking = blocking;
    const Outcome wrong_label = step(*model, images, labels);
    print("a label out of range", blocking, wrong_label);
    // The CPU computes at once, as if launches blocked.
    const bool at_once = blocking || device.is_cpu();
    as_told &= wrong_label.at == (at_once ? "cross_entropy" : "reading the loss");
    as_told &= wrong_label.message.find("has label 10") != std::string::npos;
  }

  CachingAllocator& allocator = allocator_of(device);
  allocator.empty_cache();
  allocator.set_memory_limit(allocator.reserved_bytes() + (int64_t{4} << 20));
  for (const bool blocking : {false, true}) {
    settings().launch_blocking = blocking;
    const Outcome no_memory = step(*model, images, labels);
    print("out of memory", blocking, no_memory);
    as_told &= no_memory.at == "forward" && no_memory.message.find("conv2d") != std::string::npos;
  }
  std::printf("%s on %s: the wrong label %s; memory names its op either way\n",
              as_told ? "as told" : "not as told", name_of(device),
              device.is_cpu() ? "is found by its op, since the CPU computes at once"
                              : "is found by its op only where launches block");
  return as_told ? 0 : 1;
}
