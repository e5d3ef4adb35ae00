// Writing the snapshot.
#include "train/snapshot.h"

#include <algorithm>
#include <compare>
#include <map>
#include <string_view>

#include "train/checkpoint/atomic_file.h"
#include "train/pickle.h"

namespace headroom {
namespace {

// Whose memory it is.
struct Source {
  std::string_view op;
  PathId path = 0;
  Tag tag = Tag::temporary;
  Phase phase = Phase::none;
  auto operator<=>(const Source&) const = default;
};

class SnapshotWriter {
 public:
  explicit SnapshotWriter(const StepRecord& record) : record_(record) {}

  std::string pickle() {
    out_.begin_dict();
    out_.text("segments");
    out_.begin_list();
    for (const SegmentInfo& segment : record_.segments) write(segment);
    out_.end_list();
    out_.text("device_traces");
    out_.begin_list();
    out_.begin_list();
    write_trace();
    out_.end_list();
    out_.end_list();
    write_settings();
    out_.text("external_annotations");
    out_.begin_list();
    out_.end_list();
    out_.end_dict();
    return out_.finish();
  }

 private:
  void entry(std::string_view key, int64_t value) {
    out_.text(key);
    out_.integer(value);
  }
  void address(std::string_view key, uint64_t value) {
    out_.text(key);
    out_.unsigned_integer(value);
  }
  void entry(std::string_view key, std::string_view value) {
    out_.text(key);
    out_.text(value);
  }
  void flag(std::string_view key, bool value) {
    out_.text(key);
    out_.boolean(value);
  }

  void frame(std::string_view name, std::string_view file) {
    out_.begin_dict();
    entry("name", name);
    entry("filename", file);
    entry("line", 0);
    out_.end_dict();
  }

  void frames(const Source& source) {
    out_.text("frames");
    const auto [known, is_new] = frames_.try_emplace(source);
    if (!is_new) {
      out_.recall(known->second);
      return;
    }
    const std::string& path = path_name(source.path);
    out_.begin_list();
    // The viewer prints "file:line:name".
    frame(source.op.empty() ? "(no op)" : source.op, path.empty() ? "(no module)" : path);
    frame(name_of(source.tag), "tag");
    frame(name_of(source.phase), "phase");
    out_.end_list();
    known->second = out_.remember();
  }

  void no_frames() {
    out_.text("frames");
    out_.begin_list();
    out_.end_list();
  }

  void write(const SegmentInfo& segment) {
    int64_t requested = 0;
    for (const BlockInfo& block : segment.blocks) requested += block.requested_bytes;
    out_.begin_dict();
    entry("device", 0);
    address("address", segment.address);
    entry("total_size", segment.bytes);
    entry("allocated_size", segment.allocated_bytes);
    entry("active_size", segment.allocated_bytes);
    entry("requested_size", requested);
    entry("stream", 0);
    entry("segment_type", segment.small ? "small" : "large");
    out_.text("segment_pool_id");
    out_.begin_pair();
    out_.integer(0);
    out_.integer(0);
    out_.end_pair();
    flag("is_expandable", segment.expandable);
    no_frames();
    out_.text("blocks");
    out_.begin_list();
    for (const BlockInfo& block : segment.blocks) write(block);
    out_.end_list();
    out_.end_dict();
  }

  void write(const BlockInfo& block) {
    out_.begin_dict();
    address("address", block.address);
    entry("size", block.bytes);
    entry("requested_size", block.requested_bytes);
    entry("state", block.in_use ? "active_allocated" : "inactive");
    if (block.in_use) {
      frames({block.op, block.path, block.tag, block.phase});
    } else {
      no_frames();
    }
    out_.end_dict();
  }

  void begin_event(std::string_view action, int64_t bytes, int64_t time_us) {
    out_.begin_dict();
    entry("action", action);
    entry("size", bytes);
    entry("stream", 0);
    entry("time_us", time_us);
  }

  void write_segment_event(std::string_view action, const MemoryEvent& event) {
    begin_event(action, event.bytes, event.time_us);
    address("addr", event.address);
    no_frames();
    out_.end_dict();
  }

  void write_block_event(std::string_view action, const MemoryEvent& event) {
    begin_event(action, event.requested_bytes, event.time_us);
    address("addr", event.address);
    frames({event.op, event.path, event.tag, event.phase});
    out_.end_dict();
  }

  void write_failure(const MemoryEvent& event) {
    begin_event("oom", event.requested_bytes, event.time_us);
    // What was reserved then and is not now had to be given back by something.
    entry("device_free",
          std::max<int64_t>(0, record_.free_bytes + reserved_at_end() - event.reserved_bytes));
    frames({event.op, event.path, event.tag, event.phase});
    out_.end_dict();
  }

  int64_t reserved_at_end() const {
    int64_t bytes = 0;
    for (const SegmentInfo& segment : record_.segments) bytes += segment.bytes;
    return bytes;
  }

  void write_trace() {
    for (const MemoryEvent& event : record_.log.events) {
      switch (event.kind) {
        case MemoryEvent::Kind::allocate:
          write_block_event("alloc", event);
          break;
        case MemoryEvent::Kind::free:
          write_block_event("free_requested", event);
          write_block_event("free_completed", event);
          break;
        case MemoryEvent::Kind::segment_acquire:
          write_segment_event("segment_alloc", event);
          break;
        case MemoryEvent::Kind::segment_release:
          write_segment_event("segment_free", event);
          break;
        case MemoryEvent::Kind::page_map:
          write_segment_event("segment_map", event);
          break;
        case MemoryEvent::Kind::page_unmap:
          write_segment_event("segment_unmap", event);
          break;
        case MemoryEvent::Kind::failure:
          write_failure(event);
          break;
        case MemoryEvent::Kind::retag:  // the format knows neither
        case MemoryEvent::Kind::peak_reset:
          break;
      }
    }
    const int64_t end = record_.log.events.empty() ? 0 : record_.log.events.back().time_us;
    begin_event("snapshot", 0, end);
    entry("addr", 0);
    no_frames();
    out_.end_dict();
  }

  // Our allocator works as PyTorch's does with nothing else set.
  void write_settings() {
    out_.text("allocator_settings");
    out_.begin_dict();
    entry("PYTORCH_CUDA_ALLOC_CONF", record_.expandable_segments ? "expandable_segments:True" : "");
    entry("max_split_size", -1);
    flag("expandable_segments", record_.expandable_segments);
    out_.end_dict();
  }

  const StepRecord& record_;
  PickleWriter out_;
  std::map<Source, uint32_t> frames_;  // their numbers in the pickle
};

}  // namespace

std::string snapshot_pickle(const StepRecord& record) { return SnapshotWriter(record).pickle(); }

void write_snapshot(const std::string& path, const StepRecord& record) {
  write_file_atomically(path, snapshot_pickle(record));
}

}  // namespace headroom
