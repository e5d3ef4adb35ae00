// Index arithmetic of the CUDA kernels that run over strided views: division by a fixed number
// without a divide instruction, and loops whose axes were sorted and merged on the host. Plain C++,
// so that tests check it without a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/base/shape.h"

namespace headroom::cuda {

// Divides n in [0, 2^31) by a divisor in [1, 2^31) with a multiplication and a shift (Granlund &
// Montgomery 1994).
struct FastDivisor {
  uint32_t divisor = 1;
  uint32_t magic = 1;
  uint32_t shift = 0;

  static FastDivisor of(int64_t divisor) {
    CHECK(divisor >= 1 && divisor < (int64_t{1} << 31), "divisor ", divisor);
    FastDivisor out;
    out.divisor = static_cast<uint32_t>(divisor);
    while ((int64_t{1} << out.shift) < divisor) ++out.shift;
    const uint64_t excess = (uint64_t{1} << out.shift) - out.divisor;
    out.magic = static_cast<uint32_t>((excess << 32) / out.divisor + 1);
    return out;
  }
  HEADROOM_HOST_DEVICE uint32_t divide(uint32_t n) const {
#ifdef __CUDA_ARCH__
    const uint32_t high = __umulhi(n, magic);
#else
    const uint32_t high = static_cast<uint32_t>((static_cast<uint64_t>(n) * magic) >> 32);
#endif
    return (high + n) >> shift;
  }
};

// A loop over the elements of one shape that keeps an offset into each of kOperands views. Axes are
// in order of operand 0's strides, fastest first; extents of 1 are gone and neighbours that lie
// behind each other in every view are one axis. Offsets are in elements.
template <int kOperands>
struct StridedLoop {
  int64_t numel = 0;
  int rank = 1;  // at least 1
  int64_t extent[kMaxRank] = {1, 1, 1, 1, 1, 1};
  int64_t stride[kOperands][kMaxRank] = {};
  FastDivisor divisor[kMaxRank];  // of the extents; valid only if !wide()

  // Whether an element's number needs more than 31 bits.
  bool wide() const { return numel > 0x7fffffff; }
  // Whether element i lies at offset i of every view.
  bool flat() const {
    if (rank != 1) return false;
    for (int operand = 0; operand < kOperands; ++operand) {
      if (stride[operand][0] != 1 && extent[0] != 1) return false;
    }
    return true;
  }

  // Offsets of element `index` in [0, numel). kWide must be wide() or true.
  template <bool kWide>
  HEADROOM_HOST_DEVICE void offsets(int64_t index, int64_t (&at)[kOperands]) const {
    for (int operand = 0; operand < kOperands; ++operand) at[operand] = 0;
    int64_t rest = index;
    for (int axis = 0; axis < kMaxRank; ++axis) {
      int64_t coordinate = rest;
      if (axis + 1 < rank) {
        if constexpr (kWide) {
          rest /= extent[axis];
        } else {
          rest = divisor[axis].divide(static_cast<uint32_t>(rest));
        }
        coordinate -= rest * extent[axis];
      }
      for (int operand = 0; operand < kOperands; ++operand) {
        at[operand] += coordinate * stride[operand][axis];
      }
      if (axis + 1 >= rank) break;
    }
  }
};

// Builds the loop. Operand 0 is the one that is written: its strides are distinct and not 0.
template <int kOperands>
StridedLoop<kOperands> make_strided_loop(const Shape& shape,
                                         const std::array<Strides, kOperands>& strides) {
  StridedLoop<kOperands> loop;
  loop.numel = numel_of(shape);
  int axes[kMaxRank];
  int kept = 0;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    if (shape[axis] != 1) axes[kept++] = axis;
  }
  // Insertion sort: stable, so that ties keep the last axis first.
  for (int i = 1; i < kept; ++i) {
    for (int j = i; j > 0 && strides[0][axes[j]] < strides[0][axes[j - 1]]; --j) {
      std::swap(axes[j], axes[j - 1]);
    }
  }
  int rank = 0;
  for (int i = 0; i < kept; ++i) {
    const int64_t extent = shape[axes[i]];
    bool merges = rank > 0;
    for (int operand = 0; merges && operand < kOperands; ++operand) {
      merges = strides[operand][axes[i]] == loop.stride[operand][rank - 1] * loop.extent[rank - 1];
    }
    if (merges) {
      loop.extent[rank - 1] *= extent;
      continue;
    }
    loop.extent[rank] = extent;
    for (int operand = 0; operand < kOperands; ++operand) {
      loop.stride[operand][rank] = strides[operand][axes[i]];
    }
    ++rank;
  }
  loop.rank = rank > 0 ? rank : 1;
  if (loop.numel > 0 && !loop.wide()) {
    for (int axis = 0; axis < loop.rank; ++axis) {
      loop.divisor[axis] = FastDivisor::of(loop.extent[axis]);
    }
  }
  return loop;
}

// Turns a loop over elements into one over packs of `width` neighbours along the fastest axis.
// Returns false, changing nothing, unless every view has stride 1 or 0 there and whole, aligned
// packs everywhere else (the base addresses are the caller's to check).
template <int kOperands>
bool make_pack_loop(StridedLoop<kOperands>& loop, int64_t width) {
  if (loop.numel == 0 || loop.extent[0] % width != 0 || loop.stride[0][0] != 1) return false;
  for (int operand = 0; operand < kOperands; ++operand) {
    const int64_t inner = loop.stride[operand][0];
    if (inner != 0 && inner != 1) return false;
    for (int axis = 1; inner == 1 && axis < loop.rank; ++axis) {
      if (loop.stride[operand][axis] % width != 0) return false;
    }
  }
  loop.numel /= width;
  loop.extent[0] /= width;
  for (int operand = 0; operand < kOperands; ++operand) loop.stride[operand][0] *= width;
  if (!loop.wide()) {
    for (int axis = 0; axis < loop.rank; ++axis) {
      loop.divisor[axis] = FastDivisor::of(loop.extent[axis]);
    }
  }
  return true;
}

}  // namespace headroom::cuda
