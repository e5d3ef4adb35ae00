// Expandable ranges: one range of addresses for each pool, to which pages are mapped where a
// request lacks memory, at the end of what is mapped or in its holes, and from which free pages are
// given back. Sizes and choices are those of PyTorch's expandable segments.
#include <utility>

#include "core/memory/allocator_state.h"

namespace headroom {
namespace {

// Pages that were mapped for a request; given back unless the request gets all of them.
class NewPages {
 public:
  NewPages(DeviceRuntime& runtime, int64_t page_bytes, int64_t count)
      : runtime_(runtime), page_bytes_(page_bytes) {
    addresses_.reserve(static_cast<size_t>(count));
  }
  ~NewPages() {
    for (void* address : addresses_) runtime_.unmap_page(address, page_bytes_);
  }
  NewPages(const NewPages&) = delete;
  NewPages& operator=(const NewPages&) = delete;

  bool map(void* address) {
    if (!runtime_.map_page(address, page_bytes_)) return false;
    addresses_.push_back(address);
    return true;
  }
  void keep() { addresses_.clear(); }

 private:
  DeviceRuntime& runtime_;
  int64_t page_bytes_;
  std::vector<void*> addresses_;
};

int64_t is_mapped(const Piece* neighbour) { return neighbour && neighbour->mapped ? 1 : 0; }

}  // namespace

void CachingAllocator::Impl::take_off_unmapped(Piece* piece) noexcept {
  piece->node = (piece->small ? unmapped_small : unmapped_large).extract(piece->place);
}

void CachingAllocator::Impl::put_on_unmapped(Piece* piece) noexcept {
  piece->node.value() = {0, piece->segment, piece->offset, piece};
  FreeList::Tree& unmapped = piece->small ? unmapped_small : unmapped_large;
  piece->place = unmapped.insert(std::move(piece->node)).position;
}

// An eighth more than the device has: with blocks on most pages, new pages may have to go behind
// them although there is memory for as many in front.
int64_t CachingAllocator::Impl::range_bytes(bool small) {
  const int64_t device_bytes = runtime.memory_info().total_bytes;
  return round_up(device_bytes + device_bytes / 8, page_bytes_of(small));
}

void CachingAllocator::Impl::add_range(int64_t bytes, bool small) {
  void* address = runtime.reserve_range(bytes);
  if (!address) {
    throw DeviceError(detail::concat("expandable segments: ", name_of(device), " has no range of ",
                                     format_bytes(bytes), " of addresses left"));
  }
  Piece* piece = spare_piece();
  piece->address = address;
  piece->bytes = bytes;
  piece->segment = ++segments_made;
  piece->offset = 0;
  piece->small = small;
  piece->expandable = true;
  piece->mapped = false;
  segments.push_back(piece);
  put_on_unmapped(piece);
}

// The first in order of (segment, offset) that is large enough and has addresses without memory.
CachingAllocator::Impl::Room CachingAllocator::Impl::find_room(int64_t rounded,
                                                               bool small) const noexcept {
  for (const FreeKey& key : small ? unmapped_small : unmapped_large) {
    Room room{key.piece};
    if (room.first->previous && room.first->previous->is_free()) room.first = room.first->previous;
    int64_t left = rounded;
    for (const Piece* piece = room.first; piece && !piece->in_use && left > 0;
         piece = piece->next) {
      const int64_t taken = std::min(piece->bytes, left);
      if (!piece->mapped) room.missing_bytes += round_up(taken, page_bytes_of(small));
      left -= taken;
    }
    if (left == 0) return room;
  }
  return {};
}

int64_t CachingAllocator::Impl::missing_bytes(int64_t rounded, bool small) const noexcept {
  const Room room = find_room(rounded, small);
  return room.first ? room.missing_bytes : round_up(rounded, page_bytes_of(small));
}

Piece* CachingAllocator::Impl::take_pages(int64_t rounded, bool small) {
  Room room = find_room(rounded, small);
  if (!room.first) {
    const int64_t bytes = range_bytes(small);
    if (rounded > bytes) return nullptr;
    add_range(bytes, small);
    room = find_room(rounded, small);
  }
  const bool got = get_with_retries(room.missing_bytes, [&] {
    room = find_room(rounded, small);  // it may have lost pages to a retry
    return room.missing_bytes <= effective_limit() - reserved() && map_room(room, rounded, small);
  });
  if (!got) return nullptr;

  Piece* piece = room.first;
  if (!piece->mapped) count_mapped(piece, rounded);
  while (piece->bytes < rounded) count_mapped(piece->next, rounded - piece->bytes);
  take_off_list(piece);
  piece->in_use = true;
  return piece;
}

// Has the device map what the room lacks: all of it, or nothing.
bool CachingAllocator::Impl::map_room(const Room& room, int64_t rounded, bool small) {
  const int64_t page = page_bytes_of(small);
  NewPages pages(runtime, page, room.missing_bytes / page);
  int64_t left = rounded;
  for (const Piece* piece = room.first; left > 0; left -= piece->bytes, piece = piece->next) {
    if (piece->mapped) continue;
    for (int64_t at = 0; at < std::min(piece->bytes, left); at += page) {
      if (!pages.map(static_cast<char*>(piece->address) + at)) return false;
    }
  }
  pages.keep();
  return true;
}

// The first `needed` bytes of an unmapped piece, or all of it, have become pages of a free piece,
// which merges with its free neighbours.
void CachingAllocator::Impl::count_mapped(Piece* unmapped, int64_t needed) noexcept {
  const int64_t bytes = std::min(unmapped->bytes, round_up(needed, page_bytes_of(unmapped->small)));
  take_off_unmapped(unmapped);
  if (bytes < unmapped->bytes) put_on_unmapped(cut(unmapped, bytes));
  unmapped->mapped = true;
  for_pools(unmapped->small, [&](PoolStats& pool) {
    pool.reserved_bytes.increase(bytes);
    pool.segment_count.change(1 - is_mapped(unmapped->previous) - is_mapped(unmapped->next));
  });
  record({.kind = MemoryEvent::Kind::page_map,
          .bytes = bytes,
          .address = reinterpret_cast<uint64_t>(unmapped->address),
          .segment = unmapped->segment,
          .offset = unmapped->offset});
  put_back(unmapped);
}

// Gives the whole pages inside a free piece back; what lies on pages with live blocks stays.
void CachingAllocator::Impl::unmap_pages_of(Piece* free) noexcept {
  const int64_t page = page_bytes_of(free->small), bytes = free->page_bytes();
  const int64_t before = free->first_page() - free->offset;
  StuckChange stuck;
  const auto keep = [&](Piece* piece) {
    put_on_list(piece);
    stuck.add(piece, 1);
  };
  take_off_list(free);
  stuck.add(free, -1);
  Piece* pages = free;
  if (before > 0) {
    pages = cut(free, before);
    keep(free);
  }
  if (bytes < pages->bytes) keep(cut(pages, bytes));
  change_stuck(pages->small, stuck);

  for (int64_t at = 0; at < bytes; at += page) {
    runtime.unmap_page(static_cast<char*>(pages->address) + at, page);
  }
  pages->mapped = false;
  for_pools(pages->small, [&](PoolStats& pool) {
    pool.reserved_bytes.decrease(bytes);
    pool.segment_count.change(is_mapped(pages->previous) + is_mapped(pages->next) - 1);
  });
  record({.kind = MemoryEvent::Kind::page_unmap,
          .bytes = bytes,
          .address = reinterpret_cast<uint64_t>(pages->address),
          .segment = pages->segment,
          .offset = pages->offset});
  if (Piece* right = pages->next; right && !right->mapped) {
    take_off_unmapped(right);
    absorb_next(pages);
  }
  // The left piece survives, as in put_back().
  if (Piece* left = pages->previous; left && !left->mapped) {
    take_off_unmapped(left);
    absorb_next(left);
    pages = left;
  }
  put_on_unmapped(pages);
}

// At the allocator's end: pages first, then the addresses.
void CachingAllocator::Impl::release_range(const Piece* first) noexcept {
  const int64_t page = page_bytes_of(first->small);
  char* begin = static_cast<char*>(first->address);
  int64_t end = 0, next_page = 0;
  for (const Piece* piece = first; piece; piece = piece->next) {
    end = piece->offset + piece->bytes;
    if (!piece->mapped) next_page = end;
    for (; next_page < end; next_page += page) runtime.unmap_page(begin + next_page, page);
  }
  runtime.release_range(first->address, end);
}

}  // namespace headroom
