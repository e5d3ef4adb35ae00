// Process-wide switches that ops and kernels obey. Set them between steps, from the thread that
// trains; a change in the middle of a step is allowed but makes its peak depend on when.
#pragma once

#include <cstdint>

namespace headroom {

enum class Tf32 : uint8_t { off, conv, all };

// Whether an environment variable that switches something on is "1".
bool is_switched_on(const char* variable);
// HEADROOM_LAUNCH_BLOCKING=1, or CUDA's own CUDA_LAUNCH_BLOCKING=1.
bool launch_blocking_is_asked_for();

struct Settings {
  bool cudnn = true;             // false: our own convolution kernels
  bool cudnn_benchmark = false;  // timed search for the fastest plan instead of heuristics
  bool deterministic = false;    // the same bits twice; kernels that cannot are not used
  // TF32 tensor cores for f32 on CUDA: PyTorch's default is convolutions only.
  Tf32 tf32 = Tf32::conv;
  int64_t workspace_limit_bytes = int64_t{32} << 20;  // the most one convolution may ask for
  // Every kernel waits for its own end, so that a failure is reported by the op that caused it.
  bool launch_blocking = launch_blocking_is_asked_for();
};

Settings& settings();

}  // namespace headroom
