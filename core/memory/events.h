// The record of what an allocator did, and what can be rebuilt from it: who held the memory at the
// instant of the peak.
#pragma once

#include <cstdint>
#include <vector>

#include "core/memory/scopes.h"
#include "core/memory/tag.h"

namespace headroom {

// One change of the allocator's state, kept while recording is on.
struct MemoryEvent {
  enum class Kind : uint8_t {
    allocate,
    free,
    retag,
    segment_acquire,
    segment_release,
    page_map,  // of an expandable range: bytes of pages, at address and offset
    page_unmap,
    failure,    // a request ended in OutOfMemory; bytes is what it asked for
    peak_reset  // reset_peak_stats
  };
  Kind kind = Kind::allocate;
  Tag tag = Tag::temporary;           // after the event
  Tag previous_tag = Tag::temporary;  // retag and free: before it
  Phase phase = Phase::none;
  PathId path = 0;
  const char* op = "";
  int64_t bytes = 0;            // of the block, the segment or the pages
  int64_t requested_bytes = 0;  // of the block, as asked
  uint64_t address = 0;         // of the same; says nothing once it is given back
  int64_t segment = 0;
  int64_t offset = 0;
  int64_t allocated_bytes = 0;  // after the event
  int64_t reserved_bytes = 0;   // after the event
  int64_t time_us = 0;          // of process_time_ns() (core/base/clock.h)
};
const char* name_of(MemoryEvent::Kind kind);

// A block in use, as a report shows it.
struct LiveBlock {
  Tag tag = Tag::temporary;
  PathId path = 0;
  const char* op = "";
  int64_t bytes = 0;
  int64_t segment = 0;
  int64_t offset = 0;
};

// The kept events, oldest first, and the blocks in use after the last of them. With both, the state
// at every kept instant can be rebuilt by undoing events from the end, blocks handed out before
// recording began included.
struct EventLog {
  std::vector<MemoryEvent> events;
  std::vector<LiveBlock> live;  // by (segment, offset)
  int64_t dropped = 0;          // events older than the kept ones, lost to the capacity
};

// The most recent events, in storage reserved once, so that recording never allocates.
class EventRing {
 public:
  // Drops what was kept. capacity, in events, 0 means off. Throws InvalidArgument for a negative
  // one or one that host memory cannot hold.
  void restart(int64_t capacity);
  bool on() const { return capacity_ > 0; }
  void add(const MemoryEvent& event) noexcept;
  std::vector<MemoryEvent> in_order() const;
  int64_t dropped() const { return added_ - static_cast<int64_t>(events_.size()); }

 private:
  int64_t capacity_ = 0;
  int64_t added_ = 0;
  std::vector<MemoryEvent> events_;
};

struct PeakPart {
  Tag tag = Tag::temporary;
  PathId path = 0;
  const char* op = "";
  int64_t bytes = 0;
  int64_t blocks = 0;
};
struct MemoryPeak {
  int64_t allocated_bytes = 0;
  int64_t event = -1;           // index into the log's events; -1: the state before the first
  std::vector<PeakPart> parts;  // one per (tag, path, op), largest first; they sum to the peak
};

// The first instant of the log with the most bytes allocated, counted from the last peak_reset in
// it or from its beginning, and what was live then. Equals the peak of the statistics when
// recording began before that peak did and nothing was dropped since.
MemoryPeak peak_of(const EventLog& log);

}  // namespace headroom
