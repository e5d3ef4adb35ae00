// The inside of CachingAllocator, shared by its source files and by nothing else. Members are
// touched under `mutex` only.
#pragma once

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/memory/allocation_failure.h"
#include "core/memory/caching_allocator.h"
#include "core/memory/free_list.h"

namespace headroom {

// Stops at the largest multiple of the unit instead of overflowing.
inline int64_t round_up(int64_t bytes, int64_t unit) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const int64_t units = bytes / unit + (bytes % unit != 0);
  return std::min(units, kMost / unit) * unit;
}

// The pages of an expandable range, which has one pool's blocks.
constexpr int64_t page_bytes_of(bool small) {
  return small ? kSmallSegmentBytes : kLargeSegmentBytes;
}

// A block with its neighbours and its place in the free list. The list's node travels with the
// piece while that is in use, so freeing never allocates and cannot fail.
struct Piece : Block {
  // First, so that they share a cache line with in_use.
  bool expandable = false;    // its segment is a range of addresses, to which pages are mapped
  bool mapped = true;         // if not, it is whole pages of addresses without memory
  Piece* previous = nullptr;  // neighbours in the segment, by offset
  Piece* next = nullptr;
  FreeList::Node node;
  FreeList::Place place;

  bool is_split() const { return previous || next; }
  bool is_free() const { return !in_use && mapped; }

  // The whole pages inside a piece of a range.
  int64_t first_page() const { return round_up(offset, page_bytes_of(small)); }
  int64_t page_bytes() const {
    const int64_t page = page_bytes_of(small);
    return std::max<int64_t>(0, (offset + bytes) / page * page - first_page());
  }

  // What a free piece holds back from the device: all of it beside live blocks of its segment, in a
  // range only what lies on pages with live blocks.
  int64_t stuck_bytes() const {
    if (expandable) return bytes - page_bytes();
    return is_split() ? bytes : 0;
  }
};

// The net change that one call makes to the inactive split pieces.
struct StuckChange {
  int64_t bytes = 0, count = 0;

  void add(const Piece* free, int64_t sign) {
    const int64_t stuck = free->stuck_bytes();
    bytes += sign * stuck;
    if (stuck > 0) count += sign;
  }
};

struct CachingAllocator::Impl {
  Impl(Device device, DeviceRuntime& runtime, MemorySide side)
      : device(device), runtime(runtime), side(side) {}
  ~Impl();

  // --- segments and pieces (allocator_segments.cpp) ---

  // Makes sure of the host memory that one request can need: what changes the state cannot fail for
  // want of it, so nothing is ever half done.
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
  // Gives back the fewest wholly free segments that hold `needed` bytes together, or all and the
  // free pages of ranges if these are not enough. False when there was nothing.
  bool release_cached(int64_t needed);

  // --- expandable ranges (allocator_pages.cpp) ---

  // A free piece for `rounded` bytes after pages were mapped for what it lacks, merged with its
  // neighbours; nullptr as in take_new_segment().
  Piece* take_pages(int64_t rounded, bool small);
  // What would have to be mapped for `rounded` bytes.
  int64_t missing_bytes(int64_t rounded, bool small) const noexcept;

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
  AllocationFailure out_of_memory(int64_t requested, bool injected);

  const Device device;
  DeviceRuntime& runtime;
  const MemorySide side;
  mutable std::mutex mutex;

  MemoryStats stats;
  int64_t limit_bytes = 0;
  std::shared_ptr<const FailureHook> failure_hook;
  int64_t hooked_requests = 0;

  std::vector<Piece*> segments;  // the first piece of each segment and range, by number
  int64_t segments_made = 0;
  FreeList free_small, free_large;
  FreeList::Tree unmapped_small, unmapped_large;  // by place: their keys' bytes are 0
  bool expandable = false;                        // new memory comes in pages of a range

  EventRing ring;

 private:
  // A new range, the front of an unmapped piece, and what is cut off the block.
  static constexpr int64_t kPiecesOfRequest = 3;

  // Consecutive pieces that are free or unmapped.
  struct Room {
    Piece* first = nullptr;
    int64_t missing_bytes = 0;  // to be mapped
  };

  FreeList& list_of(const Piece* piece) { return piece->small ? free_small : free_large; }
  void take_off_list(Piece* piece) noexcept;
  void put_on_list(Piece* piece) noexcept;
  void release_segment(Piece* whole) noexcept;
  void prepare_pieces(int64_t count);
  Piece* spare_piece() noexcept;
  void retire(Piece* piece) noexcept;
  Piece* cut(Piece* piece, int64_t bytes) noexcept;
  void absorb_next(Piece* piece) noexcept;
  void change_stuck(bool small, const StuckChange& change) noexcept;
  template <class Ask>
  bool get_with_retries(int64_t needed, Ask&& ask);

  void take_off_unmapped(Piece* piece) noexcept;
  void put_on_unmapped(Piece* piece) noexcept;
  void add_range(int64_t bytes, bool small);
  int64_t range_bytes(bool small);
  Room find_room(int64_t rounded, bool small) const noexcept;
  bool map_room(const Room& room, int64_t rounded, bool small);
  void count_mapped(Piece* unmapped, int64_t needed) noexcept;
  void unmap_pages_of(Piece* free) noexcept;
  void release_range(const Piece* first) noexcept;

  std::deque<Piece> pieces_;  // never shrinks; retired pieces wait for reuse
  Piece* retired_ = nullptr;  // linked through `next`
  int64_t retired_count_ = 0;
};

// Asks the device for `needed` bytes, and again after cached memory was given back.
template <class Ask>
bool CachingAllocator::Impl::get_with_retries(int64_t needed, Ask&& ask) {
  bool released = false;
  const int64_t over_limit = reserved() - (effective_limit() - needed);
  if (over_limit > 0) released = release_cached(over_limit);
  bool got = ask();
  if (!got && release_cached(needed)) {
    released = true;
    got = ask() || (release_cached(kMaxReservedBytes) && ask());
  }
  if (released) ++stats.retries;
  return got;
}

}  // namespace headroom
