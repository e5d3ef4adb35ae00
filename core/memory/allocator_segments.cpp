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
    int64_t bytes = 0;
    for (const Piece* piece = first; piece; piece = piece->next) bytes += piece->bytes;
    runtime.release(first->address, bytes);
  }
}

void CachingAllocator::Impl::prepare_request() {
  // One piece for a new segment and one for what is cut off it.
  while (!retired_ || !retired_->next) {
    Piece& piece = pieces_.emplace_back();
    retire(&piece);
    piece.node = FreeList::make_node();
  }
  if (segments.size() == segments.capacity()) segments.reserve(2 * segments.size() + 16);
}

Piece* CachingAllocator::Impl::spare_piece() noexcept {
  Piece* piece = retired_;
  retired_ = piece->next;
  piece->next = nullptr;
  return piece;
}

void CachingAllocator::Impl::retire(Piece* piece) noexcept {
  piece->in_use = false;
  piece->previous = nullptr;
  piece->next = retired_;
  retired_ = piece;
}

void CachingAllocator::Impl::take_off_list(Piece* piece) noexcept {
  piece->node = list_of(piece).extract(piece->place);
}

void CachingAllocator::Impl::put_on_list(Piece* piece) noexcept {
  piece->node.value() = {piece->bytes, piece->segment, piece->offset, piece};
  piece->place = list_of(piece).insert(std::move(piece->node));
}

Piece* CachingAllocator::Impl::take_cached(int64_t rounded, bool small) noexcept {
  Piece* piece = (small ? free_small : free_large).best_fit(rounded);
  if (!piece) return nullptr;
  take_off_list(piece);
  piece->in_use = true;
  return piece;
}

void CachingAllocator::Impl::trim(Piece* piece, int64_t rounded) noexcept {
  const int64_t rest = piece->bytes - rounded;
  const bool was_split = piece->is_split();
  if (!worth_splitting(rest, piece->small)) {
    if (was_split) {
      for_pools(piece->small, [&](PoolStats& pool) {
        pool.inactive_split_bytes.decrease(piece->bytes);
        pool.inactive_split_count.decrease(1);
      });
    }
    return;
  }
  Piece* remainder = spare_piece();
  remainder->address = static_cast<char*>(piece->address) + rounded;
  remainder->bytes = rest;
  remainder->segment = piece->segment;
  remainder->offset = piece->offset + rounded;
  remainder->small = piece->small;
  piece->bytes = rounded;
  link(remainder, piece->next);
  link(piece, remainder);
  put_on_list(remainder);
  for_pools(piece->small, [&](PoolStats& pool) {
    if (was_split) {  // the free piece only became smaller
      pool.inactive_split_bytes.decrease(rounded);
    } else {
      pool.inactive_split_bytes.increase(rest);
      pool.inactive_split_count.increase(1);
    }
  });
}

void CachingAllocator::Impl::put_back(Piece* piece) noexcept {
  int64_t split_bytes = 0, split_count = 0;  // net change of the inactive split pieces
  const auto absorb_right = [&](Piece* left, Piece* absorbed) {
    left->bytes += absorbed->bytes;
    link(left, absorbed->next);
    retire(absorbed);
  };
  if (Piece* right = piece->next; right && !right->in_use) {
    split_bytes -= right->bytes;
    --split_count;
    take_off_list(right);
    absorb_right(piece, right);
  }
  piece->in_use = false;
  // The left piece survives, so the first piece of a segment stays the same object.
  if (Piece* left = piece->previous; left && !left->in_use) {
    split_bytes -= left->bytes;
    --split_count;
    take_off_list(left);
    absorb_right(left, piece);
    piece = left;
  }
  if (piece->is_split()) {
    split_bytes += piece->bytes;
    ++split_count;
  }
  put_on_list(piece);
  for_pools(piece->small, [&](PoolStats& pool) {
    pool.inactive_split_bytes.change(split_bytes);
    pool.inactive_split_count.change(split_count);
  });
}

Piece* CachingAllocator::Impl::take_new_segment(int64_t segment_bytes, bool small) {
  void* address = nullptr;
  bool released = false;
  const auto ask = [&] {
    if (segment_bytes <= effective_limit() - reserved()) address = runtime.acquire(segment_bytes);
    return address != nullptr;
  };
  const int64_t over_limit = reserved() - (effective_limit() - segment_bytes);
  if (over_limit > 0) released = release_cached(over_limit);
  if (!ask() && release_cached(segment_bytes)) {
    released = true;
    if (!ask() && release_cached(kMaxReservedBytes)) ask();
  }
  if (released) ++stats.retries;
  if (!address) return nullptr;

  Piece* piece = spare_piece();
  piece->address = address;
  piece->bytes = segment_bytes;
  piece->segment = ++segments_made;
  piece->offset = 0;
  piece->small = small;
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
  std::vector<Piece*> whole;
  for (Piece* first : segments) {
    if (!first->in_use && !first->is_split()) whole.push_back(first);
  }
  keep_fewest(whole, needed);
  for (Piece* piece : whole) release_segment(piece);
  return !whole.empty();
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
