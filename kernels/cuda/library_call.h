// What the callers of cuDNN and cuBLASLt share: scratch that is cut from the end of a workspace,
// pointer alignment, hashing of plan keys, and the bias that a library could not add itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/ops/contract.h"
#include "core/ops/workspace_rules.h"
#include "kernels/cuda/cuda_common.h"

namespace headroom::cuda {

// A workspace from whose end copies of operands in another dtype are taken.
struct Scratch {
  uint8_t* data = nullptr;
  int64_t bytes = 0;

  // `workspace` is u8 and may be undefined.
  explicit Scratch(const View& workspace) {
    if (!workspace) return;
    data = workspace.as<uint8_t>();
    bytes = workspace.numel();
  }
  // Room for `like` in `dtype`, dense, or an undefined view if there is none left.
  View take(const View& like, DType dtype) {
    constexpr int64_t kAlignmentBytes = 256;
    const int64_t needed = rules::cuda_side_copy_bytes(like.numel(), dtype);
    if (bytes < needed) return {};
    bytes = (bytes - needed) / kAlignmentBytes * kAlignmentBytes;
    View out = like;
    out.data = data + bytes;
    out.dtype = dtype;
    out.strides = dense_strides(like.shape, like.format);
    return out;
  }
};

// The largest power of two up to `most` that divides the address.
inline int64_t alignment_of(const void* pointer, int64_t most) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  int64_t alignment = most;
  while (alignment > 1 && address % static_cast<uintptr_t>(alignment) != 0) alignment /= 2;
  return alignment;
}

// Hash of a plan key, an array of words: FNV-1a, a word at a time.
struct HashWords {
  template <size_t kWords>
  size_t operator()(const std::array<int64_t, kWords>& key) const {
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (const int64_t word : key) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x100000001b3ULL;
      hash ^= hash >> 29;
    }
    return static_cast<size_t>(hash);
  }
};

// y = 0 for a dense y.
inline void zero(const View& y) {
  const auto bytes = static_cast<size_t>(y.numel()) * size_of(y.dtype);
  if (bytes > 0) CUDA_CHECK(cudaMemsetAsync(y.data, 0, bytes, compute_stream()));
}

// y += bias along axis 1; y [m,n] or [n,k,p,q].
inline void add_bias(const View& bias, const View& y) {
  View row = bias;
  row.shape = y.shape;
  row.format = y.format;
  row.strides = Strides::filled(y.rank(), 0);
  row.strides[1] = bias.strides[0];
  slots::binary(BinaryOp::add, y, row, y);
}

}  // namespace headroom::cuda
