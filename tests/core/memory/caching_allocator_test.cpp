// Sizes, best fit, split, merge, limit, retry and failure of the caching allocator.
#include "core/memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/core/memory/counting_runtime.h"

namespace headroom {
namespace {

using testing::CountingRuntime;
using testing::kGiB;
using testing::kKiB;
using testing::kMiB;
using Call = CountingRuntime::Call;

constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max();

struct CachingAllocatorTest : ::testing::Test {
  CountingRuntime device{4 * kGiB};
  CachingAllocator allocator{Device::cuda(), device};

  OutOfMemory::Facts facts_of_failure(int64_t bytes) {
    try {
      allocator.free(allocator.allocate(bytes));
    } catch (const OutOfMemory& error) {
      return error.facts();
    }
    ADD_FAILURE() << "a request of " << bytes << " bytes was served";
    return {};
  }
};

struct SizeRow {
  int64_t asked, block, segment;
};
class BlockSizes : public ::testing::TestWithParam<SizeRow> {};

TEST_P(BlockSizes, AreRoundedAndTakenFromTheSegmentThatPyTorchWouldUse) {
  const SizeRow row = GetParam();
  CountingRuntime device(kGiB);
  CachingAllocator allocator(Device::cuda(), device);
  EXPECT_EQ(rounded_bytes(row.asked), row.block);
  EXPECT_EQ(segment_bytes_for(row.block), row.segment);
  const Block* block = allocator.allocate(row.asked);
  EXPECT_EQ(block->bytes, row.block);
  EXPECT_EQ(block->requested_bytes, row.asked);
  EXPECT_EQ(allocator.reserved_bytes(), row.segment);
}

INSTANTIATE_TEST_SUITE_P(Rows, BlockSizes,
                         ::testing::Values(SizeRow{0, 512, 2 * kMiB}, SizeRow{1, 512, 2 * kMiB},
                                           SizeRow{512, 512, 2 * kMiB},
                                           SizeRow{513, 1024, 2 * kMiB},
                                           SizeRow{kMiB, kMiB, 2 * kMiB},
                                           SizeRow{kMiB + 1, kMiB + 512, 20 * kMiB},
                                           SizeRow{10 * kMiB - 512, 10 * kMiB - 512, 20 * kMiB},
                                           SizeRow{10 * kMiB, 10 * kMiB, 10 * kMiB},
                                           SizeRow{10 * kMiB + 1, 10 * kMiB + 512, 12 * kMiB},
                                           SizeRow{98 * kMiB, 98 * kMiB, 98 * kMiB}));

TEST_F(CachingAllocatorTest, KeepsTheWholeBlockWhenTheRestIsNotWorthSplitting) {
  // The rest of a large block is at most 1 MiB here, so it stays with the block and is charged.
  const Block* block = allocator.allocate(11 * kMiB);
  EXPECT_EQ(block->bytes, 12 * kMiB);
  EXPECT_EQ(allocator.allocated_bytes(), 12 * kMiB);
  EXPECT_EQ(allocator.stats()[Pool::all].requested_bytes.current, 11 * kMiB);
}

TEST_F(CachingAllocatorTest, SplitsSmallBlocksDownToTheLast512Bytes) {
  Block* most = allocator.allocate(kMiB);
  Block* rest = allocator.allocate(kMiB - 512);
  Block* last = allocator.allocate(512);
  EXPECT_EQ(allocator.reserved_bytes(), 2 * kMiB);
  EXPECT_EQ(most->offset, 0);
  EXPECT_EQ(rest->offset, kMiB);
  EXPECT_EQ(last->offset, 2 * kMiB - 512);
  EXPECT_EQ(static_cast<char*>(last->address) - static_cast<char*>(most->address), last->offset);
  EXPECT_EQ(allocator.stats()[Pool::small].inactive_split_bytes.current, 0);
}

TEST_F(CachingAllocatorTest, ReusesTheSmallestBlockThatFits) {
  Block* big = allocator.allocate(40 * kMiB);
  Block* medium = allocator.allocate(30 * kMiB);
  Block* little = allocator.allocate(20 * kMiB);
  const int64_t wanted = medium->segment;
  for (Block* block : {big, medium, little}) allocator.free(block);
  EXPECT_EQ(allocator.allocate(21 * kMiB)->segment, wanted);
}

TEST_F(CachingAllocatorTest, BreaksTiesBySegmentNumberAndNotByAddress) {
  Block* first = allocator.allocate(12 * kMiB);
  Block* second = allocator.allocate(12 * kMiB);
  ASSERT_GT(first->address, second->address);  // the device's addresses fall
  allocator.free(second);
  allocator.free(first);
  EXPECT_EQ(allocator.allocate(12 * kMiB)->segment, 1);
  EXPECT_EQ(allocator.allocate(12 * kMiB)->segment, 2);
}

TEST_F(CachingAllocatorTest, BreaksTiesInsideASegmentByOffset) {
  Block* block[4];
  for (Block*& b : block) b = allocator.allocate(64 * kKiB);
  allocator.free(block[2]);
  allocator.free(block[0]);
  EXPECT_EQ(allocator.allocate(64 * kKiB)->offset, 0);
  EXPECT_EQ(allocator.allocate(64 * kKiB)->offset, 128 * kKiB);
}

TEST_F(CachingAllocatorTest, MergesAFreedBlockWithBothNeighbours) {
  Block* left = allocator.allocate(2 * kMiB);
  Block* middle = allocator.allocate(2 * kMiB);
  Block* right = allocator.allocate(2 * kMiB);
  Block* wall = allocator.allocate(2 * kMiB);
  allocator.free(left);
  allocator.free(right);
  EXPECT_EQ(allocator.stats()[Pool::large].inactive_split_count.current, 3);
  allocator.free(middle);
  EXPECT_EQ(allocator.stats()[Pool::large].inactive_split_count.current, 2);
  const Block* joined = allocator.allocate(6 * kMiB);
  EXPECT_EQ(joined->segment, wall->segment);
  EXPECT_EQ(joined->offset, 0);
}

TEST_F(CachingAllocatorTest, NeverMixesThePools) {
  allocator.free(allocator.allocate(2 * kMiB));  // leaves a free 20 MiB segment
  allocator.allocate(512);
  EXPECT_EQ(allocator.reserved_bytes(), 22 * kMiB);
  EXPECT_EQ(allocator.stats()[Pool::small].reserved_bytes.current, 2 * kMiB);
  EXPECT_EQ(allocator.stats()[Pool::large].reserved_bytes.current, 20 * kMiB);
}

TEST_F(CachingAllocatorTest, GivesCachedSegmentsBackWhenTheDeviceIsFull) {
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocator.allocate(kGiB));
  allocator.free(blocks[1]);
  allocator.free(blocks[3]);
  EXPECT_EQ(allocator.allocate(kGiB + kGiB / 2)->bytes, kGiB + kGiB / 2);
  EXPECT_GT(device.refusals, 0);
  EXPECT_EQ(allocator.stats().retries, 1);
}

TEST_F(CachingAllocatorTest, ReleasesTheFewestSegmentsThatSuffice) {
  std::vector<Block*> blocks;
  for (const int64_t mib : {12, 40, 14, 30, 40}) blocks.push_back(allocator.allocate(mib * kMiB));
  for (Block* block : blocks) allocator.free(block);
  allocator.set_memory_limit(136 * kMiB);
  device.calls.clear();
  // 42 MiB more than the 136 held: one segment of 40 is short, so two go: the largest, by number,
  // and the smallest that makes up the rest.
  allocator.allocate(42 * kMiB);
  const std::vector<Call> expected = {{false, 40 * kMiB}, {false, 12 * kMiB}, {true, 42 * kMiB}};
  EXPECT_EQ(device.calls, expected);
  EXPECT_EQ(allocator.snapshot().front().number, 3);
}

TEST_F(CachingAllocatorTest, ReleasesEverythingCachedBeforeItGivesUp) {
  Block* kept = allocator.allocate(100 * kMiB);
  allocator.free(allocator.allocate(50 * kMiB));
  allocator.free(allocator.allocate(kMiB));
  allocator.set_memory_limit(200 * kMiB);
  const OutOfMemory::Facts facts = facts_of_failure(150 * kMiB);
  EXPECT_EQ(facts.reserved_bytes, 100 * kMiB);
  EXPECT_EQ(facts.allocated_bytes, 100 * kMiB);
  EXPECT_EQ(allocator.stats().retries, 1);
  EXPECT_EQ(allocator.stats().out_of_memory, 1);
  EXPECT_TRUE(kept->in_use);
  allocator.free(allocator.allocate(100 * kMiB));  // what fits is served
}

TEST_F(CachingAllocatorTest, NeverReleasesASegmentWithALiveBlock) {
  Block* live = allocator.allocate(2 * kMiB);
  allocator.free(allocator.allocate(2 * kMiB));
  allocator.empty_cache();
  EXPECT_EQ(allocator.reserved_bytes(), 20 * kMiB);
  allocator.free(live);
  allocator.empty_cache();
  EXPECT_EQ(allocator.reserved_bytes(), 0);
}

TEST_F(CachingAllocatorTest, ActsOnALimitBelowWhatIsReservedAtTheNextSegment) {
  Block* block = allocator.allocate(100 * kMiB);
  allocator.set_memory_limit(50 * kMiB);
  EXPECT_EQ(allocator.memory_limit(), 50 * kMiB);
  allocator.free(block);
  block = allocator.allocate(100 * kMiB);  // from the cache
  EXPECT_EQ(facts_of_failure(40 * kMiB).limit_bytes, 50 * kMiB);
  allocator.free(block);
  allocator.free(allocator.allocate(40 * kMiB));
  allocator.set_memory_limit(0);
  allocator.free(allocator.allocate(200 * kMiB));
  EXPECT_THROW(allocator.set_memory_limit(-1), InvalidArgument);
}

TEST_F(CachingAllocatorTest, FailsCleanlyForAbsurdSizes) {
  for (const int64_t bytes :
       {kMostBytes, kMostBytes - 511, kMostBytes / 2, kMaxReservedBytes + 1, kMaxReservedBytes}) {
    const OutOfMemory::Facts facts = facts_of_failure(bytes);
    EXPECT_EQ(facts.requested_bytes, bytes);
    EXPECT_GT(facts.rounded_bytes, 0);
    EXPECT_GT(facts.segment_bytes, 0);
  }
  EXPECT_THROW(allocator.allocate(-1), InvalidArgument);
  EXPECT_THROW(rounded_bytes(std::numeric_limits<int64_t>::min()), InvalidArgument);
  EXPECT_EQ(allocator.stats().out_of_memory, 5);
  EXPECT_EQ(allocator.reserved_bytes(), 0);
  EXPECT_EQ(allocator.allocated_bytes(), 0);
}

TEST_F(CachingAllocatorTest, KeepsTheCacheForASizeThatNoDeviceHas) {
  allocator.free(allocator.allocate(50 * kMiB));
  facts_of_failure(kMostBytes);
  EXPECT_EQ(allocator.reserved_bytes(), 50 * kMiB);
}

TEST(CachingAllocatorMeta, StopsBeforeTheSumOfReservedBytesOverflows) {
  CachingAllocator allocator(Device::meta(DeviceType::cuda),
                             runtime_of(Device::meta(DeviceType::cuda)));
  allocator.allocate(kMaxReservedBytes / 2);
  allocator.allocate(kMaxReservedBytes / 2);
  EXPECT_THROW(allocator.allocate(512), OutOfMemory);
}

TEST_F(CachingAllocatorTest, StaysUsableWhenTheRuntimeThrows) {
  Block* live = allocator.allocate(30 * kMiB);
  device.throw_on_acquire = true;
  EXPECT_THROW(allocator.allocate(30 * kMiB), DeviceError);
  device.throw_on_acquire = false;
  EXPECT_EQ(allocator.allocated_bytes(), 30 * kMiB);
  allocator.free(allocator.allocate(30 * kMiB));
  allocator.free(live);
  allocator.empty_cache();
  EXPECT_EQ(device.held_bytes, 0);
}

TEST_F(CachingAllocatorTest, FailsTheRequestThatTheHookNames) {
  std::vector<int64_t> seen;
  allocator.set_failure_hook([&](int64_t request, int64_t bytes) {
    seen.push_back(bytes);
    EXPECT_GE(allocator.allocated_bytes(), 0);  // the hook may look at the allocator
    return request == 2;
  });
  Block* first = allocator.allocate(100);
  EXPECT_EQ(facts_of_failure(200).requested_bytes, 200);
  Block* third = allocator.allocate(300);
  allocator.set_failure_hook({});
  allocator.free(allocator.allocate(400));
  EXPECT_EQ(seen, (std::vector<int64_t>{100, 200, 300}));
  EXPECT_EQ(allocator.stats().out_of_memory, 1);
  EXPECT_EQ(allocator.allocated_bytes(), first->bytes + third->bytes);
}

TEST_F(CachingAllocatorTest, IgnoresNothingToFreeAndASecondFree) {
  allocator.free(nullptr);
  Block* block = allocator.allocate(4096);
  allocator.free(block);
  allocator.free(block);
  EXPECT_EQ(allocator.allocated_bytes(), 0);
  EXPECT_EQ(allocator.stats()[Pool::all].allocation_count.total_freed, 1);
}

TEST(CachingAllocatorLifetime, GivesSplitAndLiveSegmentsBackAtItsEnd) {
  CountingRuntime device(kGiB);
  {
    CachingAllocator allocator(Device::cuda(), device);
    allocator.allocate(2 * kMiB);
    allocator.allocate(512);
    allocator.allocate(50 * kMiB);
    EXPECT_EQ(device.held_bytes, 72 * kMiB);
  }
  EXPECT_EQ(device.held_bytes, 0);
  EXPECT_EQ(device.calls.back(), (Call{false, 50 * kMiB}));
}

TEST(AllocatorOfDevice, IsOnePerDeviceAndRefusesADeviceThatIsNotThere) {
  CachingAllocator& cpu = allocator_of(Device::cpu());
  EXPECT_EQ(&cpu, &allocator_of(Device::cpu()));
  EXPECT_NE(&cpu, &allocator_of(Device::meta(DeviceType::cpu)));
  const Device meta = Device::meta(DeviceType::cuda);
  reset_peak_memory_stats(meta);
  const int64_t before = memory_allocated(meta);
  Block* block = allocator_of(meta).allocate(5 * kMiB);
  EXPECT_EQ(memory_allocated(meta), before + 5 * kMiB);
  EXPECT_EQ(max_memory_allocated(meta), before + 5 * kMiB);
  EXPECT_GE(memory_reserved(meta), before + 5 * kMiB);
  EXPECT_GE(max_memory_reserved(meta), memory_reserved(meta));
  allocator_of(meta).free(block);
  EXPECT_EQ(memory_allocated(meta), before);
  if (!has_runtime(Device::cuda())) {
    EXPECT_THROW(allocator_of(Device::cuda()), InvalidArgument);
  }
}

}  // namespace
}  // namespace headroom
