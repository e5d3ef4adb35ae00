// The inside of CachingAllocator, shared by its source files and by nothing else. Members are
// touched under `mutex` only.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/memory/caching_allocator.h"
#include "core/memory/free_list.h"

namespace headroom {

// A block with its neighbours and its place in the free list. The list's node travels with the
// piece while that is in use, so freeing never allocates and cannot fail.
struct Piece : Block {
  Piece* previous = nullptr;  // neighbours in the segment, by offset
  Piece* next = nullptr;
  FreeList::Node node;
  FreeList::Place place;

  bool is_split() const { return previous || next; }
};

struct CachingAllocator::Impl {
  Impl(Device device, DeviceRuntime& runtime) : device(device), runtime(runtime) {}
  ~Impl();

  // --- segments and pieces (allocator_segments.cpp) ---

  // Makes sure of the host memory that one request can need; all that follows it cannot fail for
  // want of host memory, so nothing is ever half done.
  void prepare_request();
  // The best fitting free piece, taken off its list; nullptr on a miss.
  Piece* take_cached(int64_t rounded, bool small) noexcept;
  // A piece that is a whole new segment; nullptr when limit and device refuse even after every
  // cached segment was given back. Passes on what the runtime throws.
  Piece* take_new_segment(int64_t segment_bytes, bool small);
  // Cuts a taken piece to `rounded` bytes where the rest is worth keeping.
  void trim(Piece* piece, int64_t rounded) noexcept;
  // Puts a piece back on its list, merged with its free neighbours.
  void put_back(Piece* piece) noexcept;
  // Gives back the fewest wholly free segments that hold `needed` bytes together, or all if all are
  // not enough. False when there was none.
  bool release_cached(int64_t needed);

  int64_t effective_limit() const {
    return limit_bytes > 0 ? std::min(limit_bytes, kMaxReservedBytes) : kMaxReservedBytes;
  }
  int64_t reserved() const { return stats[Pool::all].reserved_bytes.current; }

  // --- accounting (caching_allocator.cpp) ---

  void charge(Piece* piece, int64_t requested) noexcept;
  void discharge(Piece* piece) noexcept;
  void record(MemoryEvent event) noexcept;
  void record_block(MemoryEvent::Kind kind, const Block& block, Tag previous_tag) noexcept;

  template <class Fn>
  void for_pools(bool small, Fn&& fn) {
    fn(stats[Pool::all]);
    fn(stats[small ? Pool::small : Pool::large]);
  }

  // The pieces in use, by (segment, offset).
  std::vector<LiveBlock> live_blocks() const;

  // --- failure report (allocator_report.cpp) ---

  // Counts and records the failure and makes the exception for it.
  OutOfMemory out_of_memory(int64_t requested, bool injected);

  const Device device;
  DeviceRuntime& runtime;
  mutable std::mutex mutex;

  MemoryStats stats;
  int64_t limit_bytes = 0;
  std::shared_ptr<const FailureHook> failure_hook;
  int64_t hooked_requests = 0;

  std::vector<Piece*> segments;  // the first piece of each, by segment number
  int64_t segments_made = 0;
  FreeList free_small, free_large;

  EventRing ring;

 private:
  FreeList& list_of(const Piece* piece) { return piece->small ? free_small : free_large; }
  void take_off_list(Piece* piece) noexcept;
  void put_on_list(Piece* piece) noexcept;
  void release_segment(Piece* whole) noexcept;
  Piece* spare_piece() noexcept;
  void retire(Piece* piece) noexcept;

  std::deque<Piece> pieces_;  // never shrinks; retired pieces wait for reuse
  Piece* retired_ = nullptr;  // linked through `next`
};

}  // namespace headroom
