// Lists of tensors as kernels take them: by value in the kernel's parameters, so that one launch
// covers a whole network without a copy to the device. Blocks are dealt to tensors by chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_common.h"

namespace headroom::cuda {

// A kernel takes up to 32764 bytes of parameters (CUDA 12.1, compute capability 7.0); the rest is
// left to its other arguments. Short lists travel in less: every launch copies all of them.
constexpr int64_t kLongListBytes = 31 * 1024;
constexpr int kShortListEntries = 64;
constexpr int kListThreads = 256;

// kPointers arrays of `numel` elements each.
template <int kPointers>
struct ListEntry {
  void* data[kPointers];
  int64_t numel;
  int32_t first_block;  // of this tensor, within the launch
  bool aligned;         // every array may be accessed in 16-byte packs
};

template <int kPointers, int kEntries>
struct TensorList {
  static constexpr int kCapacity = kEntries;
  int count = 0;
  int64_t chunk = 0;  // elements per block
  ListEntry<kPointers> entry[kCapacity];

  // The entry whose blocks include `block`.
  __device__ int find(int block) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (entry[middle].first_block <= block) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

template <int kPointers>
using ShortList = TensorList<kPointers, kShortListEntries>;
template <int kPointers>
using LongList =
    TensorList<kPointers, kLongListBytes / static_cast<int64_t>(sizeof(ListEntry<kPointers>))>;

// Calls fn(list, blocks) with lists of type List until every tensor was in one. All have numel > 0;
// first_block is filled in here.
template <class List, int kPointers, class Fn>
void fill_lists(const std::vector<ListEntry<kPointers>>& tensors, int64_t chunk, Fn&& fn) {
  List list;
  list.chunk = chunk;
  int64_t blocks = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    ListEntry<kPointers>& entry = list.entry[list.count++] = tensors[i];
    entry.first_block = static_cast<int32_t>(blocks);
    blocks += ceil_div(entry.numel, chunk);
    CHECK(blocks <= 0x7fffffff, "tensor list: ", blocks, " blocks");
    if (list.count == List::kCapacity || i + 1 == tensors.size()) {
      fn(list, static_cast<unsigned>(blocks));
      list.count = 0;
      blocks = 0;
    }
  }
}

// The same with one ShortList if that is enough, else with LongLists.
template <int kPointers, class Fn>
void for_each_list(const std::vector<ListEntry<kPointers>>& tensors, int64_t chunk, Fn&& fn) {
  if (tensors.size() <= kShortListEntries) {
    fill_lists<ShortList<kPointers>>(tensors, chunk, fn);
  } else {
    fill_lists<LongList<kPointers>>(tensors, chunk, fn);
  }
}

// Whether views lie alike, so that element i of one belongs to element i of the other. Both dense.
inline bool same_layout(const View& a, const View& b) {
  if (a.strides == b.strides) return true;
  for (int axis = 0; axis < a.rank(); ++axis) {
    if (a.shape[axis] > 1 && a.strides[axis] != b.strides[axis]) return false;
  }
  return true;
}

}  // namespace headroom::cuda
