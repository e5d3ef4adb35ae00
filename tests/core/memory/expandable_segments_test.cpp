// Expandable segments: where pages are mapped, which are given back, what a failure leaves behind,
// and what the readings say.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <set>
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

struct ExpandableSegments : ::testing::Test {
  ExpandableSegments() { allocator.set_expandable_segments(true); }
  ~ExpandableSegments() override { EXPECT_EQ(device.bad_calls, 0); }

  std::string failure(int64_t bytes) {
    try {
      allocator.free(allocator.allocate(bytes));
    } catch (const OutOfMemory& error) {
      return error.what();
    }
    return "served";
  }
  // The pages of the device that blocks in use touch.
  std::set<uint64_t> pages_in_use() const {
    std::set<uint64_t> out;
    for (const SegmentInfo& segment : allocator.snapshot()) {
      for (const BlockInfo& block : segment.blocks) {
        if (!block.in_use) continue;
        const auto last = block.address + static_cast<uint64_t>(block.bytes) - 1;
        const auto first = std::prev(device.pages.upper_bound(block.address));
        for (auto page = first; page != device.pages.end() && page->first <= last; ++page) {
          out.insert(page->first);
        }
      }
    }
    return out;
  }

  CountingRuntime device{4 * kGiB};
  CachingAllocator allocator{Device::cuda(), device};
};

TEST_F(ExpandableSegments, AreRangesOfAnEighthMoreThanTheDeviceHas) {
  EXPECT_EQ(device.range_bytes, 0);
  const Block* large = allocator.allocate(30 * kMiB);
  const int64_t pages = (4 * kGiB / 8 * 9 + 20 * kMiB - 1) / (20 * kMiB);
  EXPECT_EQ(device.range_bytes, pages * 20 * kMiB);
  const Block* small = allocator.allocate(512);
  EXPECT_EQ(device.range_bytes, pages * 20 * kMiB + 4 * kGiB / 8 * 9);
  EXPECT_EQ(large->segment, 1);
  EXPECT_EQ(small->segment, 2);
  EXPECT_EQ(allocator.reserved_bytes(), 42 * kMiB);
  EXPECT_EQ(device.held_bytes, 42 * kMiB);
  EXPECT_EQ(device.pages.size(), 3u);
}

TEST_F(ExpandableSegments, SplitEveryBlockDownTo512Bytes) {
  const Block* block = allocator.allocate(11 * kMiB + 512);
  EXPECT_EQ(block->bytes, 11 * kMiB + 512);
  EXPECT_EQ(allocator.allocate(9 * kMiB - 512)->offset, 11 * kMiB + 512);
  EXPECT_EQ(allocator.reserved_bytes(), 20 * kMiB);
}

TEST_F(ExpandableSegments, AGrowingRequestTakesThePagesThatItLacks) {
  Block* block = allocator.allocate(30 * kMiB);
  for (int64_t mib = 35; mib <= 300; mib += 5) {
    allocator.free(block);
    block = allocator.allocate(mib * kMiB);
    EXPECT_EQ(block->offset, 0);
    EXPECT_EQ(allocator.reserved_bytes(), (mib + 19) / 20 * 20 * kMiB);
  }
  EXPECT_EQ(allocator.max_reserved_bytes(), 300 * kMiB);
  EXPECT_EQ(allocator.stats().retries, 0);
}

TEST_F(ExpandableSegments, PagesGoIntoHolesBeforeTheyGoToTheEnd) {
  Block* block[5];
  for (Block*& b : block) b = allocator.allocate(20 * kMiB);
  allocator.free(block[1]);
  allocator.free(block[2]);
  allocator.empty_cache();
  EXPECT_EQ(allocator.reserved_bytes(), 60 * kMiB);
  EXPECT_EQ(allocator.allocate(50 * kMiB)->offset, 100 * kMiB);
  EXPECT_EQ(allocator.allocate(30 * kMiB)->offset, 20 * kMiB);
  // The rest of the hole's second page, and no new one.
  EXPECT_EQ(allocator.allocate(10 * kMiB)->offset, 50 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), 160 * kMiB);
}

TEST_F(ExpandableSegments, ARequestJoinsFreePiecesAcrossAHole) {
  Block* block[4];
  for (Block*& b : block) b = allocator.allocate(25 * kMiB);  // five pages
  allocator.free(block[1]);                                   // [25, 50): one whole page, [40, ..)
  allocator.empty_cache();                                    // gives none: 40 to 60 is in use
  EXPECT_EQ(allocator.reserved_bytes(), 100 * kMiB);
  allocator.free(block[2]);  // [25, 75): the page of [40, 60)
  allocator.empty_cache();
  EXPECT_EQ(allocator.reserved_bytes(), 80 * kMiB);
  ASSERT_EQ(allocator.snapshot().size(), 2u);
  EXPECT_EQ(allocator.snapshot()[1].offset, 60 * kMiB);
  const Block* joined = allocator.allocate(45 * kMiB);
  EXPECT_EQ(joined->offset, 25 * kMiB);
  EXPECT_EQ(joined->bytes, 45 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), 100 * kMiB);
  EXPECT_EQ(allocator.snapshot().size(), 1u);
}

TEST_F(ExpandableSegments, APieceThatCanGrowIsLeftToARequestThatHasTo) {
  Block* first = allocator.allocate(30 * kMiB);
  Block* wall = allocator.allocate(2 * kMiB);  // [30, 32)
  Block* end = allocator.allocate(28 * kMiB);  // [32, 60), the last of the mapped pages
  allocator.free(first);
  allocator.free(end);
  // 28 MiB would fit better, but can grow; 30 MiB cannot.
  EXPECT_EQ(allocator.allocate(20 * kMiB)->offset, 0);
  EXPECT_EQ(allocator.allocate(40 * kMiB)->offset, wall->offset + wall->bytes);
  EXPECT_EQ(allocator.reserved_bytes(), 80 * kMiB);
}

TEST_F(ExpandableSegments, EmptyCacheGivesEveryWhollyFreePageBackAndNoOther) {
  std::mt19937_64 random(5);
  std::vector<Block*> live;
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 30; ++i) {
      const bool is_small = random() % 2 == 0;
      const auto most = static_cast<uint64_t>(is_small ? kMiB : 15 * kMiB);
      live.push_back(allocator.allocate(static_cast<int64_t>(random() % most)));
    }
    std::shuffle(live.begin(), live.end(), random);
    for (int i = 0; i < 28; ++i) {
      allocator.free(live.back());
      live.pop_back();
    }
    const std::set<uint64_t> expected = pages_in_use();
    allocator.empty_cache();
    std::set<uint64_t> kept;
    for (const auto& [address, bytes] : device.pages) kept.insert(address);
    ASSERT_EQ(kept, expected) << "round " << round;
    ASSERT_EQ(allocator.reserved_bytes(), device.held_bytes);
    // What is left beside live blocks is what cannot be given back.
    const PoolStats all = allocator.stats()[Pool::all];
    ASSERT_EQ(all.inactive_split_bytes.current,
              all.reserved_bytes.current - all.allocated_bytes.current);
  }
  for (Block* block : live) allocator.free(block);
  EXPECT_EQ(allocator.stats()[Pool::all].inactive_split_bytes.current, 0);
  EXPECT_EQ(allocator.stats()[Pool::all].inactive_split_count.current, 0);
  allocator.empty_cache();
  EXPECT_TRUE(device.pages.empty());
  EXPECT_TRUE(allocator.snapshot().empty());
  EXPECT_EQ(allocator.stats()[Pool::all].segment_count.current, 0);
}

TEST_F(ExpandableSegments, ARetryGivesFreePagesBackBeforeARequestFails) {
  Block* kept = allocator.allocate(2 * kMiB);
  Block* freed = allocator.allocate(100 * kMiB);
  Block* wall = allocator.allocate(30 * kMiB);
  allocator.free(freed);  // [2, 102): pages from 20 to 100
  allocator.set_memory_limit(200 * kMiB);
  // Behind the wall 8 MiB are free; 122 more need seven pages, and 60 MiB stay for the other
  // blocks.
  EXPECT_EQ(allocator.allocate(130 * kMiB)->offset, 132 * kMiB);
  EXPECT_EQ(allocator.stats().retries, 1);
  EXPECT_EQ(allocator.reserved_bytes(), 200 * kMiB);
  EXPECT_NE(failure(30 * kMiB), "served");
  EXPECT_EQ(allocator.stats().retries, 1);  // there was nothing to give back
  EXPECT_EQ(allocator.stats().out_of_memory, 1);
  EXPECT_EQ(allocator.reserved_bytes(), 200 * kMiB);
  EXPECT_TRUE(kept->in_use && wall->in_use);
}

// [0, 20) and [80, 100) MiB are in use, [20, 60) is free, [60, 80) has no page.
struct HoledRange : ExpandableSegments {
  HoledRange() {
    Block* block[5];
    for (Block*& b : block) b = allocator.allocate(20 * kMiB);
    for (const int i : {1, 2, 3}) allocator.free(block[i]);
    allocator.empty_cache();
    allocator.free(allocator.allocate(40 * kMiB));
  }
};

TEST_F(HoledRange, AFailureHalfWayThroughSeveralPagesLeaksNone) {
  const int64_t reserved = allocator.reserved_bytes();
  const auto pages = device.pages;
  // 200 MiB lack ten pages behind the last block. The n-th one fails.
  for (int64_t n = 0; n < 10; ++n) {
    device.pages_until_throw = n;
    EXPECT_THROW(allocator.allocate(200 * kMiB), DeviceError) << n;
    EXPECT_EQ(device.pages, pages) << n;
    EXPECT_EQ(allocator.reserved_bytes(), reserved) << n;
  }
  device.pages_until_throw = -1;
  const MemoryStats before = allocator.stats();
  Block* block = allocator.allocate(200 * kMiB);
  EXPECT_EQ(block->bytes, 200 * kMiB);
  EXPECT_EQ(allocator.stats()[Pool::all].allocated_bytes.current,
            before[Pool::all].allocated_bytes.current + 200 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), device.held_bytes);
}

TEST_F(HoledRange, ADeviceThatRefusesTheLastPageKeepsNoneOfThem) {
  allocator.empty_cache();
  const auto pages = device.pages;
  for (int64_t n = 0; n < 10; ++n) {
    device.used_by_others = 4 * kGiB - device.held_bytes - n * 20 * kMiB;
    EXPECT_NE(failure(200 * kMiB), "served") << n;
    EXPECT_EQ(device.pages, pages) << n;
    EXPECT_EQ(allocator.reserved_bytes(), device.held_bytes) << n;
  }
  device.used_by_others = 4 * kGiB - device.held_bytes - 200 * kMiB;
  EXPECT_EQ(failure(200 * kMiB), "served");
}

TEST_F(ExpandableSegments, AFailureInTheSecondOfTwoHolesGivesTheFirstOneBack) {
  Block* block[4];
  for (Block*& b : block) b = allocator.allocate(20 * kMiB);
  Block* bit = allocator.allocate(2 * kMiB);  // [80, 82)
  Block* last = allocator.allocate(38 * kMiB);
  allocator.free(block[1]);
  allocator.free(block[3]);
  allocator.empty_cache();  // holes at [20, 40) and [60, 80)
  allocator.free(block[2]);
  allocator.free(bit);  // [40, 60) and [80, 82) free: a chain with two holes
  const auto pages = device.pages;
  for (const int64_t n : {0, 1}) {
    device.pages_until_throw = n;
    EXPECT_THROW(allocator.allocate(62 * kMiB), DeviceError) << n;
    EXPECT_EQ(device.pages, pages) << n;
    EXPECT_EQ(allocator.snapshot().size(), 3u) << n;
  }
  device.pages_until_throw = -1;
  EXPECT_EQ(allocator.allocate(62 * kMiB)->offset, 20 * kMiB);
  EXPECT_EQ(allocator.snapshot().size(), 1u);
  EXPECT_TRUE(last->in_use);
}

TEST(ExpandableSegmentsRange, IsFollowedByAnotherWhenHolesUseItUp) {
  CountingRuntime device(100 * kMiB);  // ranges of six large pages
  CachingAllocator allocator(Device::cuda(), device);
  allocator.set_expandable_segments(true);
  Block* block[5];
  for (Block*& b : block) b = allocator.allocate(20 * kMiB);
  allocator.free(block[0]);
  allocator.free(block[2]);
  const Block* more = allocator.allocate(40 * kMiB);
  EXPECT_EQ(more->segment, 2);
  EXPECT_EQ(more->offset, 0);
  EXPECT_EQ(device.range_bytes, 240 * kMiB);
  EXPECT_EQ(allocator.reserved_bytes(), 100 * kMiB);
  EXPECT_EQ(device.bad_calls, 0);
}

TEST_F(ExpandableSegments, FailCleanlyForSizesThatNoRangeHolds) {
  allocator.free(allocator.allocate(50 * kMiB));
  for (const int64_t bytes :
       {5 * kGiB, kMaxReservedBytes, kMaxReservedBytes + 1, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THROW(allocator.allocate(bytes), OutOfMemory) << bytes;
  }
  EXPECT_EQ(allocator.reserved_bytes(), 60 * kMiB);  // the cache is not given up for them
  EXPECT_EQ(allocator.stats().out_of_memory, 4);
}

TEST_F(ExpandableSegments, SayThatTheDeviceHasNoAddresses) {
  device.no_addresses = true;
  try {
    allocator.allocate(kMiB);
    ADD_FAILURE() << "served without addresses";
  } catch (const DeviceError& error) {
    EXPECT_STREQ(error.what(),
                 "expandable segments: cuda has no range of 4.50 GiB of addresses left");
  }
  device.no_addresses = false;
  EXPECT_EQ(failure(kMiB), "served");
}

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

TEST_F(ExpandableSegments, ARetryTakesWholeSegmentsFirstAndPagesWhereTheyAreNotEnough) {
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

TEST_F(ExpandableSegments, EventsAndPeakTellOfPages) {
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

TEST_F(ExpandableSegments, AFailureNamesThePagesThatWereMissing) {
  allocator.allocate(30 * kMiB);
  allocator.set_memory_limit(60 * kMiB);
  const std::string message = failure(40 * kMiB);
  // 10 of the 40 MiB are free at the end of the second page.
  EXPECT_NE(message.find("(block 40.00 MiB, new pages 40.00 MiB)"), std::string::npos) << message;
  EXPECT_EQ(message.find("set_expandable_segments"), std::string::npos) << message;
}

TEST(FragmentationMessage, SuggestsExpandableSegmentsWhereTheRestWouldDo) {
  CountingRuntime device(kGiB);
  CachingAllocator allocator(Device::cuda(), device);
  const auto message_for = [&](int64_t bytes) {
    try {
      allocator.free(allocator.allocate(bytes));
    } catch (const OutOfMemory& error) {
      return std::string(error.what());
    }
    return std::string("served");
  };
  const std::string hint = "set_expandable_segments(true)";
  std::vector<Block*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocator.allocate(10 * kMiB - 512));
  for (size_t i = 0; i < blocks.size(); i += 2) allocator.free(blocks[i]);
  allocator.set_memory_limit(100 * kMiB);  // all of it reserved, half of it allocated
  const std::string fragmented = message_for(15 * kMiB);
  EXPECT_NE(
      fragmented.find("50.00 MiB are free inside reserved segments (largest piece 10.00 MiB); "
                      "with what is not reserved yet that is enough, but not in one piece: "
                      "expandable segments (train --expandable-segments, "),
      std::string::npos)
      << fragmented;
  EXPECT_NE(fragmented.find(hint), std::string::npos) << fragmented;
  // No arrangement would do, so there is nothing to suggest.
  EXPECT_EQ(message_for(60 * kMiB).find(hint), std::string::npos);
  device.granularity = 0;
  EXPECT_EQ(message_for(15 * kMiB).find(hint), std::string::npos);
  device.granularity = 2 * kMiB;
  allocator.set_failure_hook([](int64_t, int64_t) { return true; });
  EXPECT_EQ(message_for(15 * kMiB).find(hint), std::string::npos);
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
