// How CUDA's batch normalisation cuts a tensor into partial sums: a function of shape and type
// alone, so that the workspace rule (in every build) and the kernels agree to the byte. The index
// arithmetic is plain C++ and is tested on the host.
#pragma once

#include <cstdint>

#include "core/base/philox.h"
#include "core/tensor/view.h"

namespace headroom::bn {

// Blocks that work at once, whatever the device: one block of kReduceThreads per multiprocessor of
// a Hopper GPU. More would only lengthen the list that the last block of a channel group adds up.
constexpr int kReduceBlocks = 132;
constexpr int kReduceThreads = 768;
// A channel group's counter of finished blocks; only groups cut into several blocks have one.
constexpr int kMaxCounters = kReduceBlocks;

// A tensor as batch normalisation sees it: element (o, c, i) of [outer, channels, inner]. Rows
// (inner = 1) have the channel fastest; planes have one channel in `inner` neighbouring elements.
struct Extent {
  int64_t outer = 0;
  int64_t channels = 0;
  int64_t inner = 1;
  // Values per channel.
  HEADROOM_HOST_DEVICE int64_t count() const { return outer * inner; }
  HEADROOM_HOST_DEVICE int64_t numel() const { return outer * channels * inner; }
  HEADROOM_HOST_DEVICE bool is_rows() const { return inner == 1; }
};

// x is [n,c] or [n,c,h,w], dense. A single channel is one long plane whatever the format.
inline Extent extent_of(const View& x) {
  const int64_t n = x.shape[0], c = x.shape[1];
  const int64_t area = x.rank() == 4 ? x.shape[2] * x.shape[3] : 1;
  if (c == 1) return {1, 1, n * area};
  const bool rows = x.rank() == 2 || area == 1 || x.format == MemoryFormat::channels_last;
  return rows ? Extent{n * area, c, 1} : Extent{n, c, area};
}

HEADROOM_HOST_DEVICE inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The smallest power of two that is at least `value` (>= 1).
HEADROOM_HOST_DEVICE inline int power_of_two_above(int64_t value) {
  int power = 1;
  while (power < value) power *= 2;
  return power;
}

// Rows cut for a reduction. A block has `lanes` threads side by side along the channels, `vector`
// channels each, and `slots` such lines of threads below each other; it takes every blocks-th tile
// of `slots` rows. Partial sums lie as [group][block][width].
struct RowPartition {
  int64_t rows = 0;
  int64_t channels = 0;
  int64_t vectors = 0;  // channels / vector
  int64_t groups = 0;   // of `width` channels; the last may be incomplete
  int vector = 1;
  int lanes = 1;  // a power of two, at most 32
  int slots = 1;
  int blocks = 1;  // per group
  HEADROOM_HOST_DEVICE int width() const { return lanes * vector; }
  HEADROOM_HOST_DEVICE int64_t partials() const { return groups * blocks * width(); }
  HEADROOM_HOST_DEVICE int64_t step() const { return static_cast<int64_t>(blocks) * slots; }
  HEADROOM_HOST_DEVICE int64_t first_row(int block) const {
    return static_cast<int64_t>(block) * slots;
  }
  // Rows that a block adds up; at least one.
  HEADROOM_HOST_DEVICE int64_t rows_of_block(int block) const {
    const int64_t whole = rows / slots, rest = rows % slots;
    const int64_t tiles = whole / blocks + (block < whole % blocks ? 1 : 0);
    return tiles * slots + (block == whole % blocks ? rest : 0);
  }
};

// channels must be a multiple of vector; rows > 0.
HEADROOM_HOST_DEVICE inline RowPartition row_partition(int64_t rows, int64_t channels, int vector,
                                                       int threads = kReduceThreads) {
  RowPartition cut;
  cut.rows = rows;
  cut.channels = channels;
  cut.vector = vector;
  cut.vectors = channels / vector;
  // 128 bytes of a row per block keep the groups small, so that many last blocks finish side by
  // side; with many channels there are groups enough, and longer pieces of a row read faster.
  const int widest = vector == 1 ? 32 : cut.vectors >= 64 ? 16 : 8;
  cut.lanes = power_of_two_above(cut.vectors < widest ? cut.vectors : widest);
  cut.groups = divide_up(cut.vectors, cut.lanes);
  cut.slots = threads / cut.lanes;
  const int64_t tiles = divide_up(rows, cut.slots);
  const int64_t share = cut.groups < kReduceBlocks ? kReduceBlocks / cut.groups : 1;
  cut.blocks = static_cast<int>(share < tiles ? share : tiles);
  return cut;
}

// Planes cut for a reduction: channel c is `outer` pieces of `pieces` vectors; the vectors of a
// channel are numbered through, and block b of `blocks` takes every blocks-th run of
// kReduceThreads of them. Partial sums lie as [channel][block].
struct PlanePartition {
  Extent extent;
  int64_t pieces = 0;  // extent.inner / vector
  int vector = 1;
  int blocks = 1;  // per channel
  HEADROOM_HOST_DEVICE int64_t vectors() const { return extent.outer * pieces; }
  HEADROOM_HOST_DEVICE int64_t partials() const { return extent.channels * blocks; }
  // Elements that a block adds up; at least one.
  HEADROOM_HOST_DEVICE int64_t count_of_block(int block) const {
    const int64_t whole = vectors() / kReduceThreads, rest = vectors() % kReduceThreads;
    const int64_t runs = whole / blocks + (block < whole % blocks ? 1 : 0);
    return (runs * kReduceThreads + (block == whole % blocks ? rest : 0)) * vector;
  }
};

// extent.inner must be a multiple of vector; the extent is not empty.
HEADROOM_HOST_DEVICE inline PlanePartition plane_partition(const Extent& extent, int vector) {
  PlanePartition cut;
  cut.extent = extent;
  cut.vector = vector;
  cut.pieces = extent.inner / vector;
  const int64_t runs = divide_up(cut.vectors(), kReduceThreads);
  const int64_t share = extent.channels < kReduceBlocks ? kReduceBlocks / extent.channels : 1;
  cut.blocks = static_cast<int>(share < runs ? share : runs);
  return cut;
}

// Elements of one 16-byte access.
inline int widest_vector(DType dtype) { return static_cast<int>(16 / size_of(dtype)); }

// The workspace, in f32: the larger of the cuts with and without vector access (which of them runs
// depends on addresses), two sums per partial; then two sums per channel for backward's second
// pass.
inline int64_t workspace_floats(const Extent& extent, DType dtype) {
  if (extent.numel() == 0) return 0;
  int64_t most = 0;
  for (const int vector : {1, widest_vector(dtype)}) {
    const int64_t axis = extent.is_rows() ? extent.channels : extent.inner;
    if (axis % vector != 0) continue;
    const int64_t partials = extent.is_rows()
                                 ? row_partition(extent.outer, extent.channels, vector).partials()
                                 : plane_partition(extent, vector).partials();
    most = partials > most ? partials : most;
  }
  return 2 * most + 2 * extent.channels;
}

}  // namespace headroom::bn
