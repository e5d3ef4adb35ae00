// The launchers behind the batch normalisation slots: one per pass and memory layout. `vector` says
// whether 16-byte access is possible; all sizes are positive.
#pragma once

#include "core/ops/params.h"
#include "kernels/cuda/batch_norm_device.h"

namespace headroom::cuda::bn {

// y = relu?(gamma * (x - mean) * rstd + beta + residual)
struct ApplyArgs {
  DType dtype = DType::f32;
  Extent extent;
  bool vector = false;
  bool relu = false;
  const void* x = nullptr;
  const void* residual = nullptr;  // may be null
  ChannelViews channels;
  void* y = nullptr;
};

// Mean and rstd of every channel, running averages moved. partials: workspace.
struct StatisticsArgs {
  DType dtype = DType::f32;
  Extent extent;
  bool vector = false;
  const void* x = nullptr;
  float2* partials = nullptr;
  StatisticsOut out;
};

// dy' = dy masked by where the output was positive; dx from it and the means of dy' and of
// dy' * xhat. Null outputs are not wanted. y null and relu: the mask comes from x.
struct BackwardArgs {
  DType dtype = DType::f32;
  Extent extent;
  bool vector = false;
  MaskFrom mask = MaskFrom::nothing;
  const void* x = nullptr;
  const void* y = nullptr;
  const void* dy = nullptr;
  ChannelViews channels;
  float2* partials = nullptr;
  float* means = nullptr;  // [2][c]: mean(dy'), then rstd * mean(dy' * xhat); null: taken as 0
  void* dx = nullptr;
  void* dresidual = nullptr;
  float* dgamma = nullptr;
  float* dbeta = nullptr;
};

void rows_statistics(const StatisticsArgs& args);
void rows_apply(const ApplyArgs& args);
void planes_statistics(const StatisticsArgs& args);
void planes_apply(const ApplyArgs& args);
// Sums into means, dgamma and dbeta; writes dresidual.
void rows_backward_sums(const BackwardArgs& args);
void planes_backward_sums(const BackwardArgs& args);
// dx, and dresidual if given.
void rows_backward_apply(const BackwardArgs& args);
void planes_backward_apply(const BackwardArgs& args);

// Everything in one launch, for rows that fit into the shared memory of a cluster; false (and
// nothing done) where they do not. Forward: statistics, then the output of `apply`.
bool small_forward(const StatisticsArgs& statistics, const ApplyArgs& apply);
bool small_backward(const BackwardArgs& args);

// Calls fn(T{}, std::integral_constant<int, V>{}) for the device type and the vector length.
template <class Fn>
void dispatch_vector(DType dtype, bool vector, Fn&& fn) {
  dispatch_cuda_floating(dtype, "batch_norm", [&](auto tag) {
    using T = decltype(tag);
    if (vector) {
      fn(tag, std::integral_constant<int, kVectorElements<T>>{});
    } else {
      fn(tag, std::integral_constant<int, 1>{});
    }
  });
}

// Calls fn(std::integral_constant<MaskFrom, ...>{}).
template <class Fn>
void dispatch_mask(MaskFrom mask, Fn&& fn) {
  switch (mask) {
    case MaskFrom::nothing:
      return fn(std::integral_constant<MaskFrom, MaskFrom::nothing>{});
    case MaskFrom::output:
      return fn(std::integral_constant<MaskFrom, MaskFrom::output>{});
    case MaskFrom::input:
      return fn(std::integral_constant<MaskFrom, MaskFrom::input>{});
  }
}

}  // namespace headroom::cuda::bn
