// The caching allocator, one class for every device. Requests are served from segments held from
// the DeviceRuntime, which makes a peak a function of the sequence of requests and of nothing else:
// the meta device runs this same class over addresses that hold no memory.
//
// Sizes and policy follow PyTorch's CUDA caching allocator, so that numbers compare: requests are
// rounded up to 512 B; those up to 1 MiB come from 2 MiB segments (small pool), those under 10 MiB
// from 20 MiB segments, larger ones from segments of their own rounded to 2 MiB. Best fit, ties by
// (segment number, offset). A block is split when the rest is at least 512 B (small pool) or over
// 1 MiB (large pool), and merged with free neighbours of its segment when freed.
//
// With expandable segments, new memory is mapped into one range of addresses per pool, in pages of
// 2 MiB (small pool) and 20 MiB (large pool), behind the pages that are there or into holes between
// them. So a request that no free piece can serve grows one, instead of needing a segment of its
// own, and each wholly free page can be given back, whatever its neighbours hold.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/device.h"
#include "core/memory/events.h"
#include "core/memory/scopes.h"
#include "core/memory/stats.h"

namespace headroom {

constexpr int64_t kMinBlockBytes = 512;
constexpr int64_t kSmallLimitBytes = int64_t{1} << 20;     // the largest request of the small pool
constexpr int64_t kSmallSegmentBytes = int64_t{2} << 20;   // a segment of the small pool
constexpr int64_t kMediumLimitBytes = int64_t{10} << 20;   // requests under this share segments
constexpr int64_t kLargeSegmentBytes = int64_t{20} << 20;  // the shared segment of the large pool
constexpr int64_t kLargeRoundBytes = int64_t{2} << 20;     // larger segments are rounded to this
// Pages of expandable segments have the bytes of the pool's shared segments.

// What one allocator may reserve when no limit is set: 1 EiB. More than any device has, and small
// enough that sums and addresses of the meta device cannot overflow.
constexpr int64_t kMaxReservedBytes = int64_t{1} << 60;

// A piece of a segment. Owned by the allocator; holders keep a pointer until they free it, and read
// but never write the fields.
struct Block {
  void* address = nullptr;
  int64_t bytes = 0;            // at least rounded_bytes(requested); more where no split was made
  int64_t requested_bytes = 0;  // as asked
  int64_t segment = 0;          // number of its segment, counted from 1 in order of acquisition
  int64_t offset = 0;           // within the segment, or its range of addresses
  Tag tag = Tag::temporary;
  PathId path = 0;
  const char* op = "";
  Phase phase = Phase::none;
  bool in_use = false;
  bool small = false;
};

struct BlockInfo {
  int64_t offset = 0, bytes = 0, requested_bytes = 0;
  uint64_t address = 0;
  bool in_use = false;
  // Of blocks in use; a free block shows the defaults.
  Tag tag = Tag::temporary;
  PathId path = 0;
  std::string op;
  Phase phase = Phase::none;  // in which it was made
};
// A segment, or a run of pages without a hole in an expandable one, which then has one of these for
// each run, under one number.
struct SegmentInfo {
  int64_t number = 0, bytes = 0, allocated_bytes = 0;
  int64_t offset = 0;  // of a run, within its range of addresses
  uint64_t address = 0;
  bool small = false;
  bool expandable = false;
  std::vector<BlockInfo> blocks;  // by offset; they tile the segment or run
};

// Whose memory an allocator hands out: the device's, or what the host keeps for it. For messages.
enum class MemorySide : uint8_t { device, host };

// Any thread may call any function; each call is one step under the allocator's lock.
class CachingAllocator {
 public:
  // Borrows the runtime, which must outlive the allocator.
  CachingAllocator(Device device, DeviceRuntime& runtime, MemorySide side = MemorySide::device);
  // Gives every segment back, also those with live blocks.
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // A block of at least `bytes` (0 counts as a request of 512 B: every storage has an address).
  // Tag, path, op and phase come from memory_context(). On a miss: a new segment, or the pages that
  // are missing; if the limit or the device refuses, cached segments (first the fewest that
  // suffice, then all) and free pages (all) are given back and it is tried again; then OutOfMemory.
  // Throws InvalidArgument for negative bytes, OutOfMemory for sizes no device has; a DeviceError
  // of the runtime passes through. A failed call changes nothing but the counters and the cache.
  Block* allocate(int64_t bytes);

  // Takes a block back; nullptr does nothing. The pointer is dead afterwards. A second free of the
  // same block is ignored as long as its memory has not been handed out again.
  void free(Block* block) noexcept;

  // Charges a live block to another tag; its bytes move with it, the allocated total stays. Throws
  // InvalidArgument for a block that is not in use.
  void retag(Block* block, Tag tag);

  // Charges a live block to another module path from now on. Throws InvalidArgument for a block
  // that is not in use and for a path never handed out.
  void set_path(Block* block, PathId path);

  // Gives every wholly free segment, and every wholly free page, back to the device. Live blocks
  // stay where they are.
  void empty_cache();

  // Whether new memory comes in pages of expandable segments; off at first. Best set before the
  // first request. Segments that exist stay what they are, as in PyTorch, and their free pieces go
  // on serving requests. A range has an eighth more addresses than the device has memory; another
  // is made should holes use it up. Throws InvalidArgument where the device has no virtual memory;
  // a request throws DeviceError when the device has no addresses for a range.
  void set_expandable_segments(bool on);
  bool expandable_segments() const;

  // The most bytes that may be reserved; 0 takes the limit away. A limit below what is reserved
  // now acts on the next segment asked for. Throws InvalidArgument for negative bytes.
  void set_memory_limit(int64_t bytes);
  int64_t memory_limit() const;

  MemoryStats stats() const;
  int64_t allocated_bytes() const;
  int64_t reserved_bytes() const;
  int64_t max_allocated_bytes() const;
  int64_t max_reserved_bytes() const;
  // Peaks become the current values; totals go on.
  void reset_peak_stats();
  // Totals, retries and out-of-memory counts become zero; current values and peaks stay.
  void reset_accumulated_stats();

  // Segments by number, runs of one by offset, with the blocks that tile them.
  std::vector<SegmentInfo> snapshot() const;

  // Recording keeps every event from now on, the oldest dropped beyond `capacity` events, each of
  // which takes 80 B of host memory. Starts afresh if it was on; record_events(0) stops and clears.
  // Throws InvalidArgument for a negative capacity or one that host memory cannot hold.
  void record_events(int64_t capacity);
  std::vector<MemoryEvent> events() const;
  // The events and the blocks in use now, for peak_of().
  EventLog event_log() const;

  // PyTorch's memory_summary(): a table of the statistics, sizes in B, KiB, MiB, GiB, and the bytes
  // per tag below it.
  std::string summary() const;

  // Called before each request, outside the lock, with the number of the request, counted from 1
  // since the hook was set, and the bytes asked for; returning true makes that request fail with
  // OutOfMemory. What it throws passes through. For tests of recovery; empty switches it off.
  using FailureHook = std::function<bool(int64_t request, int64_t bytes)>;
  void set_failure_hook(FailureHook hook);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The allocator of a device, made on first use and never destroyed. Throws InvalidArgument without
// such a device.
CachingAllocator& allocator_of(Device device);

// The same for the host memory that goes with a device: pinned on CUDA, counted but not held on
// meta. What SavePolicy::offload takes off the device lies here, so its statistics are the bytes on
// the host; its cached segments stay pinned until empty_cache().
CachingAllocator& host_allocator_of(Device device);

// Bytes that a request of `bytes` occupies, and the segment that a block of `rounded` bytes would
// need on a miss. Both stop growing at the largest multiple of their unit instead of overflowing.
// Throw InvalidArgument for negative bytes.
int64_t rounded_bytes(int64_t bytes);
int64_t segment_bytes_for(int64_t rounded);

// The usual readings under PyTorch's names, for a device.
int64_t memory_allocated(Device device);
int64_t max_memory_allocated(Device device);
int64_t memory_reserved(Device device);
int64_t max_memory_reserved(Device device);
void reset_peak_memory_stats(Device device);
void empty_cache(Device device);
std::string memory_summary(Device device);

// "13.41 MiB": two decimals and binary units; whole bytes below 1 KiB.
std::string format_bytes(int64_t bytes);

}  // namespace headroom
