// Recording ranges, and writing the trace.
#include "train/trace.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/base/settings.h"
#include "train/checkpoint/atomic_file.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

// A step of resnet50 has some three thousand ranges; a viewer takes a few hundred thousand events.
constexpr size_t kMaxRanges = size_t{1} << 17;

constexpr size_t kDeepest = 1024;  // ranges inside each other

constexpr int64_t kProcess = 1, kThread = 1;

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Written out one by one: a hundred thousand of them as one object would take a hundred MiB.
struct EventList {
  std::string text;
  void add(const Json& event) { text += (text.empty() ? "" : ",\n") + dumped(event); }
};

double micros(int64_t ns) { return static_cast<double>(ns) / 1000.0; }

Json name_event(const char* what, const std::string& name) {
  return {
      {"ph", "M"}, {"name", what}, {"pid", kProcess}, {"tid", kThread}, {"args", {{"name", name}}}};
}

Json counter(const char* name, int64_t time_us, Json values) {
  return {
      {"ph", "C"}, {"name", name}, {"pid", kProcess}, {"ts", time_us}, {"args", std::move(values)}};
}

// Counters at each point; tags that are never there are left out.
void add_counters(const EventLog& log, EventList& events) {
  const std::vector<TimelinePoint> points = timeline_of(log);
  BytesByTag highest{};
  for (const TimelinePoint& point : points) {
    for (size_t tag = 0; tag < highest.size(); ++tag) {
      highest[tag] = std::max(highest[tag], point.by_tag[tag]);
    }
  }
  for (const TimelinePoint& point : points) {
    if (point.event < 0) continue;
    const MemoryEvent& event = log.events[static_cast<size_t>(point.event)];
    events.add(counter("allocated and cached", event.time_us,
                       {{"allocated", event.allocated_bytes},
                        {"cached", event.reserved_bytes - event.allocated_bytes}}));
    Json by_tag = Json::object();
    for (size_t tag = 0; tag < highest.size(); ++tag) {
      if (highest[tag] > 0) by_tag[name_of(static_cast<Tag>(tag))] = point.by_tag[tag];
    }
    events.add(counter("allocated by tag", event.time_us, std::move(by_tag)));
  }
}

const char* meaning_of_times(Device device) {
  if (device.is_meta()) return "host time of an engine that computes nothing";
  if (!device.is_cuda()) return "host time; the CPU computes meanwhile";
  return settings().launch_blocking
             ? "host time; every launch was waited for, so it is the kernels' time as well"
             : "host time: when work was handed to the GPU, not when the GPU did it";
}

}  // namespace

TraceRecorder::TraceRecorder(Device device, int64_t steps) : device_(device), steps_left_(steps) {
  ranges_.reserve(kMaxRanges);
  open_.reserve(kDeepest);
  next_ = set_range_listener(this);
}

TraceRecorder::~TraceRecorder() {
  set_range_listener(next_);
  allocator_of(device_).record_events(0);
}

void TraceRecorder::on_start(const RunInfo& info) { first_step_ = info.first_step + 1; }

void TraceRecorder::start() {
  recording_ = true;
  allocator_of(device_).record_events(kRecordedEvents);
}

void TraceRecorder::take_memory() {
  memory_.push_back(allocator_of(device_).event_log());
  allocator_of(device_).record_events(0);
}

void TraceRecorder::take_unfinished() {
  if (recording_) take_memory();
}

void TraceRecorder::on_step_begin(int64_t /*step*/) {
  recording_ = false;  // an epoch's end is of no interest
  if (steps_left_ > 0) start();
}

void TraceRecorder::on_step(const StepInfo& /*step*/) {
  ++steps_done_;
  if (!recording_) return;
  take_memory();
  ++steps_recorded_;
  --steps_left_;
}

void TraceRecorder::on_evaluation_begin() {
  // Also right after the last step of the trace.
  if (recording_) {
    start();
  } else {
    ++evaluations_dropped_;
  }
}

void TraceRecorder::on_epoch(const EpochInfo& epoch) {
  if (!recording_ || !epoch.evaluated) return;
  take_memory();
  recording_ = steps_left_ > 0;
}

void TraceRecorder::begin_range(RangeKind kind, const char* name, int64_t number) noexcept {
  if (next_) next_->begin_range(kind, name, number);
  ++depth_;
  if (open_.size() >= kDeepest) return;
  open_.push_back(kNotKept);
  if (!recording_) return;
  if (ranges_.size() >= kMaxRanges) {
    ++ranges_dropped_;
    return;
  }
  open_.back() = static_cast<int64_t>(ranges_.size());
  const MemoryContext& context = memory_context();
  ranges_.push_back({kind, context.phase, context.path, name, number, process_time_ns(), kNotKept});
}

void TraceRecorder::end_range() noexcept {
  if (--depth_ < open_.size()) {
    if (open_.back() != kNotKept) {
      ranges_[static_cast<size_t>(open_.back())].end_ns = process_time_ns();
    }
    open_.pop_back();
  }
  if (next_) next_->end_range();
}

std::string TraceRecorder::json() const {
  int64_t events_dropped = 0;
  for (const EventLog& log : memory_) events_dropped += log.dropped;
  const Json about = {{"device", name_of(device_)},
                      {"times", meaning_of_times(device_)},
                      {"first_step", first_step_},
                      {"steps", steps_recorded_},
                      {"steps_left_out", steps_done_ - steps_recorded_},
                      {"evaluations_left_out", evaluations_dropped_},
                      {"ranges_left_out", ranges_dropped_},
                      {"memory_events_left_out", events_dropped}};
  EventList events;
  events.add(name_event("process_name", detail::concat("train on ", device_)));
  events.add(name_event("thread_name", "training thread, host time"));
  for (const Range& range : ranges_) {
    if (range.end_ns == kNotKept) continue;
    Json arguments = {{"phase", name_of(range.phase)}};
    if (range.path != 0) arguments["module"] = path_name(range.path);
    if (range.kind == RangeKind::step) arguments = {{"number", range.number}};
    events.add({{"ph", "X"},
                {"name", range.name},
                {"cat", name_of(range.kind)},
                {"ts", micros(range.begin_ns)},
                {"dur", micros(range.end_ns - range.begin_ns)},
                {"pid", kProcess},
                {"tid", kThread},
                {"args", std::move(arguments)}});
  }
  for (const EventLog& log : memory_) add_counters(log, events);
  return "{\"displayTimeUnit\":\"ms\",\"otherData\":" + dumped(about) + ",\n\"traceEvents\":[\n" +
         events.text + "\n]}\n";
}

void write_trace(const std::string& path, const TraceRecorder& trace) {
  write_file_atomically(path, trace.json());
}

}  // namespace headroom
