// The convolution methods of the CPU that conv.cpp chooses from, by the plan of workspace_cpu.h.
// All tensors are channels_last: x [n,h,w,c], w [k,r,s,c/groups], y [n,p,q,k] in memory.
#pragma once

#include "core/ops/workspace_cpu.h"
#include "core/tensor/view.h"

namespace headroom::cpu {

// One pass that gathers: forward (source x, output y, bias optional), or backward to the input
// (source dy, output dx, no bias).
struct ConvCall {
  ConvDirection direction;
  const View& source;
  const View& weight;
  const View& bias;
  const Conv2dParams& params;
  const View& output;
  char* workspace;

  bool forward() const { return direction == ConvDirection::forward; }
};
void conv_gemm(const ConvCall& call, const ConvPlan& plan);
void conv_direct(const ConvCall& call, const ConvPlan& plan);
void conv_depthwise(const ConvCall& call, const ConvPlan& plan);

// dw = sum over pixels of dy times what its taps reach of x.
struct ConvWeightCall {
  const View& x;
  const View& dy;
  const Conv2dParams& params;
  const View& dw;
  char* workspace;
};
void conv_weight_gemm(const ConvWeightCall& call, const ConvWeightPlan& plan);
void conv_weight_direct(const ConvWeightCall& call, const ConvWeightPlan& plan);
void conv_weight_depthwise(const ConvWeightCall& call, const ConvWeightPlan& plan);

}  // namespace headroom::cpu
