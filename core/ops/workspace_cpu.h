// How the CPU kernels cut their work into tasks, and the scratch memory that follows from it. All
// of it is a function of shapes and types alone, so neither the bits of a result nor the peak
// depend on the number of threads, and meta:cpu asks for the same bytes as the cpu.
#pragma once

#include <cstdint>

#include "core/ops/workspace.h"

namespace headroom::cpu {

// The most tasks one kernel call is cut into. Each owns one part of the workspace, so this bounds
// both the scratch memory and the number of threads that can help.
constexpr int64_t kMaxTasks = 16;

// Parts of a workspace start at multiples of a cache line.
constexpr int64_t aligned_bytes(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Partial sums and converted panels are f64 for f64 and f32 for every other type.
constexpr int64_t compute_bytes(DType dtype) { return dtype == DType::f64 ? 8 : 4; }

// The direct convolutions compute outputs in vectors of eight f32.
constexpr int64_t padded_outputs(int64_t outputs) { return (outputs + 7) / 8 * 8; }

// y[m,n] = a[m,k] * b[k,n] in blocks of rows and columns and, where m * n alone gives too few
// tasks, of k: the partial products are then added up, in order, in a second pass.
struct MatmulPlan {
  int64_t row_block = 0, column_block = 0, k_block = 0;  // extents of a block
  int64_t row_blocks = 0, column_blocks = 0, k_splits = 0;
  int64_t chunk = 0;          // of k, half types only: as much is converted at a time
  int64_t tasks = 0;          // the blocks are dealt to these
  int64_t a_panel_bytes = 0;  // per task, half types only: a block of a in f32
  int64_t b_panel_bytes = 0;  // the same of b
  int64_t sum_bytes = 0;      // per task, all but f32: the block of y while it is summed
  int64_t partial_bytes = 0;  // all partial products, 0 if k is not split

  int64_t task_bytes() const { return a_panel_bytes + b_panel_bytes + sum_bytes; }
  int64_t workspace_bytes() const { return tasks * task_bytes() + partial_bytes; }
};
MatmulPlan plan_matmul(int64_t m, int64_t n, int64_t k, DType dtype);

enum class ConvMethod : uint8_t {
  gemm,       // pixels gathered into a panel (im2col), then a matrix product
  direct,     // not many channels: vectorised over the outputs, on zero-padded strips
  depthwise,  // one channel in and out per group: vectorised over channels
};

// Forward; and backward to the input, which is a gather too: dx at a pixel is a product of the dy
// that its taps reach. With a stride, pixels fall into classes (position modulo the stride) that
// are reached by different taps, and each class is one such gather.
struct ConvPlan {
  ConvMethod method = ConvMethod::gemm;
  int64_t rows = 0;          // gemm: pixels per block; direct, depthwise: image rows per block
  int64_t columns = 0;       // gemm: outputs per block, of one group
  int64_t chunk_taps = 0;    // gemm: taps gathered at a time
  bool in_place = false;     // gemm: 1x1, stride 1, no padding, no conversion: nothing to gather
  bool pack_weight = false;  // weights are converted or reordered into the workspace first
  int64_t tasks = 0;
  int64_t weight_bytes = 0;  // packed weights
  int64_t panel_bytes = 0;   // per task: gathered pixels, or the strip
  int64_t sum_bytes = 0;     // per task: a block of outputs, where it is not summed in place

  int64_t task_bytes() const { return panel_bytes + sum_bytes; }
  int64_t workspace_bytes() const { return weight_bytes + tasks * task_bytes(); }
};
// direction: forward, or backward_input with dx for x and dy for y.
ConvPlan plan_conv2d(ConvDirection direction, const View& x, const View& w, const View& y,
                     const Conv2dParams& params);

// Backward to the weight: dw is cut into blocks (outputs of one group x taps), the pixels into
// `splits` ranges. With several splits, or where dw is not the type summed in, partial sums are
// added up, in order, in a second pass.
struct ConvWeightPlan {
  ConvMethod method = ConvMethod::gemm;
  int64_t rows = 0;           // gemm: pixels gathered at a time; else: image rows per block
  int64_t columns = 0;        // gemm: outputs per block
  int64_t chunk_taps = 0;     // gemm: taps per block
  int64_t column_blocks = 0;  // gemm: per group
  int64_t tap_chunks = 0;     // gemm
  int64_t splits = 0;
  bool in_place = false;  // gemm: as in ConvPlan
  bool partials = false;
  int64_t tasks = 0;
  int64_t panel_bytes = 0;     // per task: gathered x, or the strip
  int64_t gradient_bytes = 0;  // per task: dy, converted or padded
  int64_t partial_bytes = 0;   // all partial sums

  int64_t task_bytes() const { return panel_bytes + gradient_bytes; }
  int64_t workspace_bytes() const { return tasks * task_bytes() + partial_bytes; }
};
ConvWeightPlan plan_conv2d_weight(const View& x, const View& w, const View& y,
                                  const Conv2dParams& params);

// Statistics run over `lanes` sums side by side: the channels of a pixel (nhwc and [n,c]; a few
// pixels together while channels are few), or neighbouring pixels of a plane (nchw). Each of the
// `splits` ranges of rows or of channels has its own sums.
struct BatchNormPlan {
  bool planes = false;         // nchw: a range of channels per split, else a range of rows
  int64_t repeat = 0;          // rows side by side in the lanes
  int64_t lanes = 0;           // repeat * channels, or repeat for planes
  int64_t groups_per_run = 0;  // groups of `lanes` elements summed in f32 before they are merged
  int64_t splits = 0;

  // Three f64 sums and three of the computing type per lane.
  int64_t split_bytes() const { return aligned_bytes(lanes * 6 * 8); }
  int64_t workspace_bytes() const { return splits * split_bytes(); }
};
BatchNormPlan plan_batch_norm(const View& x);

}  // namespace headroom::cpu
