// Parallel loops: every task once, exceptions reach the caller, cuts do not depend on threads.
#include "core/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/base/error.h"

namespace headroom {
namespace {

class Parallel : public testing::Test {
 protected:
  void TearDown() override { set_num_threads(0); }
};

std::set<std::pair<int64_t, int64_t>> ranges_of(int64_t count, int64_t grain) {
  std::set<std::pair<int64_t, int64_t>> out;
  std::mutex mutex;
  parallel_ranges(count, grain, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    out.emplace(begin, end);
  });
  return out;
}

TEST_F(Parallel, RunsEveryTaskOnce) {
  for (const int threads : {1, 3, 8}) {
    set_num_threads(threads);
    std::vector<std::atomic<int>> runs(1000);
    parallel_for(1000, [&](int64_t task) { ++runs[static_cast<size_t>(task)]; });
    for (const auto& count : runs) ASSERT_EQ(count, 1);
  }
  parallel_for(0, [](int64_t) { FAIL() << "no task to run"; });
}

TEST_F(Parallel, RethrowsAnExceptionAndRunsAgainAfterwards) {
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    EXPECT_THROW(parallel_for(100,
                              [](int64_t task) {
                                if (task == 37) throw InvalidArgument("task 37");
                              }),
                 InvalidArgument);
    std::atomic<int> sum{0};
    parallel_for(10, [&](int64_t task) { sum += static_cast<int>(task); });
    EXPECT_EQ(sum, 45);
  }
}

TEST_F(Parallel, NestedLoopsRunInline) {
  set_num_threads(4);
  std::atomic<int> foreign{0}, runs{0};
  parallel_for(4, [&](int64_t) {
    const auto outer = std::this_thread::get_id();
    parallel_for(8, [&](int64_t) {
      ++runs;
      if (std::this_thread::get_id() != outer) ++foreign;
    });
  });
  EXPECT_EQ(runs, 32);
  EXPECT_EQ(foreign, 0);
}

TEST_F(Parallel, RangesCoverTheCountAndDependOnItAndTheGrainAlone) {
  for (const int64_t count : {1, 7, 1000, 123457}) {
    set_num_threads(1);
    const auto alone = ranges_of(count, 16);
    set_num_threads(5);
    EXPECT_EQ(ranges_of(count, 16), alone) << count;
    int64_t at = 0;
    for (const auto& [begin, end] : alone) {
      EXPECT_EQ(begin, at);
      EXPECT_LT(begin, end);
      at = end;
    }
    EXPECT_EQ(at, count);
  }
  EXPECT_TRUE(ranges_of(0, 16).empty());
  EXPECT_EQ(ranges_of(31, 16).size(), 1u);  // a second range would be under the grain
}

TEST_F(Parallel, RefusesANegativeNumberOfThreads) {
  EXPECT_THROW(set_num_threads(-1), InvalidArgument);
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(0);
  EXPECT_GE(num_threads(), 1);
}

}  // namespace
}  // namespace headroom
