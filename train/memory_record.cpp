// Recording a step, and rebuilding states from its events.
#include "train/memory_record.h"

#include <algorithm>
#include <map>

namespace headroom {
namespace {

// Applies an event to the bytes by tag, forwards (+1) or backwards (-1).
void apply_event(const MemoryEvent& event, int direction, BytesByTag& bytes) {
  const auto at = [&](Tag tag) -> int64_t& { return bytes[static_cast<size_t>(tag)]; };
  switch (event.kind) {
    case MemoryEvent::Kind::allocate:
      at(event.tag) += direction * event.bytes;
      break;
    case MemoryEvent::Kind::free:
      at(event.previous_tag) -= direction * event.bytes;
      break;
    case MemoryEvent::Kind::retag:
      at(event.previous_tag) -= direction * event.bytes;
      at(event.tag) += direction * event.bytes;
      break;
    default:
      break;
  }
}

bool changes_bytes(const MemoryEvent& event) {
  return event.kind == MemoryEvent::Kind::allocate || event.kind == MemoryEvent::Kind::free ||
         event.kind == MemoryEvent::Kind::retag;
}

}  // namespace

StepRecorder::~StepRecorder() { allocator_of(device_).record_events(0); }

void StepRecorder::on_start(const RunInfo& info) {
  from_step_ = std::min(info.first_step + 2, info.total_steps);
}

void StepRecorder::on_step_begin(int64_t step) {
  begun_ = step;
  allocator_of(device_).record_events(kRecordedEvents);
}

// A failure there is of interest as well.
void StepRecorder::on_evaluation_begin() { allocator_of(device_).record_events(kRecordedEvents); }

void StepRecorder::on_step(const StepInfo& step) {
  if (step.step < from_step_) return;
  int64_t highest = 0;
  for (const MemoryEvent& event : allocator_of(device_).events()) {
    highest = std::max(highest, event.allocated_bytes);
  }
  if (!record_ || highest > record_->peak.allocated_bytes) record_ = take(step.step);
}

StepRecord StepRecorder::unfinished() const { return take(begun_); }

StepRecord StepRecorder::take(int64_t step) const {
  const CachingAllocator& allocator = allocator_of(device_);
  StepRecord record;
  record.step = step;
  record.log = allocator.event_log();
  record.segments = allocator.snapshot();
  record.expandable_segments = allocator.expandable_segments();
  record.peak = peak_of(record.log);
  const int64_t limit = allocator.memory_limit();
  record.free_bytes = limit > 0 ? std::max<int64_t>(0, limit - allocator.reserved_bytes())
                                : runtime_of(device_).memory_info().free_bytes;
  return record;
}

StepRecord record_at(const AllocationFailure& failure, StepRecord unfinished) {
  const OutOfMemory::Facts& facts = failure.facts();
  std::vector<MemoryEvent>& events = unfinished.log.events;
  const auto is_it = [&](const MemoryEvent& event) {
    return event.kind == MemoryEvent::Kind::failure && event.bytes == facts.requested_bytes &&
           event.allocated_bytes == facts.allocated_bytes && event.path == failure.context().path;
  };
  const auto behind = std::find_if(events.rbegin(), events.rend(), is_it).base();
  events.erase(behind, events.end());
  if (events.empty()) {
    MemoryEvent event;
    event.kind = MemoryEvent::Kind::failure;
    event.phase = failure.context().phase;
    event.path = failure.context().path;
    event.op = failure.context().op;
    event.bytes = event.requested_bytes = facts.requested_bytes;
    event.allocated_bytes = facts.allocated_bytes;
    event.reserved_bytes = facts.reserved_bytes;
    events.push_back(event);
  }
  unfinished.log.live = failure.live();
  unfinished.peak = failure.held();
  unfinished.peak.event = static_cast<int64_t>(events.size()) - 1;
  return unfinished;
}

std::vector<TimelinePoint> timeline_of(const EventLog& log) {
  TimelinePoint now;
  for (const LiveBlock& block : log.live) {
    now.by_tag[static_cast<size_t>(block.tag)] += block.bytes;
  }
  for (auto event = log.events.rbegin(); event != log.events.rend(); ++event) {
    apply_event(*event, -1, now.by_tag);
  }
  if (!log.events.empty()) now.reserved_bytes = log.events.front().reserved_bytes;
  std::vector<TimelinePoint> out = {now};
  for (size_t i = 0; i < log.events.size(); ++i) {
    const MemoryEvent& event = log.events[i];
    now.reserved_bytes = event.reserved_bytes;
    if (!changes_bytes(event)) continue;
    apply_event(event, 1, now.by_tag);
    now.event = static_cast<int64_t>(i);
    out.push_back(now);
  }
  return out;
}

std::vector<LayerRow> layers_at_peak(const MemoryPeak& peak) {
  std::map<PathId, LayerRow> rows;
  for (const PeakPart& part : peak.parts) {
    LayerRow& row = rows[part.path];
    row.path = path_name(part.path);
    row.by_tag[static_cast<size_t>(part.tag)] += part.bytes;
    row.total_bytes += part.bytes;
  }
  std::vector<LayerRow> out;
  for (auto& [path, row] : rows) out.push_back(std::move(row));
  std::stable_sort(out.begin(), out.end(), [](const LayerRow& a, const LayerRow& b) {
    return a.total_bytes > b.total_bytes;
  });
  return out;
}

}  // namespace headroom
