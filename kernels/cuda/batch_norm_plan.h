// Which way a batch normalisation runs on CUDA, and the thread layouts of its elementwise passes
// and of its one-launch form. Plain C++, so that the arithmetic is tested on the host.
#pragma once

#include <cstdint>

#include "core/ops/batch_norm_partition.h"

namespace headroom::cuda::bn {

using headroom::bn::divide_up;
using headroom::bn::Extent;
using headroom::bn::kReduceBlocks;

// ---- elementwise passes over rows ----

// A block has lanes x slots threads: `lanes` vectors of a row, `slots` rows. Tiles are walked from
// the last row to the first: what the reduction before read last is still in the L2 cache.
struct RowSweep {
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t vectors = 0;
  int64_t groups = 0;
  int vector = 1;
  int lanes = 1;  // any number up to the block's threads
  int slots = 1;
  int blocks = 1;  // per group
  HEADROOM_HOST_DEVICE int64_t step() const { return static_cast<int64_t>(blocks) * slots; }
};

HEADROOM_HOST_DEVICE inline RowSweep row_sweep(int64_t rows, int64_t channels, int vector,
                                               int threads, int resident_blocks) {
  RowSweep sweep;
  sweep.rows = rows;
  sweep.channels = channels;
  sweep.vector = vector;
  sweep.vectors = channels / vector;
  // Lines of at most half a block, cut evenly: whole rows side by side are one piece of memory.
  sweep.groups = divide_up(sweep.vectors, threads / 2);
  sweep.lanes = static_cast<int>(divide_up(sweep.vectors, sweep.groups));
  sweep.slots = threads / sweep.lanes;
  const int64_t tiles = divide_up(rows, sweep.slots);
  const int64_t share = sweep.groups < resident_blocks ? resident_blocks / sweep.groups : 1;
  sweep.blocks = static_cast<int>(share < tiles ? share : tiles);
  return sweep;
}

// Iterations of the row walk of one thread: rows first, first + step, ... below `rows`.
HEADROOM_HOST_DEVICE inline int64_t walk_length(int64_t first, int64_t step, int64_t rows) {
  return first < rows ? (rows - 1 - first) / step + 1 : 0;
}

// ---- reductions over planes ----

// The vectors of one channel that a thread visits in a reduction, as element offsets. The step is
// divided into whole planes and a rest once, so that the walk itself needs no division.
struct PlaneWalk {
  int64_t plane_stride;  // from a channel's plane to the next image's, in elements
  int64_t pieces;
  int64_t piece;  // within the plane
  int64_t base;   // of the plane
  int64_t planes_per_step, pieces_per_step;
  int count;

  HEADROOM_HOST_DEVICE PlaneWalk(const headroom::bn::PlanePartition& cut, int64_t channel,
                                 int block, int thread) {
    const Extent& extent = cut.extent;
    plane_stride = extent.channels * extent.inner;
    pieces = cut.pieces;
    const int64_t first = static_cast<int64_t>(block) * headroom::bn::kReduceThreads + thread;
    const int64_t step = static_cast<int64_t>(cut.blocks) * headroom::bn::kReduceThreads;
    count = static_cast<int>(walk_length(first, step, cut.vectors()));
    piece = first % pieces;
    base = channel * extent.inner + first / pieces * plane_stride;
    planes_per_step = step / pieces;
    pieces_per_step = step % pieces;
  }
  HEADROOM_HOST_DEVICE int64_t offset(int vector) const { return base + piece * vector; }
  HEADROOM_HOST_DEVICE void advance() {
    piece += pieces_per_step;
    base += planes_per_step * plane_stride;
    if (piece >= pieces) {
      piece -= pieces;
      base += plane_stride;
    }
  }
};

// ---- one launch for small tensors ----

constexpr int kSmallThreads = 512;
constexpr int kMaxCluster = 8;                 // the largest that every Hopper device takes
constexpr int kSmallSharedBytes = 100 * 1024;  // two blocks share a multiprocessor
constexpr int kWideSharedBytes = 200 * 1024;   // one block has it to itself

// A cluster of `cluster` blocks owns `lanes` vectors of every row and keeps them in shared memory
// between the sums and the result, so x is read once. Block `rank` of a cluster has rows
// [rank * chunk, (rank + 1) * chunk).
struct SmallPlan {
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t vectors = 0;
  int64_t groups = 0;
  int vector = 1;
  int lanes = 1;  // a power of two, at most 32
  int slots = 1;
  int cluster = 0;  // 0: does not fit
  int chunk = 0;
  int shared_bytes = 0;
  HEADROOM_HOST_DEVICE int width() const { return lanes * vector; }
  HEADROOM_HOST_DEVICE int rows_of_rank(int rank) const {
    const int64_t first = static_cast<int64_t>(rank) * chunk;
    if (first >= rows) return 0;
    return static_cast<int>(rows - first < chunk ? rows - first : chunk);
  }
};

// What a device allows: max_cluster is 1 before Hopper; shared_bytes is what a block may ask for
// beyond its static arrays.
struct SmallLimits {
  int max_cluster = kMaxCluster;
  int shared_bytes = kWideSharedBytes;
};

// `tensors` of element_bytes each are kept.
inline SmallPlan small_plan(int64_t rows, int64_t channels, int vector, int element_bytes,
                            int tensors, const SmallLimits& limits = {}) {
  constexpr int64_t kEnoughBlocks = 96;   // about three quarters of a Hopper GPU
  constexpr int64_t kLightBytes = 16384;  // a block this light gains nothing from sharing
  SmallPlan plan;
  plan.rows = rows;
  plan.channels = channels;
  plan.vector = vector;
  plan.vectors = channels / vector;
  // From 128 bytes of a row down to 32, a memory sector: narrower only where there are too few
  // channels to keep the device busy.
  const int widest = vector == 1 ? 32 : 8;
  int lanes = headroom::bn::power_of_two_above(plan.vectors < widest ? plan.vectors : widest);
  const int narrowest = vector == 1 ? 16 : 2;
  while (lanes > narrowest && divide_up(plan.vectors, lanes) * limits.max_cluster < kEnoughBlocks) {
    lanes /= 2;
  }
  plan.lanes = lanes;
  plan.groups = divide_up(plan.vectors, lanes);
  plan.slots = kSmallThreads / lanes;
  const int64_t row_bytes = static_cast<int64_t>(lanes) * vector * element_bytes * tensors;
  for (int cluster = 1; cluster <= limits.max_cluster; cluster *= 2) {
    const int64_t bytes = divide_up(rows, cluster) * row_bytes;
    const int64_t blocks = plan.groups * cluster;
    int64_t limit = blocks <= kReduceBlocks ? kWideSharedBytes : kSmallSharedBytes;
    if (limit > limits.shared_bytes) limit = limits.shared_bytes;
    const bool enough =
        bytes <= kLightBytes || blocks >= kEnoughBlocks || cluster == limits.max_cluster;
    if (bytes > limit || !enough) continue;
    plan.cluster = cluster;
    plan.chunk = static_cast<int>(divide_up(rows, cluster));
    plan.shared_bytes = static_cast<int>(bytes);
    break;
  }
  return plan;
}

}  // namespace headroom::cuda::bn
