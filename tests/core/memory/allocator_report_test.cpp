// What a person reads: sizes, the summary table, and the message of an OutOfMemory.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/memory/allocation_failure.h"
#include "core/memory/caching_allocator.h"
#include "tests/core/memory/counting_runtime.h"

namespace headroom {
namespace {

using testing::CountingRuntime;
using testing::kGiB;
using testing::kMiB;

TEST(FormatBytes, UsesBinaryUnitsAndTwoDecimals) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(98 * kMiB), "98.00 MiB");
  EXPECT_EQ(format_bytes(14061404), "13.41 MiB");
  EXPECT_EQ(format_bytes(kGiB + kGiB / 5), "1.20 GiB");
  EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
}

TEST(FormatBytes, NeverPrints1024OfAUnit) {
  EXPECT_EQ(format_bytes(kMiB - 1), "1.00 MiB");
  EXPECT_EQ(format_bytes(kGiB - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8.00 EiB");
}

struct AllocatorReport : ::testing::Test {
  CountingRuntime device{kGiB};
  CachingAllocator allocator{Device::cuda(), device};

  std::string failure(int64_t bytes) {
    try {
      allocator.allocate(bytes);
    } catch (const OutOfMemory& error) {
      return error.what();
    }
    return "served";
  }
};

TEST_F(AllocatorReport, SaysWhatWasAskedForByWhomAndWhatHoldsTheMemory) {
  {
    const TagScope tag(Tag::parameter);
    const PathScope path("fc");
    allocator.allocate(102 * kMiB);
  }
  {
    const TagScope tag(Tag::workspace);
    const PathScope path("blocks.0");
    allocator.allocate(2 * kMiB);
  }
  allocator.set_memory_limit(150 * kMiB);
  const PathScope path("blocks.3.convs.1");
  const OpScope op("conv2d");
  const PhaseScope phase(Phase::forward);
  EXPECT_EQ(failure(98 * kMiB - 100),
            "out of memory on cuda: conv2d in blocks.3.convs.1 (forward) asked for 98.00 MiB "
            "(block 98.00 MiB, segment 98.00 MiB); 104.00 MiB allocated, 122.00 MiB reserved, "
            "limit 150.00 MiB, device has 902.00 MiB free of 1.00 GiB; by tag: parameter 102.00 "
            "MiB, workspace 2.00 MiB; largest modules: fc (102.00 MiB), blocks.0 (2.00 MiB); "
            "18.00 MiB are free inside reserved segments (largest piece 18.00 MiB)");
}

TEST_F(AllocatorReport, TellsAProgramWhoAskedAndWhoHeldWhat) {
  const PathScope path("fc");
  {
    const TagScope tag(Tag::parameter);
    allocator.allocate(102 * kMiB);
    allocator.allocate(3 * kMiB);
  }
  const OpScope op("linear");
  const PhaseScope phase(Phase::backward);
  try {
    allocator.allocate(2 * kGiB);
    FAIL() << "was served";
  } catch (const AllocationFailure& failure) {
    EXPECT_EQ(failure.device(), Device::cuda());
    EXPECT_STREQ(failure.context().op, "linear");
    EXPECT_EQ(path_name(failure.context().path), "fc");
    EXPECT_EQ(failure.context().phase, Phase::backward);
    const MemoryPeak held = failure.held();
    EXPECT_EQ(held.allocated_bytes, 105 * kMiB);
    EXPECT_EQ(held.allocated_bytes, failure.facts().allocated_bytes);
    ASSERT_EQ(held.parts.size(), 1u);
    EXPECT_EQ(held.parts[0].tag, Tag::parameter);
    EXPECT_EQ(held.parts[0].blocks, 2);
  }
}

TEST_F(AllocatorReport, SaysThatALimitBelowTheSmallestSegmentHoldsNothing) {
  allocator.set_memory_limit(8);
  EXPECT_NE(failure(512).find("limit 8 B, "), std::string::npos);
  EXPECT_NE(failure(512).find("; a limit below 2.00 MiB, the smallest segment, holds nothing"),
            std::string::npos);
  allocator.set_memory_limit(2 * kMiB);
  EXPECT_EQ(failure(3 * kMiB).find("holds nothing"), std::string::npos);
}

TEST_F(AllocatorReport, IsWholeWithoutContextLimitOrLiveBlocks) {
  EXPECT_EQ(failure(2 * kGiB),
            "out of memory on cuda: a request asked for 2.00 GiB (block 2.00 GiB, segment 2.00 "
            "GiB); 0 B allocated, 0 B reserved, no limit, device has 1.00 GiB free of 1.00 GiB; 0 "
            "B are free inside reserved segments (largest piece 0 B)");
}

TEST_F(AllocatorReport, SaysWhatOthersHoldOfADeviceThatIsFull) {
  device.other_users = "others hold 61.20 GiB: python3 4711 61.20 GiB";
  const std::string full = failure(2 * kGiB);
  EXPECT_NE(full.find("1.00 GiB free of 1.00 GiB, others hold 61.20 GiB: python3 4711 61.20 GiB; "),
            std::string::npos)
      << full;
  // Their share is no reason where the limit or the hook refused.
  allocator.set_memory_limit(kGiB);
  EXPECT_EQ(failure(2 * kGiB).find("others"), std::string::npos);
  allocator.set_memory_limit(0);
  allocator.set_failure_hook([](int64_t, int64_t) { return true; });
  EXPECT_EQ(failure(512).find("others"), std::string::npos);
}

TEST_F(AllocatorReport, NamesTenModulesAndTheInjectedFailure) {
  for (int i = 0; i < 12; ++i) {
    const PathScope path("layer" + std::to_string(i));
    allocator.allocate((i + 11) * kMiB);
  }
  allocator.set_failure_hook([](int64_t, int64_t) { return true; });
  const std::string message = failure(512);
  EXPECT_NE(message.find("refused by the failure hook"), std::string::npos) << message;
  EXPECT_NE(message.find("layer10 (22.00 MiB), layer11 (22.00 MiB)"), std::string::npos) << message;
  EXPECT_NE(message.find("layer2 ("), std::string::npos) << message;
  EXPECT_EQ(message.find("layer1 ("), std::string::npos) << message;
  EXPECT_EQ(message.find("layer0 ("), std::string::npos) << message;
}

// The cells of the row that starts with `name`, without spaces at their ends.
std::vector<std::string> row_of(const std::string& table, const std::string& name) {
  const size_t begin = table.find("\n " + name);
  if (begin == std::string::npos) return {};
  const std::string line = table.substr(begin + 1, table.find('\n', begin + 1) - begin - 1);
  std::vector<std::string> cells;
  for (size_t at = 0; at <= line.size();) {
    const size_t end = std::min(line.find('|', at), line.size());
    const std::string cell = line.substr(at, end - at);
    const size_t first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
    cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
    at = end + 1;
  }
  return cells;
}

TEST_F(AllocatorReport, SummaryHasTheRowsOfPyTorchsMemorySummary) {
  const TagScope tag(Tag::input);
  Block* freed = allocator.allocate(30 * kMiB);
  allocator.allocate(2 * kMiB);
  allocator.allocate(700);
  allocator.free(freed);
  const std::string table = allocator.summary();
  using Row = std::vector<std::string>;
  EXPECT_EQ(row_of(table, "Metric"),
            (Row{"Metric", "Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed"}));
  EXPECT_EQ(row_of(table, "Allocated memory"),
            (Row{"Allocated memory", "2.00 MiB", "32.00 MiB", "32.00 MiB", "30.00 MiB"}));
  EXPECT_EQ(row_of(table, "Requested memory"),
            (Row{"Requested memory", "2.00 MiB", "32.00 MiB", "32.00 MiB", "30.00 MiB"}));
  EXPECT_EQ(row_of(table, "Active memory")[1], "2.00 MiB");
  EXPECT_EQ(row_of(table, "GPU reserved memory")[1], "52.00 MiB");
  EXPECT_EQ(row_of(table, "Non-releasable memory")[1], "20.00 MiB");
  EXPECT_EQ(row_of(table, "Allocations"), (Row{"Allocations", "2", "3", "3", "1"}));
  EXPECT_EQ(row_of(table, "Active allocs")[1], "2");
  EXPECT_EQ(row_of(table, "GPU reserved segments")[1], "3");
  EXPECT_EQ(row_of(table, "Non-releasable allocs")[1], "2");
  EXPECT_EQ(row_of(table, "input"), (Row{"input", "2.00 MiB", "32.00 MiB"}));
  EXPECT_NE(table.find("from large pool"), std::string::npos);
  EXPECT_NE(table.find("from small pool"), std::string::npos);
  EXPECT_NE(table.find("device cuda"), std::string::npos);
}

TEST_F(AllocatorReport, ResettingTotalsLeavesCurrentValuesAndPeaks) {
  allocator.free(allocator.allocate(30 * kMiB));
  allocator.allocate(12 * kMiB);
  EXPECT_NE(failure(2 * kGiB), "served");
  allocator.reset_accumulated_stats();
  const MemoryStats stats = allocator.stats();
  EXPECT_EQ(stats[Pool::all].allocated_bytes.total_allocated, 0);
  EXPECT_EQ(stats[Pool::all].allocated_bytes.total_freed, 0);
  EXPECT_EQ(stats[Pool::all].allocated_bytes.current, 12 * kMiB);
  EXPECT_EQ(stats[Pool::all].allocated_bytes.peak, 30 * kMiB);
  EXPECT_EQ(stats.out_of_memory, 0);
  EXPECT_EQ(stats.retries, 0);
}

}  // namespace
}  // namespace headroom
