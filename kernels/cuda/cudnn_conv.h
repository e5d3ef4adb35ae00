// Convolutions by cuDNN, behind an interface that shows nothing of it: the one source file that
// includes cudnn-frontend takes a minute to compile.
//
// A plan (an engine with its settings) is chosen once per key and kept for the life of the process.
// The key is everything the choice may depend on: direction, shapes, format, dtypes, parameters,
// alignment of each pointer, workspace bytes, and the switches of Settings (deterministic, tf32,
// cudnn_benchmark). It never depends on what memory happens to be free.
#pragma once

#include <cstdint>
#include <string>

#include "core/ops/params.h"
#include "core/ops/workspace.h"
#include "core/tensor/view.h"

namespace headroom::cuda {

// x [n,c,h,w], w [k,c/groups,r,s], y [n,k,p,q], dense, of one format and one dtype (f16, bf16 or
// f32), none empty. The direction says which is written: y, or dx in x's place, or dw in w's.
// bias [k] (forward only, optional) is of y's dtype.
struct ConvCall {
  ConvDirection direction = ConvDirection::forward;
  View x, w, bias, y;
  Conv2dParams params;
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Enqueues the convolution on the compute stream and returns true, or returns false, with nothing
// enqueued, if cuDNN has no plan for it that fits the workspace and obeys the settings. With
// Settings::cudnn_benchmark the first call of a key times every plan on the operands themselves and
// waits for the device, unless the stream is being captured. Throws DeviceError with the op, its
// shapes and cuDNN's status.
bool run_cudnn_conv(const ConvCall& call);

// What was chosen for each key so far, one line each, in the order of first use. The same lines go
// to standard error as they are chosen if the environment has HEADROOM_LOG_CONV.
std::string describe_conv_plans();

// "conv2d_backward_weight" for messages.
const char* name_of(ConvDirection direction);

}  // namespace headroom::cuda
