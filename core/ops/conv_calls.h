// Which kernel each convolution call ran in, for those who want a table of it: layer, direction,
// engine, workspace, time. While nobody listens, a call costs the test of one pointer.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/dtype.h"
#include "core/base/shape.h"
#include "core/memory/scopes.h"
#include "core/ops/workspace.h"

namespace headroom {

// What computes a convolution. On the CPU "gemm", "direct" or "depthwise", on CUDA "native" for our
// own kernels or what cuDNN calls its plan; on a device that stands for CUDA "cudnn", because a
// plan is only chosen where there is a GPU. "none" where an operand is empty.
struct ConvEngine {
  std::string name;
  int64_t used_bytes = -1;  // of the workspace that the call was given; -1: not told
  // A timed search for the plan, in its first call, in the same workspace: how many plans ran, how
  // long all of it took on the host's clock, and the winner's time. 0 plans: heuristics chose.
  int64_t searched_plans = 0;
  double search_ms = 0, best_ms = 0;
};

// One call of a convolution kernel. Backward calls have the gradients' shapes in x's, w's and y's
// places; narrow channels are padded.
struct ConvCallInfo {
  ConvDirection direction = ConvDirection::forward;
  PathId path = 0;
  Phase phase = Phase::none;
  Shape x, w, y;
  DType dtype = DType::f32;  // of x and y
  MemoryFormat format = MemoryFormat::contiguous;
  int64_t workspace_bytes = 0;  // given
  ConvEngine engine;
};

// "forward", "backward_input", "backward_weight"
const char* words_of(ConvDirection direction);

// Called around the kernels of each call, the conversions of layout that they need included.
class ConvCallListener {
 public:
  virtual ~ConvCallListener() = default;
  virtual void on_conv_begin() = 0;
  // Not if the call threw.
  virtual void on_conv_end(const ConvCallInfo& call) = 0;
};

// The calling thread's listener; nullptr: none. Returns the one before.
ConvCallListener* set_conv_call_listener(ConvCallListener* listener);

namespace detail {

// For kernels: what runs the call in hand, where that is not what conv_engine_by_rule() says.
void note_conv_engine(const ConvEngine& engine);

// What will run by shapes, types and settings alone; all that can be known on a meta device.
ConvEngine conv_engine_by_rule(Device device, ConvDirection direction, const View& x, const View& w,
                               const View& y, const Conv2dParams& params);

// Tells the listener, if there is one, of the call between construction and end().
class ConvCallScope {
 public:
  ConvCallScope();
  void end(ConvDirection direction, const View& x, const View& w, const View& y,
           const Conv2dParams& params, int64_t workspace_bytes);

 private:
  ConvCallListener* listener_;
};

}  // namespace detail
}  // namespace headroom
