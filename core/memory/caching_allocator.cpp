// The requests: allocate, free, retag, the limit, and the accounting of each.
#include "core/memory/caching_allocator.h"

#include <utility>

#include "core/base/clock.h"
#include "core/memory/allocator_state.h"

namespace headroom {

int64_t rounded_bytes(int64_t bytes) {
  CHECK_ARG(bytes >= 0, "allocate: bytes must not be negative, got ", bytes);
  return std::max(kMinBlockBytes, round_up(bytes, kMinBlockBytes));
}

int64_t segment_bytes_for(int64_t rounded) {
  CHECK_ARG(rounded >= 0, "allocate: bytes must not be negative, got ", rounded);
  if (rounded <= kSmallLimitBytes) return kSmallSegmentBytes;
  if (rounded < kMediumLimitBytes) return kLargeSegmentBytes;
  return round_up(rounded, kLargeRoundBytes);
}

CachingAllocator::CachingAllocator(Device device, DeviceRuntime& runtime, MemorySide side)
    : impl_(std::make_unique<Impl>(device, runtime, side)) {}
CachingAllocator::~CachingAllocator() = default;

Block* CachingAllocator::allocate(int64_t bytes) {
  const int64_t rounded = rounded_bytes(bytes);
  const bool small = rounded <= kSmallLimitBytes;
  std::unique_lock lock(impl_->mutex);
  if (impl_->failure_hook) {
    const std::shared_ptr<const FailureHook> hook = impl_->failure_hook;
    const int64_t request = ++impl_->hooked_requests;
    lock.unlock();  // the hook may look at this allocator
    const bool fail = (*hook)(request, bytes);
    lock.lock();
    if (fail) throw impl_->out_of_memory(bytes, true);
  }
  impl_->prepare_request();
  Piece* piece = impl_->take_cached(rounded, small);
  if (!piece && bytes <= kMaxReservedBytes) {
    piece = impl_->expandable ? impl_->take_pages(rounded, small)
                              : impl_->take_new_segment(segment_bytes_for(rounded), small);
  }
  if (!piece) throw impl_->out_of_memory(bytes, false);
  impl_->trim(piece, rounded);
  impl_->charge(piece, bytes);
  return piece;
}

void CachingAllocator::free(Block* block) noexcept {
  if (!block) return;
  const std::lock_guard lock(impl_->mutex);
  if (!block->in_use) return;
  auto* piece = static_cast<Piece*>(block);
  impl_->discharge(piece);
  impl_->put_back(piece);
}

void CachingAllocator::retag(Block* block, Tag tag) {
  CHECK_ARG(block, "retag: needs a block, got none");
  const std::lock_guard lock(impl_->mutex);
  CHECK_ARG(block->in_use, "retag: the block at offset ", block->offset, " of segment ",
            block->segment, " is not in use");
  if (block->tag == tag) return;
  const Tag previous = std::exchange(block->tag, tag);
  impl_->stats.current_by_tag[static_cast<size_t>(previous)] -= block->bytes;
  impl_->stats.current_by_tag[static_cast<size_t>(tag)] += block->bytes;
  impl_->record_block(MemoryEvent::Kind::retag, *block, previous);
}

void CachingAllocator::set_path(Block* block, PathId path) {
  CHECK_ARG(block, "set_path: needs a block, got none");
  path_name(path);  // throws if there is none
  const std::lock_guard lock(impl_->mutex);
  CHECK_ARG(block->in_use, "set_path: the block at offset ", block->offset, " of segment ",
            block->segment, " is not in use");
  block->path = path;
}

void CachingAllocator::empty_cache() {
  const std::lock_guard lock(impl_->mutex);
  impl_->release_cached(kMaxReservedBytes);
}

void CachingAllocator::set_expandable_segments(bool on) {
  const std::lock_guard lock(impl_->mutex);
  const int64_t granularity = on ? impl_->runtime.page_granularity() : kSmallSegmentBytes;
  CHECK_ARG(granularity > 0, "expandable segments: ", name_of(impl_->device),
            " has no virtual memory whose pages could be mapped");
  CHECK_ARG(kSmallSegmentBytes % granularity == 0 && kLargeSegmentBytes % granularity == 0,
            "expandable segments: need pages of ", format_bytes(kSmallSegmentBytes), ", but ",
            name_of(impl_->device), " has pages of ", format_bytes(granularity));
  impl_->expandable = on;
}

bool CachingAllocator::expandable_segments() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->expandable;
}

void CachingAllocator::set_memory_limit(int64_t bytes) {
  CHECK_ARG(bytes >= 0, "memory limit: must be 0 (none) or more bytes, got ", bytes);
  const std::lock_guard lock(impl_->mutex);
  impl_->limit_bytes = bytes;
}

int64_t CachingAllocator::memory_limit() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->limit_bytes;
}

void CachingAllocator::set_failure_hook(FailureHook hook) {
  auto shared = hook ? std::make_shared<const FailureHook>(std::move(hook)) : nullptr;
  const std::lock_guard lock(impl_->mutex);
  impl_->failure_hook.swap(shared);
  impl_->hooked_requests = 0;
}

void CachingAllocator::Impl::charge(Piece* piece, int64_t requested) noexcept {
  const MemoryContext& context = memory_context();
  piece->requested_bytes = requested;
  piece->tag = context.tag;
  piece->path = context.path;
  piece->op = context.op;
  piece->phase = context.phase;
  const Stat& allocated = stats[Pool::all].allocated_bytes;
  const bool new_peak = allocated.current + piece->bytes > allocated.peak;
  for_pools(piece->small, [&](PoolStats& pool) {
    pool.allocated_bytes.increase(piece->bytes);
    pool.requested_bytes.increase(requested);
    pool.allocation_count.increase(1);
  });
  stats.current_by_tag[static_cast<size_t>(piece->tag)] += piece->bytes;
  if (new_peak) stats.peak_by_tag = stats.current_by_tag;
  record_block(MemoryEvent::Kind::allocate, *piece, piece->tag);
}

void CachingAllocator::Impl::discharge(Piece* piece) noexcept {
  for_pools(piece->small, [&](PoolStats& pool) {
    pool.allocated_bytes.decrease(piece->bytes);
    pool.requested_bytes.decrease(piece->requested_bytes);
    pool.allocation_count.decrease(1);
  });
  stats.current_by_tag[static_cast<size_t>(piece->tag)] -= piece->bytes;
  record_block(MemoryEvent::Kind::free, *piece, piece->tag);
}

void CachingAllocator::Impl::record(MemoryEvent event) noexcept {
  if (!ring.on()) return;
  event.allocated_bytes = stats[Pool::all].allocated_bytes.current;
  event.reserved_bytes = reserved();
  event.time_us = process_time_ns() / 1000;
  ring.add(event);
}

void CachingAllocator::Impl::record_block(MemoryEvent::Kind kind, const Block& block,
                                          Tag previous_tag) noexcept {
  if (!ring.on()) return;
  record({.kind = kind,
          .tag = block.tag,
          .previous_tag = previous_tag,
          .phase = memory_context().phase,
          .path = block.path,
          .op = block.op,
          .bytes = block.bytes,
          .requested_bytes = block.requested_bytes,
          .address = reinterpret_cast<uint64_t>(block.address),
          .segment = block.segment,
          .offset = block.offset});
}

}  // namespace headroom
