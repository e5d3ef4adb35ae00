// The event ring, and the peak rebuilt from a log.
#include "core/memory/events.h"

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/error.h"

namespace headroom {
namespace {

static_assert(sizeof(MemoryEvent) == 80, "the header states this size");

int64_t allocated_change(const MemoryEvent& event) {
  switch (event.kind) {
    case MemoryEvent::Kind::allocate:
      return event.bytes;
    case MemoryEvent::Kind::free:
      return -event.bytes;
    default:
      return 0;
  }
}

// Where the most is allocated: an index into the events, -1 for the state before the first.
std::pair<int64_t, int64_t> find_peak(const EventLog& log) {
  int64_t allocated = 0;
  for (const LiveBlock& block : log.live) allocated += block.bytes;
  for (const MemoryEvent& event : log.events) allocated -= allocated_change(event);
  int64_t peak = allocated, at = -1;
  for (size_t i = 0; i < log.events.size(); ++i) {
    const MemoryEvent& event = log.events[i];
    const bool reset = event.kind == MemoryEvent::Kind::peak_reset;
    allocated += allocated_change(event);
    if (reset || allocated > peak) {
      peak = allocated;
      at = static_cast<int64_t>(i);
    }
  }
  return {peak, at};
}

using Place = std::pair<int64_t, int64_t>;  // segment, offset

void undo(const MemoryEvent& event, std::map<Place, LiveBlock>& live) {
  const Place place{event.segment, event.offset};
  switch (event.kind) {
    case MemoryEvent::Kind::allocate:
      live.erase(place);
      break;
    case MemoryEvent::Kind::free:
      live[place] = {event.previous_tag, event.path,    event.op,
                     event.bytes,        event.segment, event.offset};
      break;
    case MemoryEvent::Kind::retag:
      live.at(place).tag = event.previous_tag;
      break;
    default:
      break;
  }
}

}  // namespace

const char* name_of(MemoryEvent::Kind kind) {
  constexpr std::array<const char*, 9> kNames = {
      "allocate", "free",       "retag",   "segment_acquire", "segment_release",
      "page_map", "page_unmap", "failure", "peak_reset"};
  return kNames[static_cast<size_t>(kind)];
}

void EventRing::restart(int64_t capacity) {
  CHECK_ARG(capacity >= 0, "record_events: capacity must be 0 (off) or more, got ", capacity);
  std::vector<MemoryEvent> fresh;
  try {
    fresh.reserve(static_cast<size_t>(capacity));
  } catch (const std::exception&) {
    throw InvalidArgument(detail::concat("record_events: no host memory for ", capacity,
                                         " events of ", sizeof(MemoryEvent), " B"));
  }
  events_ = std::move(fresh);
  capacity_ = capacity;
  added_ = 0;
}

void EventRing::add(const MemoryEvent& event) noexcept {
  if (static_cast<int64_t>(events_.size()) < capacity_) {
    events_.push_back(event);
  } else {
    events_[static_cast<size_t>(added_ % capacity_)] = event;
  }
  ++added_;
}

std::vector<MemoryEvent> EventRing::in_order() const {
  std::vector<MemoryEvent> out;
  out.reserve(events_.size());
  const auto oldest = dropped() > 0 ? static_cast<ptrdiff_t>(added_ % capacity_) : ptrdiff_t{0};
  out.insert(out.end(), events_.begin() + oldest, events_.end());
  out.insert(out.end(), events_.begin(), events_.begin() + oldest);
  return out;
}

MemoryPeak peak_of(const EventLog& log) {
  MemoryPeak out;
  std::tie(out.allocated_bytes, out.event) = find_peak(log);

  std::map<Place, LiveBlock> live;
  for (const LiveBlock& block : log.live) live[{block.segment, block.offset}] = block;
  for (auto i = static_cast<int64_t>(log.events.size()) - 1; i > out.event; --i) {
    undo(log.events[static_cast<size_t>(i)], live);
  }

  std::map<std::tuple<Tag, PathId, std::string_view>, PeakPart> parts;
  for (const auto& [place, block] : live) {
    PeakPart& part = parts[{block.tag, block.path, block.op}];
    part.tag = block.tag;
    part.path = block.path;
    part.op = block.op;
    part.bytes += block.bytes;
    ++part.blocks;
  }
  for (const auto& [key, part] : parts) out.parts.push_back(part);
  std::stable_sort(out.parts.begin(), out.parts.end(),
                   [](const PeakPart& a, const PeakPart& b) { return a.bytes > b.bytes; });
  return out;
}

}  // namespace headroom
