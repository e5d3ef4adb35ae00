// What a person reads: the table of statistics, and the message of an OutOfMemory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

#include "core/memory/allocator_state.h"

namespace headroom {
namespace {

constexpr size_t kModulesInMessage = 10;
constexpr int kTableWidth = 77;

using Out = std::back_insert_iterator<std::string>;

std::string format_count(int64_t count) { return fmt::format("{}", count); }

// "blocks.1.conv1 (392.00 MiB), ...": the modules that hold most.
std::string modules_text(const std::vector<LiveBlock>& live) {
  std::string out;
  for (const auto& [path, bytes] : largest_modules(live, kModulesInMessage)) {
    fmt::format_to(Out(out), "{}{} ({})", out.empty() ? "" : ", ",
                   path.empty() ? "outside any module" : path, format_bytes(bytes));
  }
  return out;
}

// "parameter 102.00 MiB, workspace 32.00 MiB": tags that hold something, in their own order.
std::string tags_in_use(const BytesByTag& bytes) {
  std::string out;
  for (int tag = 0; tag < kTagCount; ++tag) {
    if (bytes[static_cast<size_t>(tag)] == 0) continue;
    fmt::format_to(Out(out), "{}{} {}", out.empty() ? "" : ", ", name_of(static_cast<Tag>(tag)),
                   format_bytes(bytes[static_cast<size_t>(tag)]));
  }
  return out;
}

// "conv2d in blocks.3.convs.1 (forward)"
std::string place_of(const MemoryContext& context) {
  std::string out = *context.op ? context.op : "a request";
  if (context.path != 0) fmt::format_to(Out(out), " in {}", path_name(context.path));
  if (context.phase != Phase::none) fmt::format_to(Out(out), " ({})", name_of(context.phase));
  return out;
}

std::string failure_message(Device device, MemorySide side, const OutOfMemory::Facts& facts,
                            const MemoryStats& stats, const std::vector<LiveBlock>& live,
                            bool expandable, bool injected, const std::string& other_users) {
  const bool is_host = side == MemorySide::host;
  std::string out = fmt::format(
      "out of {} {}: {} asked for {} (block {}, {} {}); ",
      is_host ? "host memory for" : "memory on", name_of(device), place_of(memory_context()),
      format_bytes(facts.requested_bytes), format_bytes(facts.rounded_bytes),
      expandable ? "new pages" : "segment", format_bytes(facts.segment_bytes));
  if (injected) out += "refused by the failure hook; ";
  fmt::format_to(Out(out), "{} allocated, {} reserved, ", format_bytes(facts.allocated_bytes),
                 format_bytes(facts.reserved_bytes));
  if (facts.limit_bytes > 0) {
    fmt::format_to(Out(out), "limit {}, ", format_bytes(facts.limit_bytes));
  } else {
    out += "no limit, ";
  }
  fmt::format_to(Out(out), "{} has {} free of {}", is_host ? "host" : "device",
                 format_bytes(facts.device_free_bytes), format_bytes(facts.device_total_bytes));
  if (!other_users.empty()) out += ", " + other_users;
  if (!live.empty()) {
    fmt::format_to(Out(out), "; by tag: {}; largest modules: {}", tags_in_use(stats.current_by_tag),
                   modules_text(live));
  }
  return out;
}

// Whether the request failed although what limit and device allow, less what is allocated, would do
// for it, also if both are rounded up to pages of the pool.
bool is_fragmentation(const OutOfMemory::Facts& facts) {
  const int64_t device_bytes = facts.reserved_bytes + facts.device_free_bytes;
  const int64_t allowed_bytes =
      facts.limit_bytes > 0 ? std::min(facts.limit_bytes, device_bytes) : device_bytes;
  const int64_t page =
      facts.rounded_bytes <= kSmallLimitBytes ? kSmallSegmentBytes : kLargeSegmentBytes;
  return facts.reserved_bytes > facts.allocated_bytes &&
         round_up(facts.rounded_bytes, page) <=
             allowed_bytes - round_up(facts.allocated_bytes, page);
}

void add_rule(std::string& out, char mark) {
  out.append(kTableWidth, mark);
  out += '\n';
}

void add_row(std::string& out, const char* name, const Stat& stat, std::string (*format)(int64_t)) {
  fmt::format_to(Out(out), " {:<21} | {:>11} | {:>11} | {:>11} | {:>11}\n", name,
                 format(stat.current), format(stat.peak), format(stat.total_allocated),
                 format(stat.total_freed));
}

struct SummaryRow {
  const char* name;
  Stat PoolStats::*stat;
  std::string (*format)(int64_t);
};

constexpr SummaryRow kSummaryRows[] = {
    {"Allocated memory", &PoolStats::allocated_bytes, format_bytes},
    {"Active memory", &PoolStats::active_bytes, format_bytes},
    {"Requested memory", &PoolStats::requested_bytes, format_bytes},
    {"GPU reserved memory", &PoolStats::reserved_bytes, format_bytes},
    {"Non-releasable memory", &PoolStats::inactive_split_bytes, format_bytes},
    {"Allocations", &PoolStats::allocation_count, format_count},
    {"Active allocs", &PoolStats::active_count, format_count},
    {"GPU reserved segments", &PoolStats::segment_count, format_count},
    {"Non-releasable allocs", &PoolStats::inactive_split_count, format_count},
};

}  // namespace

std::vector<ModuleBytes> largest_modules(const std::vector<LiveBlock>& live, size_t most) {
  std::map<std::string, int64_t> by_path;
  for (const LiveBlock& block : live) by_path[path_name(block.path)] += block.bytes;
  std::vector<ModuleBytes> out;
  for (const auto& [path, bytes] : by_path) out.push_back({path, bytes});
  std::stable_sort(out.begin(), out.end(),
                   [](const ModuleBytes& a, const ModuleBytes& b) { return a.bytes > b.bytes; });
  if (out.size() > most) out.resize(most);
  return out;
}

std::string format_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.996 would print as 1024.00, so it already belongs to the next unit.
  while (std::abs(value) >= 1023.995 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string CachingAllocator::summary() const {
  const MemoryStats stats = this->stats();
  std::string out;
  add_rule(out, '=');
  fmt::format_to(Out(out), " Headroom memory summary, {} {}\n",
                 impl_->side == MemorySide::host ? "host memory for" : "device",
                 name_of(impl_->device));
  add_rule(out, '-');
  fmt::format_to(Out(out), " OOMs: {:<12} | retries: {}\n", stats.out_of_memory, stats.retries);
  add_rule(out, '=');
  fmt::format_to(Out(out), " {:<21} | {:>11} | {:>11} | {:>11} | {:>11}\n", "Metric", "Cur Usage",
                 "Peak Usage", "Tot Alloc", "Tot Freed");
  for (const SummaryRow& row : kSummaryRows) {
    add_rule(out, '-');
    add_row(out, row.name, stats[Pool::all].*row.stat, row.format);
    add_row(out, "      from large pool", stats[Pool::large].*row.stat, row.format);
    add_row(out, "      from small pool", stats[Pool::small].*row.stat, row.format);
  }
  add_rule(out, '=');
  fmt::format_to(Out(out), " {:<21} | {:>11} | {:>11}\n", "Tag", "Cur Usage", "At Peak");
  add_rule(out, '-');
  for (size_t tag = 0; tag < kTagCount; ++tag) {
    fmt::format_to(Out(out), " {:<21} | {:>11} | {:>11}\n", name_of(static_cast<Tag>(tag)),
                   format_bytes(stats.current_by_tag[tag]), format_bytes(stats.peak_by_tag[tag]));
  }
  add_rule(out, '=');
  return out;
}

AllocationFailure CachingAllocator::Impl::out_of_memory(int64_t requested, bool injected) {
  ++stats.out_of_memory;
  const MemoryContext& context = memory_context();
  record({.kind = MemoryEvent::Kind::failure,
          .tag = context.tag,
          .previous_tag = context.tag,
          .phase = context.phase,
          .path = context.path,
          .op = context.op,
          .bytes = requested,
          .requested_bytes = requested});

  const MemoryInfo device_memory = runtime.memory_info();
  OutOfMemory::Facts facts;
  facts.requested_bytes = requested;
  facts.rounded_bytes = rounded_bytes(requested);
  facts.segment_bytes =
      expandable ? missing_bytes(facts.rounded_bytes, facts.rounded_bytes <= kSmallLimitBytes)
                 : segment_bytes_for(facts.rounded_bytes);
  facts.allocated_bytes = stats[Pool::all].allocated_bytes.current;
  facts.reserved_bytes = reserved();
  facts.limit_bytes = limit_bytes;
  facts.device_free_bytes = device_memory.free_bytes;
  facts.device_total_bytes = device_memory.total_bytes;

  // Where a limit of our own refused, others are not to blame.
  const bool is_full = !injected && facts.segment_bytes <= effective_limit() - reserved();
  std::vector<LiveBlock> live = live_blocks();
  std::string message = failure_message(device, side, facts, stats, live, expandable, injected,
                                        is_full ? runtime.describe_other_users() : std::string());
  const int64_t largest = std::max(free_small.largest_bytes(), free_large.largest_bytes());
  fmt::format_to(Out(message), "; {} are free inside reserved segments (largest piece {})",
                 format_bytes(facts.reserved_bytes - facts.allocated_bytes), format_bytes(largest));
  if (!injected && limit_bytes > 0 && limit_bytes < kSmallSegmentBytes) {
    fmt::format_to(Out(message),
                   "; a limit below {}, the smallest segment, holds nothing: a size without a unit "
                   "is bytes",
                   format_bytes(kSmallSegmentBytes));
  }
  if (side == MemorySide::device && !injected && !expandable && runtime.page_granularity() > 0 &&
      is_fragmentation(facts)) {
    message +=
        "; with what is not reserved yet that is enough, but not in one piece: expandable "
        "segments (train --expandable-segments, set_expandable_segments(true)) avoid most "
        "of such fragmentation";
  }
  return {message, facts, device, context, std::move(live)};
}

}  // namespace headroom
