// Expandable segments: when they may be switched on and what that acts on, what events and messages
// say of them, and that the CPU's pages are real.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/memory/caching_allocator.h"
#include "tests/core/memory/counting_runtime.h"

namespace headroom {
namespace {

using testing::CountingRuntime;
using testing::kGiB;
using testing::kKiB;
using testing::kMiB;
using Kind = MemoryEvent::Kind;

// What the failure says; "served" if there is none.
std::string failure_of(CachingAllocator& allocator, int64_t bytes) {
  try {
    allocator.free(allocator.allocate(bytes));
  } catch (const OutOfMemory& error) {
    return error.what();
  }
  return "served";
}

struct ExpandableReadings : ::testing::Test {
  ExpandableReadings() { allocator.set_expandable_segments(true); }

  CountingRuntime device{4 * kGiB};
  CachingAllocator allocator{Device::cuda(), device};
};

TEST(ExpandableSegmentsSetting, IsRefusedWhereTheDeviceCannot) {
  CountingRuntime device(kGiB);
  CachingAllocator allocator(Device::cuda(), device);
  const auto refusal = [&] {
    try {
      allocator.set_expandable_segments(true);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("taken");
  };
  device.granularity = 0;
  EXPECT_EQ(refusal(),
            "expandable segments: cuda has no virtual memory whose pages could be mapped");
  device.granularity = 3 * kMiB;
  EXPECT_EQ(refusal(),
            "expandable segments: need pages of 2.00 MiB, but cuda has pages of "
            "3.00 MiB");
  EXPECT_FALSE(allocator.expandable_segments());
  allocator.set_expandable_segments(false);
  device.granularity = 64 * kKiB;
  EXPECT_EQ(refusal(), "taken");
  EXPECT_TRUE(allocator.expandable_segments());
}

TEST(ExpandableSegmentsSetting, ActsOnNewMemoryAloneWhenItChanges) {
  CountingRuntime device(kGiB);
  CachingAllocator allocator(Device::cuda(), device);
  Block* plain = allocator.allocate(40 * kMiB);
  Block* pinned = allocator.allocate(30 * kMiB);
  allocator.set_expandable_segments(true);
  allocator.free(plain);
  EXPECT_EQ(allocator.allocate(40 * kMiB)->segment, 1);  // a cached segment serves as before
  Block* paged = allocator.allocate(40 * kMiB);
  EXPECT_EQ(paged->segment, 3);
  const std::vector<SegmentInfo> segments = allocator.snapshot();
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_FALSE(segments[0].expandable || segments[1].expandable);
  EXPECT_TRUE(segments[2].expandable);

  allocator.set_expandable_segments(false);
  allocator.free(paged);
  paged = allocator.allocate(35 * kMiB);  // so do free pages
  EXPECT_EQ(paged->segment, 3);
  allocator.free(paged);
  EXPECT_EQ(allocator.allocate(50 * kMiB)->segment, 4);
  EXPECT_FALSE(allocator.snapshot().back().expandable);
  allocator.free(pinned);
  allocator.empty_cache();
  EXPECT_EQ(allocator.reserved_bytes(), 90 * kMiB);
  EXPECT_EQ(device.held_bytes, 90 * kMiB);
}

TEST_F(ExpandableReadings, ARetryTakesWholeSegmentsFirstAndPagesWhereTheyAreNotEnough) {
  allocator.free(allocator.allocate(60 * kMiB));
  allocator.set_expandable_segments(false);
  Block* plain = allocator.allocate(100 * kMiB);
  allocator.free(plain);
  allocator.set_memory_limit(200 * kMiB);
  allocator.free(allocator.allocate(110 * kMiB));  // the plain one suffices
  EXPECT_EQ(allocator.reserved_bytes(), 170 * kMiB);
  allocator.allocate(150 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), 150 * kMiB);
  EXPECT_EQ(allocator.stats().retries, 2);
}

TEST_F(ExpandableReadings, EventsAndPeakTellOfPages) {
  allocator.record_events(100);
  {
    const TagScope tag(Tag::parameter);
    allocator.allocate(10 * kMiB);
  }
  Block* big = allocator.allocate(50 * kMiB);
  allocator.free(big);
  allocator.empty_cache();
  const EventLog log = allocator.event_log();
  std::vector<Kind> kinds;
  int64_t mapped = 0;
  for (const MemoryEvent& event : log.events) {
    kinds.push_back(event.kind);
    if (event.kind == Kind::page_map) mapped += event.bytes;
    if (event.kind == Kind::page_unmap) mapped -= event.bytes;
    EXPECT_EQ(event.reserved_bytes, mapped);
  }
  EXPECT_EQ(kinds, (std::vector<Kind>{Kind::page_map, Kind::allocate, Kind::page_map,
                                      Kind::allocate, Kind::free, Kind::page_unmap}));
  EXPECT_EQ(log.events[2].offset, 20 * kMiB);
  EXPECT_EQ(log.events[2].bytes, 40 * kMiB);
  EXPECT_EQ(log.events[5].offset, 20 * kMiB);
  EXPECT_STREQ(name_of(Kind::page_map), "page_map");
  EXPECT_STREQ(name_of(Kind::page_unmap), "page_unmap");
  const MemoryPeak peak = peak_of(log);
  EXPECT_EQ(peak.allocated_bytes, 60 * kMiB);
  ASSERT_EQ(peak.parts.size(), 2u);
  EXPECT_EQ(peak.parts[1].tag, Tag::parameter);
}

TEST_F(ExpandableReadings, AFailureNamesThePagesThatWereMissing) {
  allocator.allocate(30 * kMiB);
  allocator.set_memory_limit(60 * kMiB);
  const std::string message = failure_of(allocator, 40 * kMiB);
  // 10 of the 40 MiB are free at the end of the second page.
  EXPECT_NE(message.find("(block 40.00 MiB, new pages 40.00 MiB)"), std::string::npos) << message;
  EXPECT_EQ(message.find("set_expandable_segments"), std::string::npos) << message;
}

TEST(FragmentationMessage, SuggestsExpandableSegmentsWhereTheRestWouldDo) {
  CountingRuntime device(kGiB);
  CachingAllocator allocator(Device::cuda(), device);
  const std::string hint = "set_expandable_segments(true)";
  std::vector<Block*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocator.allocate(10 * kMiB - 512));
  for (size_t i = 0; i < blocks.size(); i += 2) allocator.free(blocks[i]);
  allocator.set_memory_limit(100 * kMiB);  // all of it reserved, half of it allocated
  const std::string fragmented = failure_of(allocator, 15 * kMiB);
  EXPECT_NE(
      fragmented.find("50.00 MiB are free inside reserved segments (largest piece 10.00 MiB); "
                      "with what is not reserved yet that is enough, but not in one piece: "
                      "expandable segments (train --expandable-segments, "),
      std::string::npos)
      << fragmented;
  EXPECT_NE(fragmented.find(hint), std::string::npos) << fragmented;
  // No arrangement would do, so there is nothing to suggest.
  EXPECT_EQ(failure_of(allocator, 60 * kMiB).find(hint), std::string::npos);
  device.granularity = 0;
  EXPECT_EQ(failure_of(allocator, 15 * kMiB).find(hint), std::string::npos);
  device.granularity = 2 * kMiB;
  allocator.set_failure_hook([](int64_t, int64_t) { return true; });
  EXPECT_EQ(failure_of(allocator, 15 * kMiB).find(hint), std::string::npos);
}

// Pages of the process that are in memory.
int64_t resident_bytes(void* begin, int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<unsigned char> resident(static_cast<size_t>(bytes / page));
  EXPECT_EQ(mincore(begin, static_cast<size_t>(bytes), resident.data()), 0);
  int64_t out = 0;
  for (const unsigned char flags : resident) out += (flags & 1) * page;
  return out;
}

TEST(ExpandableSegmentsCpu, GiveTheirMemoryBackToTheSystem) {
  CachingAllocator allocator(Device::cpu(), runtime_of(Device::cpu()));
  allocator.set_expandable_segments(true);
  Block* block = allocator.allocate(60 * kMiB);
  void* begin = block->address;
  std::memset(begin, 1, 60 * kMiB);
  EXPECT_EQ(resident_bytes(begin, 60 * kMiB), 60 * kMiB);
  allocator.free(block);
  Block* kept = allocator.allocate(10 * kMiB);  // on the first of the three pages
  ASSERT_EQ(kept->address, begin);
  allocator.empty_cache();
  EXPECT_EQ(resident_bytes(begin, 60 * kMiB), 20 * kMiB);
  block = allocator.allocate(45 * kMiB);
  std::memset(block->address, 2, 45 * kMiB);
  EXPECT_EQ(static_cast<char*>(block->address) - static_cast<char*>(begin), 10 * kMiB);
  EXPECT_EQ(static_cast<char*>(kept->address)[10 * kMiB - 1], 1);
}

TEST(ExpandableSegmentsCpu, BlocksInUseNeverShareAByte) {
  CachingAllocator allocator(Device::cpu(), runtime_of(Device::cpu()));
  allocator.set_expandable_segments(true);
  allocator.set_memory_limit(160 * kMiB);
  std::mt19937_64 random(9);
  struct Filled {
    Block* block;
    unsigned char value;
  };
  std::vector<Filled> live;
  const auto still_there = [](const Filled& filled) {
    const auto* bytes = static_cast<const unsigned char*>(filled.block->address);
    return bytes[0] == filled.value &&
           std::memcmp(bytes, bytes + 1, static_cast<size_t>(filled.block->bytes) - 1) == 0;
  };
  int failures = 0;
  for (int round = 0; round < 600; ++round) {
    const bool is_small = random() % 3 != 0;
    const auto most = static_cast<uint64_t>(is_small ? 2 * kMiB : 30 * kMiB);
    const auto value = static_cast<unsigned char>(random());
    try {
      Block* block = allocator.allocate(static_cast<int64_t>(random() % most));
      std::memset(block->address, value, static_cast<size_t>(block->bytes));
      live.push_back({block, value});
    } catch (const OutOfMemory&) {
      ++failures;
    }
    while (!live.empty() && random() % 100 < 47) {
      const size_t pick = random() % live.size();
      ASSERT_TRUE(still_there(live[pick])) << "round " << round;
      allocator.free(live[pick].block);
      live[pick] = live.back();
      live.pop_back();
    }
    if (round % 50 == 0) allocator.empty_cache();
  }
  for (const Filled& filled : live) ASSERT_TRUE(still_there(filled));
  EXPECT_GT(failures, 0);
  EXPECT_GT(allocator.stats().retries, 0);
}

}  // namespace
}  // namespace headroom
