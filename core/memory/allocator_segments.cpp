// Segments and pieces: best fit, split, merge, and what happens when the device or the limit says
// no.
#include <algorithm>

#include "core/memory/allocator_state.h"

namespace headroom {
namespace {

bool worth_splitting(int64_t rest, bool small) {
  return small ? rest >= kMinBlockBytes : rest > kSmallLimitBytes;
}

void link(Piece* left, Piece* right) {
  if (left) left->next = right;
  if (right) right->previous = left;
}

// What a free piece could grow to without a block being moved. The end of a range counts as
// endless: how long it is depends on the device, and the choice must not.
int64_t room_to_grow(const Piece* piece) {
  const Piece* next = piece->next;
  if (!next || next->mapped) return piece->bytes;
  return next->next ? piece->bytes + next->bytes : kMaxReservedBytes;
}

// The fewest of `whole` that hold `needed` bytes together: the largest ones, the last of them
// replaced by the smallest that still suffices. All of them when all are not enough. Ties go to the
// lower segment number.
void keep_fewest(std::vector<Piece*>& whole, int64_t needed) {
  std::sort(whole.begin(), whole.end(), [](const Piece* a, const Piece* b) {
    return a->bytes != b->bytes ? a->bytes > b->bytes : a->segment < b->segment;
  });
  int64_t sum = 0;
  for (size_t count = 0; count < whole.size(); ++count) {
    const int64_t rest = needed - sum;
    if (whole[count]->bytes < rest) {
      sum += whole[count]->bytes;
      continue;
    }
    size_t last = count;
    for (size_t i = count + 1; i < whole.size() && whole[i]->bytes >= rest; ++i) {
      if (whole[i]->bytes < whole[last]->bytes) last = i;
    }
    std::swap(whole[count], whole[last]);
    whole.resize(count + 1);
    return;
  }
}

}  // namespace

CachingAllocator::Impl::~Impl() {
  for (const Piece* first : segments) {
    if (first->expandable) {
      release_range(first);
      continue;
    }
    int64_t bytes = 0;
    for (const Piece* piece = first; piece; piece = piece->next) bytes += piece->bytes;
    runtime.release(first->address, bytes);
  }
}

void CachingAllocator::Impl::prepare_request() {
  if (retired_count_ < kPiecesOfRequest) prepare_pieces(kPiecesOfRequest);
  if (segments.size() == segments.capacity()) segments.reserve(2 * segments.size() + 16);
}

void CachingAllocator::Impl::prepare_pieces(int64_t count) {
  while (retired_count_ < count) {
    Piece& piece = pieces_.emplace_back();
    retire(&piece);
    piece.node = FreeList::make_node();
  }
}

Piece* CachingAllocator::Impl::spare_piece() noexcept {
  Piece* piece = retired_;
  retired_ = piece->next;
  --retired_count_;
  piece->next = nullptr;
  return piece;
}

void CachingAllocator::Impl::retire(Piece* piece) noexcept {
  piece->in_use = false;
  piece->previous = nullptr;
  piece->next = retired_;
  retired_ = piece;
  ++retired_count_;
}

// Cuts a piece to `bytes`; the rest is a piece of its own, on no list.
Piece* CachingAllocator::Impl::cut(Piece* piece, int64_t bytes) noexcept {
  Piece* rest = spare_piece();
  rest->address = static_cast<char*>(piece->address) + bytes;
  rest->bytes = piece->bytes - bytes;
  rest->segment = piece->segment;
  rest->offset = piece->offset + bytes;
  rest->small = piece->small;
  rest->expandable = piece->expandable;
  rest->mapped = piece->mapped;
  piece->bytes = bytes;
  link(rest, piece->next);
  link(piece, rest);
  return rest;
}

// Merges the next piece, which is on no list, into this one.
void CachingAllocator::Impl::absorb_next(Piece* piece) noexcept {
  Piece* absorbed = piece->next;
  piece->bytes += absorbed->bytes;
  link(piece, absorbed->next);
  retire(absorbed);
}

void CachingAllocator::Impl::take_off_list(Piece* piece) noexcept {
  piece->node = list_of(piece).extract(piece->place);
}

void CachingAllocator::Impl::put_on_list(Piece* piece) noexcept {
  piece->node.value() = {piece->bytes, piece->segment, piece->offset, piece};
  piece->place = list_of(piece).insert(std::move(piece->node));
}

Piece* CachingAllocator::Impl::take_cached(int64_t rounded, bool small) noexcept {
  const FreeList& list = small ? free_small : free_large;
  Piece* piece = list.best_fit(rounded);
  if (!piece) return nullptr;
  // A piece at the end of a run of pages counts as what it can grow to: a larger one that cannot
  // grow as far goes first.
  while (piece->expandable) {
    Piece* larger = list.after(piece->place);
    if (!larger || room_to_grow(larger) >= room_to_grow(piece)) break;
    piece = larger;
  }
  take_off_list(piece);
  piece->in_use = true;
  return piece;
}

void CachingAllocator::Impl::trim(Piece* piece, int64_t rounded) noexcept {
  const int64_t stuck = piece->stuck_bytes();
  int64_t left = 0;  // of it, in what remains free
  if (worth_splitting(piece->bytes - rounded, piece->small || piece->expandable)) {
    Piece* remainder = cut(piece, rounded);
    put_on_list(remainder);
    left = remainder->stuck_bytes();
  }
  change_stuck(piece->small, {left - stuck, int64_t{left > 0} - int64_t{stuck > 0}});
}

void CachingAllocator::Impl::put_back(Piece* piece) noexcept {
  StuckChange stuck;
  if (Piece* right = piece->next; right && right->is_free()) {
    stuck.add(right, -1);
    take_off_list(right);
    absorb_next(piece);
  }
  piece->in_use = false;
  // The left piece survives, so the first piece of a segment stays the same object.
  if (Piece* left = piece->previous; left && left->is_free()) {
    stuck.add(left, -1);
    take_off_list(left);
    absorb_next(left);
    piece = left;
  }
  stuck.add(piece, 1);
  put_on_list(piece);
  change_stuck(piece->small, stuck);
}

void CachingAllocator::Impl::change_stuck(bool small, const StuckChange& change) noexcept {
  for_pools(small, [&](PoolStats& pool) {
    pool.inactive_split_bytes.change(change.bytes);
    pool.inactive_split_count.change(change.count);
  });
}

Piece* CachingAllocator::Impl::take_new_segment(int64_t segment_bytes, bool small) {
  void* address = nullptr;
  const bool got = get_with_retries(segment_bytes, [&] {
    if (segment_bytes <= effective_limit() - reserved()) address = runtime.acquire(segment_bytes);
    return address != nullptr;
  });
  if (!got) return nullptr;

  Piece* piece = spare_piece();
  piece->address = address;
  piece->bytes = segment_bytes;
  piece->segment = ++segments_made;
  piece->offset = 0;
  piece->small = small;
  piece->expandable = false;
  piece->mapped = true;
  piece->in_use = true;
  segments.push_back(piece);
  for_pools(small, [&](PoolStats& pool) {
    pool.reserved_bytes.increase(segment_bytes);
    pool.segment_count.increase(1);
  });
  record({.kind = MemoryEvent::Kind::segment_acquire,
          .bytes = segment_bytes,
          .address = reinterpret_cast<uint64_t>(address),
          .segment = piece->segment});
  return piece;
}

bool CachingAllocator::Impl::release_cached(int64_t needed) {
  std::vector<Piece*> whole, with_pages;
  int64_t whole_bytes = 0;
  for (Piece* first : segments) {
    if (first->expandable) {
      for (Piece* piece = first; piece; piece = piece->next) {
        if (piece->is_free() && piece->page_bytes() > 0) with_pages.push_back(piece);
      }
    } else if (!first->in_use && !first->is_split()) {
      whole.push_back(first);
      whole_bytes += first->bytes;
    }
  }
  if (whole_bytes >= needed) with_pages.clear();
  // Each is cut twice at most, and the request that waits for this has a claim to its own.
  prepare_pieces(2 * static_cast<int64_t>(with_pages.size()) + kPiecesOfRequest);
  keep_fewest(whole, needed);
  for (Piece* piece : whole) release_segment(piece);
  for (Piece* piece : with_pages) unmap_pages_of(piece);
  return !whole.empty() || !with_pages.empty();
}

void CachingAllocator::Impl::release_segment(Piece* whole) noexcept {
  take_off_list(whole);
  segments.erase(std::find(segments.begin(), segments.end(), whole));
  runtime.release(whole->address, whole->bytes);
  for_pools(whole->small, [&](PoolStats& pool) {
    pool.reserved_bytes.decrease(whole->bytes);
    pool.segment_count.decrease(1);
  });
  record({.kind = MemoryEvent::Kind::segment_release,
          .bytes = whole->bytes,
          .address = reinterpret_cast<uint64_t>(whole->address),
          .segment = whole->segment});
  retire(whole);
}

}  // namespace headroom
