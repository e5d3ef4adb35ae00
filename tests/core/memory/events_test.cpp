// Tags at the peak, the event log, and the holders of the peak rebuilt from it.
#include "core/memory/events.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>
#include <random>

#include "core/memory/caching_allocator.h"
#include "tests/core/memory/counting_runtime.h"

namespace headroom {
namespace {

using testing::CountingRuntime;
using testing::kGiB;
using testing::kMiB;
using Kind = MemoryEvent::Kind;

struct MemoryRecord : ::testing::Test {
  CountingRuntime device{16 * kGiB};
  CachingAllocator allocator{Device::cuda(), device};

  Block* allocate(int64_t bytes, Tag tag, std::string_view path = "", const char* op = "") {
    const TagScope tags(tag);
    const PathScope paths(path);
    const OpScope ops(op);
    return allocator.allocate(bytes);
  }
  int64_t at_peak(Tag tag) { return allocator.stats().peak_by_tag[static_cast<size_t>(tag)]; }
};

BytesByTag by_tag(const MemoryPeak& peak) {
  BytesByTag out{};
  for (const PeakPart& part : peak.parts) out[static_cast<size_t>(part.tag)] += part.bytes;
  return out;
}

int64_t sum(const BytesByTag& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

TEST_F(MemoryRecord, ChargesABlockToTheTagOfItsScope) {
  Block* weight = allocate(10 * kMiB, Tag::parameter);
  allocate(20 * kMiB, Tag::gradient);
  EXPECT_EQ(weight->tag, Tag::parameter);
  EXPECT_EQ(at_peak(Tag::parameter), 10 * kMiB);
  EXPECT_EQ(at_peak(Tag::gradient), 20 * kMiB);
  allocator.free(weight);
  const MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats.current_by_tag[static_cast<size_t>(Tag::parameter)], 0);
  EXPECT_EQ(sum(stats.current_by_tag), stats[Pool::all].allocated_bytes.current);
}

TEST_F(MemoryRecord, KeepsThePartsOfTheInstantThePeakWasFirstReached) {
  Block* out = allocate(10 * kMiB, Tag::temporary);
  allocator.retag(out, Tag::saved_activation);  // the peak was reached before
  EXPECT_EQ(at_peak(Tag::temporary), 10 * kMiB);
  EXPECT_EQ(at_peak(Tag::saved_activation), 0);
  Block* next = allocate(10 * kMiB, Tag::temporary);
  EXPECT_EQ(at_peak(Tag::temporary), 10 * kMiB);
  EXPECT_EQ(at_peak(Tag::saved_activation), 10 * kMiB);
  allocator.free(next);
  allocate(10 * kMiB, Tag::workspace);  // the same total again is no new peak
  EXPECT_EQ(at_peak(Tag::workspace), 0);
  allocator.retag(out, Tag::other);
  allocator.reset_peak_stats();
  EXPECT_EQ(at_peak(Tag::other), 10 * kMiB);
  EXPECT_EQ(at_peak(Tag::workspace), 10 * kMiB);
  EXPECT_EQ(sum(allocator.stats().peak_by_tag), allocator.max_allocated_bytes());
}

TEST_F(MemoryRecord, RefusesToRetagWhatIsNotLive) {
  Block* block = allocate(kMiB, Tag::temporary);
  allocator.free(block);
  EXPECT_THROW(allocator.retag(block, Tag::other), InvalidArgument);
  EXPECT_THROW(allocator.retag(nullptr, Tag::other), InvalidArgument);
}

TEST_F(MemoryRecord, TellsWhatHappenedInOrder) {
  allocator.record_events(100);
  Block* block = nullptr;
  {
    const PhaseScope phase(Phase::forward);
    block = allocate(30 * kMiB, Tag::temporary, "stem.conv", "conv2d");
  }
  allocator.retag(block, Tag::saved_activation);
  allocator.retag(block, Tag::saved_activation);  // no change, no event
  {
    const PhaseScope phase(Phase::backward);
    allocator.free(block);
  }
  allocator.empty_cache();
  allocator.set_memory_limit(kMiB);
  EXPECT_THROW(allocate(512, Tag::input, "loader", "copy"), OutOfMemory);
  allocator.reset_peak_stats();

  const std::vector<MemoryEvent> events = allocator.events();
  std::vector<Kind> kinds;
  for (const MemoryEvent& event : events) kinds.push_back(event.kind);
  ASSERT_EQ(kinds,
            (std::vector<Kind>{Kind::segment_acquire, Kind::allocate, Kind::retag, Kind::free,
                               Kind::segment_release, Kind::failure, Kind::peak_reset}));
  EXPECT_EQ(events[0].reserved_bytes, 30 * kMiB);
  EXPECT_EQ(events[1].allocated_bytes, 30 * kMiB);
  EXPECT_EQ(path_name(events[1].path), "stem.conv");
  EXPECT_STREQ(events[1].op, "conv2d");
  EXPECT_EQ(events[1].phase, Phase::forward);
  EXPECT_EQ(events[2].previous_tag, Tag::temporary);
  EXPECT_EQ(events[2].tag, Tag::saved_activation);
  // Freed by backward, and still known as what forward made.
  EXPECT_EQ(events[3].phase, Phase::backward);
  EXPECT_STREQ(events[3].op, "conv2d");
  EXPECT_EQ(events[3].allocated_bytes, 0);
  EXPECT_EQ(events[4].reserved_bytes, 0);
  EXPECT_EQ(events[5].bytes, 512);
  EXPECT_STREQ(events[5].op, "copy");
  for (size_t i = 1; i < events.size(); ++i) EXPECT_GE(events[i].time_us, events[i - 1].time_us);

  allocator.record_events(0);
  EXPECT_TRUE(allocator.events().empty());
  EXPECT_THROW(allocator.record_events(-1), InvalidArgument);
  EXPECT_THROW(allocator.record_events(std::numeric_limits<int64_t>::max()), InvalidArgument);
}

TEST_F(MemoryRecord, DropsTheOldestEventsBeyondTheCapacity) {
  allocator.record_events(4);
  std::vector<Block*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(allocate((i + 1) * 512, Tag::temporary));
  const EventLog log = allocator.event_log();
  ASSERT_EQ(log.events.size(), 4u);
  EXPECT_EQ(log.dropped, 3);  // the segment and the first two blocks
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(log.events[static_cast<size_t>(i)].bytes, (i + 3) * 512);
  }
}

TEST_F(MemoryRecord, NamesTheHoldersOfThePeakWithWhatWasThereBefore) {
  Block* weight = allocate(40 * kMiB, Tag::parameter, "fc");
  allocator.record_events(1000);
  Block* act = allocate(60 * kMiB, Tag::temporary, "block.0", "conv2d");
  allocator.retag(act, Tag::saved_activation);
  Block* a = allocate(2 * kMiB, Tag::workspace, "block.1", "conv2d");
  Block* b = allocate(2 * kMiB, Tag::workspace, "block.1", "conv2d");  // the peak
  allocator.free(a);
  allocator.free(weight);
  allocator.retag(act, Tag::other);
  allocator.free(b);
  allocator.free(act);
  allocate(kMiB, Tag::input, "later");

  const MemoryPeak peak = peak_of(allocator.event_log());
  EXPECT_EQ(peak.allocated_bytes, 104 * kMiB);
  EXPECT_EQ(peak.allocated_bytes, allocator.max_allocated_bytes());
  ASSERT_EQ(peak.parts.size(), 3u);
  EXPECT_EQ(peak.parts[0].tag, Tag::saved_activation);
  EXPECT_EQ(path_name(peak.parts[0].path), "block.0");
  EXPECT_STREQ(peak.parts[0].op, "conv2d");
  EXPECT_EQ(peak.parts[0].bytes, 60 * kMiB);
  EXPECT_EQ(peak.parts[1].tag, Tag::parameter);
  EXPECT_EQ(path_name(peak.parts[1].path), "fc");
  EXPECT_EQ(peak.parts[2].bytes, 4 * kMiB);
  EXPECT_EQ(peak.parts[2].blocks, 2);
  EXPECT_EQ(by_tag(peak), allocator.stats().peak_by_tag);
}

TEST_F(MemoryRecord, CountsThePeakFromTheLastReset) {
  allocator.record_events(1000);
  Block* big = allocate(100 * kMiB, Tag::input, "big");
  allocate(10 * kMiB, Tag::parameter, "kept");
  allocator.free(big);
  allocator.reset_peak_stats();
  MemoryPeak peak = peak_of(allocator.event_log());
  EXPECT_EQ(peak.allocated_bytes, 10 * kMiB);
  ASSERT_EQ(peak.parts.size(), 1u);
  EXPECT_EQ(path_name(peak.parts[0].path), "kept");
  allocate(12 * kMiB, Tag::gradient, "new");
  peak = peak_of(allocator.event_log());
  EXPECT_EQ(peak.allocated_bytes, 22 * kMiB);
  EXPECT_EQ(by_tag(peak), allocator.stats().peak_by_tag);
}

TEST_F(MemoryRecord, HasAPeakWithoutAnyEvent) {
  EXPECT_EQ(peak_of(EventLog{}).allocated_bytes, 0);
  Block* block = allocate(3 * kMiB, Tag::buffer, "bn");
  allocator.record_events(10);
  MemoryPeak peak = peak_of(allocator.event_log());
  EXPECT_EQ(peak.event, -1);
  EXPECT_EQ(peak.allocated_bytes, 3 * kMiB);
  allocator.free(block);  // the state before the first event was the highest
  peak = peak_of(allocator.event_log());
  EXPECT_EQ(peak.event, -1);
  EXPECT_EQ(peak.allocated_bytes, 3 * kMiB);
  ASSERT_EQ(peak.parts.size(), 1u);
  EXPECT_EQ(peak.parts[0].tag, Tag::buffer);
}

TEST_F(MemoryRecord, RebuildsEveryPeakOfARandomRunToTheByte) {
  std::mt19937_64 random(5);
  const std::array<std::string, 5> paths = {"a", "a.b", "a.b.c", "d", ""};
  const std::array<const char*, 3> ops = {"conv2d", "relu", ""};
  std::vector<Block*> live;
  for (int i = 0; i < 50; ++i) {
    live.push_back(allocate(static_cast<int64_t>(random() % (5 * kMiB)), Tag::parameter, "base"));
  }
  allocator.reset_peak_stats();
  allocator.record_events(100000);
  for (int request = 0; request < 3000; ++request) {
    const size_t pick = live.empty() ? 0 : random() % live.size();
    const auto tag = static_cast<Tag>(random() % kTagCount);
    const uint64_t dice = random() % 100;
    if (dice < 48 || live.empty()) {
      live.push_back(allocate(static_cast<int64_t>(random() % (5 * kMiB)), tag,
                              paths[random() % paths.size()], ops[random() % ops.size()]));
    } else if (dice < 80) {
      allocator.free(live[pick]);
      live[pick] = live.back();
      live.pop_back();
    } else {
      allocator.retag(live[pick], tag);
    }
    if (request % 500 == 250) allocator.reset_peak_stats();
    if (request % 100 != 0) continue;
    const MemoryPeak peak = peak_of(allocator.event_log());
    ASSERT_EQ(peak.allocated_bytes, allocator.max_allocated_bytes());
    ASSERT_EQ(by_tag(peak), allocator.stats().peak_by_tag);
    ASSERT_EQ(sum(by_tag(peak)), peak.allocated_bytes);
  }
}

TEST_F(MemoryRecord, KeepsThePeakOfTheKeptEventsWhenOthersWereDropped) {
  std::mt19937_64 random(6);
  std::vector<Block*> live;
  allocator.record_events(64);
  for (int request = 0; request < 2000; ++request) {
    if (random() % 2 || live.empty()) {
      live.push_back(allocate(static_cast<int64_t>(random() % (5 * kMiB)), Tag::temporary));
    } else {
      allocator.free(live.back());
      live.pop_back();
    }
  }
  const EventLog log = allocator.event_log();
  ASSERT_EQ(log.events.size(), 64u);
  EXPECT_GT(log.dropped, 0);
  int64_t highest = 0;
  for (const MemoryEvent& event : log.events) highest = std::max(highest, event.allocated_bytes);
  const MemoryPeak peak = peak_of(log);
  EXPECT_GE(peak.allocated_bytes, highest);
  EXPECT_EQ(sum(by_tag(peak)), peak.allocated_bytes);
}

}  // namespace
}  // namespace headroom
