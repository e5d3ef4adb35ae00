// What can be read from an allocator, and the allocator that each device has.
#include <utility>

#include "core/base/host_runtime.h"
#include "core/base/per_device.h"
#include "core/memory/allocator_state.h"

namespace headroom {
namespace {

// Of the segment, or the run of pages, that begins with this piece.
SegmentInfo empty_info_of(const Piece& first) {
  SegmentInfo segment;
  segment.number = first.segment;
  segment.offset = first.offset;
  segment.address = reinterpret_cast<uint64_t>(first.address);
  segment.small = first.small;
  segment.expandable = first.expandable;
  return segment;
}

void add_block(const Piece& piece, SegmentInfo& segment) {
  BlockInfo& block = segment.blocks.emplace_back();
  block.offset = piece.offset;
  block.bytes = piece.bytes;
  block.address = reinterpret_cast<uint64_t>(piece.address);
  block.in_use = piece.in_use;
  segment.bytes += piece.bytes;
  if (!piece.in_use) return;
  block.requested_bytes = piece.requested_bytes;
  block.tag = piece.tag;
  block.path = piece.path;
  block.op = piece.op;
  block.phase = piece.phase;
  segment.allocated_bytes += piece.bytes;
}

}  // namespace

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(impl_->mutex);
  MemoryStats out = impl_->stats;
  // One compute stream: a freed block may be reused at once, so what is active is what is
  // allocated.
  for (PoolStats& pool : out.pool) {
    pool.active_bytes = pool.allocated_bytes;
    pool.active_count = pool.allocation_count;
  }
  return out;
}

int64_t CachingAllocator::allocated_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats[Pool::all].allocated_bytes.current;
}

int64_t CachingAllocator::reserved_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->reserved();
}

int64_t CachingAllocator::max_allocated_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats[Pool::all].allocated_bytes.peak;
}

int64_t CachingAllocator::max_reserved_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats[Pool::all].reserved_bytes.peak;
}

void CachingAllocator::reset_peak_stats() {
  const std::lock_guard lock(impl_->mutex);
  for (PoolStats& pool : impl_->stats.pool) {
    for (const auto member : kPoolStatMembers) (pool.*member).peak = (pool.*member).current;
  }
  impl_->stats.peak_by_tag = impl_->stats.current_by_tag;
  impl_->record({.kind = MemoryEvent::Kind::peak_reset});
}

void CachingAllocator::reset_accumulated_stats() {
  const std::lock_guard lock(impl_->mutex);
  for (PoolStats& pool : impl_->stats.pool) {
    for (const auto member : kPoolStatMembers) {
      (pool.*member).total_allocated = (pool.*member).total_freed = 0;
    }
  }
  impl_->stats.retries = impl_->stats.out_of_memory = 0;
}

std::vector<SegmentInfo> CachingAllocator::snapshot() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<SegmentInfo> out;
  out.reserve(impl_->segments.size());
  for (const Piece* piece : impl_->segments) {
    for (; piece; piece = piece->next) {
      if (!piece->mapped) continue;
      if (!piece->previous || !piece->previous->mapped) out.push_back(empty_info_of(*piece));
      add_block(*piece, out.back());
    }
  }
  return out;
}

void CachingAllocator::record_events(int64_t capacity) {
  const std::lock_guard lock(impl_->mutex);
  impl_->ring.restart(capacity);
}

std::vector<MemoryEvent> CachingAllocator::events() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->ring.in_order();
}

EventLog CachingAllocator::event_log() const {
  const std::lock_guard lock(impl_->mutex);
  return {impl_->ring.in_order(), impl_->live_blocks(), impl_->ring.dropped()};
}

std::vector<LiveBlock> CachingAllocator::Impl::live_blocks() const {
  std::vector<LiveBlock> out;
  for (const Piece* piece : segments) {
    for (; piece; piece = piece->next) {
      if (!piece->in_use) continue;
      out.push_back(
          {piece->tag, piece->path, piece->op, piece->bytes, piece->segment, piece->offset});
    }
  }
  return out;
}

CachingAllocator& allocator_of(Device device) {
  static PerDevice<CachingAllocator> made;
  return made.of(device, [&] { return new CachingAllocator(device, runtime_of(device)); });
}

CachingAllocator& host_allocator_of(Device device) {
  static PerDevice<CachingAllocator> made;
  return made.of(device, [&] {
    // Lives as long as its allocator.
    DeviceRuntime* host = device.is_meta() ? make_meta_runtime(device.stands_for).release()
                                           : make_pinned_runtime(runtime_of(device)).release();
    return new CachingAllocator(device, *host, MemorySide::host);
  });
}

int64_t memory_allocated(Device device) { return allocator_of(device).allocated_bytes(); }
int64_t max_memory_allocated(Device device) { return allocator_of(device).max_allocated_bytes(); }
int64_t memory_reserved(Device device) { return allocator_of(device).reserved_bytes(); }
int64_t max_memory_reserved(Device device) { return allocator_of(device).max_reserved_bytes(); }
void reset_peak_memory_stats(Device device) { allocator_of(device).reset_peak_stats(); }
void empty_cache(Device device) { allocator_of(device).empty_cache(); }
std::string memory_summary(Device device) { return allocator_of(device).summary(); }

}  // namespace headroom
