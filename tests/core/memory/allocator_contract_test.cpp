// What holds on every device and for both kinds of segments: random sequences of requests give the
// layout, the statistics and the failures of an independent model of the policy, the same on cpu,
// meta:cpu and meta:cuda, and on cuda where there is one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "core/memory/caching_allocator.h"
#include "tests/core/memory/counting_runtime.h"
#include "tests/core/memory/expandable_model.h"
#include "tests/core/memory/policy_model.h"

namespace headroom {
namespace {

using testing::ExpandableModel;
using testing::kKiB;
using testing::kMiB;
using testing::ModelBooks;
using testing::PolicyModel;

struct Kind {
  Device device;
  bool expandable;
};

class AllocatorContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    const auto [device, expandable] = GetParam();
    if (!has_runtime(device)) GTEST_SKIP() << "no " << device << " on this machine";
    if (expandable && runtime_of(device).page_granularity() == 0) {
      GTEST_SKIP() << device << " has no virtual memory";
    }
    allocator_ = std::make_unique<CachingAllocator>(device, runtime_of(device));
    allocator_->set_expandable_segments(expandable);
  }
  std::unique_ptr<CachingAllocator> allocator_;
};

// Mostly small, some up to 60 MiB, and the sizes around each border of the policy.
int64_t random_bytes(std::mt19937_64& random) {
  static constexpr int64_t kBorders[] = {
      0,        1,        511,           512,       513,       kMiB - 1,  kMiB,     kMiB + 1,
      2 * kMiB, 9 * kMiB, 10 * kMiB - 1, 10 * kMiB, 20 * kMiB, 21 * kMiB, 11 * kMiB};
  switch (random() % 4) {
    case 0:
      return kBorders[random() % std::size(kBorders)];
    case 1:
      return static_cast<int64_t>(random() % static_cast<uint64_t>(60 * kMiB));
    default:
      return static_cast<int64_t>(random() % static_cast<uint64_t>(200 * kKiB));
  }
}

template <class Model>
void expect_same_state(const CachingAllocator& allocator, const Model& model) {
  const MemoryStats stats = allocator.stats();
  const PoolStats& all = stats[Pool::all];
  const ModelBooks::Counts counts = model.count();
  ASSERT_EQ((ModelBooks::Counts{all.allocated_bytes.current, all.reserved_bytes.current,
                                all.inactive_split_bytes.current, all.inactive_split_count.current,
                                all.allocation_count.current}),
            counts);
  ASSERT_EQ(all.allocated_bytes.peak, model.peak_allocated);
  ASSERT_EQ(all.reserved_bytes.peak, model.peak_reserved);
  ASSERT_EQ(all.active_bytes.current, counts.allocated);
  ASSERT_EQ(stats.out_of_memory, model.failures);
  for (size_t tag = 0; tag < kTagCount; ++tag) {
    ASSERT_EQ(stats.current_by_tag[tag], model.by_tag[tag]);
    ASSERT_EQ(stats.peak_by_tag[tag], model.by_tag_at_peak[tag]);
  }
  ASSERT_EQ(std::accumulate(stats.peak_by_tag.begin(), stats.peak_by_tag.end(), int64_t{0}),
            all.allocated_bytes.peak);
}

void expect_consistent_pools(const MemoryStats& stats) {
  for (const auto member : kPoolStatMembers) {
    const Stat& all = stats[Pool::all].*member;
    const Stat& small = stats[Pool::small].*member;
    const Stat& large = stats[Pool::large].*member;
    ASSERT_EQ(all.current, small.current + large.current);
    ASSERT_EQ(all.total_allocated, small.total_allocated + large.total_allocated);
    ASSERT_EQ(all.total_freed, small.total_freed + large.total_freed);
    ASSERT_EQ(all.current, all.total_allocated - all.total_freed);
    ASSERT_LE(std::max(small.peak, large.peak), all.peak);
    ASSERT_LE(all.peak, small.peak + large.peak);
  }
}

template <class Model>
void expect_same_layout(const CachingAllocator& allocator, const Model& model) {
  const std::vector<SegmentInfo> segments = allocator.snapshot();
  const std::vector<ModelBooks::Segment> expected = model.layout();
  ASSERT_EQ(segments.size(), expected.size());
  ASSERT_EQ(allocator.stats()[Pool::all].segment_count.current,
            static_cast<int64_t>(segments.size()));
  for (size_t i = 0; i < segments.size(); ++i) {
    ASSERT_EQ(segments[i].number, expected[i].number);
    ASSERT_EQ(segments[i].bytes, expected[i].bytes);
    ASSERT_EQ(segments[i].small, expected[i].small);
    ASSERT_EQ(segments[i].blocks.size(), expected[i].cells.size());
    for (size_t j = 0; j < segments[i].blocks.size(); ++j) {
      const BlockInfo& block = segments[i].blocks[j];
      const ModelBooks::Cell& cell = expected[i].cells[j];
      ASSERT_EQ(block.offset, cell.offset);
      ASSERT_EQ(block.bytes, cell.bytes);
      ASSERT_EQ(block.in_use, cell.used);
      ASSERT_EQ(block.address - segments[i].address,
                static_cast<uint64_t>(block.offset - segments[i].offset));
    }
  }
}

// One random life of an allocator, compared with the model after each request.
template <class Model>
void follow(CachingAllocator& allocator, Model model, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Block*> live;
  for (int request = 0; request < 1500; ++request) {
    const uint64_t dice = random() % 100;
    // Phases of growth and of shrinking, so that both long and short free lists occur.
    const uint64_t growth = (request / 150) % 2 ? 40 : 60;
    const size_t pick = live.empty() ? 0 : random() % live.size();
    if (dice < growth || live.empty()) {
      const int64_t bytes = random_bytes(random);
      const auto tag = static_cast<Tag>(random() % kTagCount);
      const TagScope scope(tag);
      const auto expected = model.allocate(bytes, static_cast<int>(tag));
      if (!expected) {
        ASSERT_THROW(allocator.allocate(bytes), OutOfMemory);
      } else {
        Block* block = allocator.allocate(bytes);
        ASSERT_EQ((ModelBooks::Handle{block->segment, block->offset}), *expected);
        live.push_back(block);
      }
    } else if (dice < 92) {
      model.free({live[pick]->segment, live[pick]->offset});
      allocator.free(live[pick]);
      live[pick] = live.back();
      live.pop_back();
    } else if (dice < 97) {
      const auto tag = static_cast<Tag>(random() % kTagCount);
      model.retag({live[pick]->segment, live[pick]->offset}, static_cast<int>(tag));
      allocator.retag(live[pick], tag);
    } else if (dice < 99) {
      model.reset_peaks();
      allocator.reset_peak_stats();
    } else {
      model.empty_cache();
      allocator.empty_cache();
    }
    ASSERT_NO_FATAL_FAILURE(expect_same_state(allocator, model)) << "request " << request;
    if (request % 50 == 0) {
      ASSERT_NO_FATAL_FAILURE(expect_same_layout(allocator, model)) << "request " << request;
      ASSERT_NO_FATAL_FAILURE(expect_consistent_pools(allocator.stats()));
    }
  }
  for (Block* block : live) allocator.free(block);
  allocator.empty_cache();
  EXPECT_EQ(allocator.reserved_bytes(), 0);
  EXPECT_EQ(allocator.allocated_bytes(), 0);
}

// `limit` in bytes, 0 for none; `device_limit` is one that the allocator does not know of.
void follow_model(CachingAllocator& allocator, uint64_t seed, int64_t limit,
                  int64_t device_limit = 0) {
  allocator.set_memory_limit(limit);
  const auto with_limit = [&](auto model) {
    if (limit + device_limit > 0) model.limit = limit + device_limit;
    return model;
  };
  if (allocator.expandable_segments()) {
    follow(allocator, with_limit(ExpandableModel()), seed);
  } else {
    follow(allocator, with_limit(PolicyModel()), seed);
  }
}

TEST_P(AllocatorContract, FollowsTheModelOfThePolicy) {
  ASSERT_NO_FATAL_FAILURE(follow_model(*allocator_, 11, 0));
}

TEST_P(AllocatorContract, FollowsTheModelOfThePolicyUnderALimit) {
  ASSERT_NO_FATAL_FAILURE(follow_model(*allocator_, 12, 200 * kMiB));
  EXPECT_GT(allocator_->stats().retries, 0);
  EXPECT_GT(allocator_->stats().out_of_memory, 0);
}

TEST_P(AllocatorContract, HandsOutAlignedAddresses) {
  for (const int64_t bytes : {int64_t{1}, 700 * kKiB, 3 * kMiB, 33 * kMiB}) {
    const Block* first = allocator_->allocate(bytes);
    const Block* second = allocator_->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first->address) % 512, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(second->address) % 512, 0u);
    EXPECT_NE(first->address, second->address);
  }
}

TEST_P(AllocatorContract, CountsEveryRequestOfManyThreads) {
  constexpr int kThreads = 8, kRounds = 400;
  std::atomic<int> bad_tags{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      const TagScope scope(static_cast<Tag>(t % kTagCount));
      std::vector<Block*> mine;
      for (int round = 0; round < kRounds; ++round) {
        mine.push_back(allocator_->allocate(random_bytes(random) / 16));
        if (mine.back()->tag != static_cast<Tag>(t % kTagCount)) ++bad_tags;
        if (round % 3 == 2) {
          const size_t pick = random() % mine.size();
          allocator_->free(mine[pick]);
          mine.erase(mine.begin() + static_cast<ptrdiff_t>(pick));
        }
        if (round % 50 == 0) allocator_->empty_cache();
        if (round % 20 == 0) allocator_->retag(mine.front(), Tag::other);
        if (round % 20 == 0) allocator_->record_events(round % 40 ? 64 : 0);
        if (round % 25 == 0) {
          EXPECT_FALSE(allocator_->snapshot().empty());
          EXPECT_GE(peak_of(allocator_->event_log()).allocated_bytes, 0);
          EXPECT_FALSE(allocator_->summary().empty());
        }
      }
      for (Block* block : mine) allocator_->free(block);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(bad_tags, 0);
  const MemoryStats stats = allocator_->stats();
  EXPECT_EQ(stats[Pool::all].allocated_bytes.current, 0);
  EXPECT_EQ(stats[Pool::all].allocation_count.total_allocated, kThreads * kRounds);
  EXPECT_EQ(stats[Pool::all].inactive_split_count.current, 0);
  EXPECT_EQ(stats.current_by_tag, BytesByTag{});
  expect_consistent_pools(stats);
  allocator_->empty_cache();
  EXPECT_EQ(allocator_->reserved_bytes(), 0);
}

std::vector<Kind> kinds() {
  std::vector<Kind> out;
  for (const Device device : {Device::cpu(), Device::meta(DeviceType::cpu),
                              Device::meta(DeviceType::cuda), Device::cuda()}) {
    for (const bool expandable : {false, true}) out.push_back({device, expandable});
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(Devices, AllocatorContract, ::testing::ValuesIn(kinds()),
                         [](const auto& info) {
                           std::string name = name_of(info.param.device);
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name + (info.param.expandable ? "_expandable" : "");
                         });

TEST(CachingAllocatorModel, IsFollowedForManySeedsAndLimits) {
  for (uint64_t seed = 100; seed < 124; ++seed) {
    testing::CountingRuntime device(int64_t{1} << 50);
    {
      CachingAllocator allocator(Device::cuda(), device);
      allocator.set_expandable_segments(seed % 2 == 1);
      const int64_t limit = seed % 3 == 0 ? 0 : static_cast<int64_t>(seed % 4 + 1) * 90 * kMiB;
      ASSERT_NO_FATAL_FAILURE(follow_model(allocator, seed, limit)) << "seed " << seed;
      EXPECT_EQ(device.held_bytes, 0);
    }
    EXPECT_EQ(device.bad_calls, 0);
    EXPECT_EQ(device.range_bytes, 0);
  }
}

TEST(CachingAllocatorModel, IsFollowedWhereTheDeviceRefusesPages) {
  for (uint64_t seed = 200; seed < 206; ++seed) {
    constexpr int64_t kCapacity = int64_t{1} << 50, kLeft = 200 * kMiB;
    testing::CountingRuntime device(kCapacity);
    device.used_by_others = kCapacity - kLeft;
    CachingAllocator allocator(Device::cuda(), device);
    allocator.set_expandable_segments(true);
    ASSERT_NO_FATAL_FAILURE(follow_model(allocator, seed, 0, kLeft)) << "seed " << seed;
    EXPECT_GT(device.refusals, 0);
    EXPECT_EQ(device.bad_calls, 0);
  }
}

}  // namespace
}  // namespace headroom
