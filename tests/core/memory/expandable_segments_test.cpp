// Expandable segments: where pages are mapped, which are given back, and what a failure leaves
// behind.
#include <gtest/gtest.h>

#include <algorithm>
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
using testing::kMiB;

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

// Else a prediction would depend on how much memory the machine has that makes it.
TEST(ExpandableSegmentsRange, HasAnEndThatCountsAsEndlessHoweverNearItIs) {
  CountingRuntime device(100 * kMiB);  // a sixth page is left at the end
  CachingAllocator allocator(Device::cuda(), device);
  allocator.set_expandable_segments(true);
  std::vector<Block*> block;
  for (const int64_t mib : {10, 10, 40, 20, 8, 12}) block.push_back(allocator.allocate(mib * kMiB));
  for (const size_t i : {1, 2, 5}) allocator.free(block[i]);
  allocator.empty_cache();
  // [10, 20) could grow by 40 MiB, [88, 100) by the 20 MiB at the end.
  EXPECT_EQ(allocator.allocate(10 * kMiB)->offset, 10 * kMiB);
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

}  // namespace
}  // namespace headroom
