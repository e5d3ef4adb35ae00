// The ledger that a run publishes, written and read in one process.
#include "train/ledger.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>

#include "core/base/process.h"
#include "core/memory/caching_allocator.h"
#include "tests/support/fake_driver.h"

namespace headroom::test {
namespace {

class LedgerFile : public testing::Test {
 protected:
  const RunInfo info_ = [] {
    RunInfo out;
    out.total_steps = 100;
    return out;
  }();
  static StepInfo step_of(int64_t step) {
    StepInfo out;
    out.step = step;
    out.images = 16;
    out.images_seen = 16 * step;
    return out;
  }
  std::string path() const {
    return folder_.file("headroom-" + std::to_string(own_pid()) + ".ledger");
  }
  // A file of the name that a process's ledger has.
  std::string write_ledger(int64_t pid, const std::string& text) const {
    const std::string path = folder_.file("headroom-" + std::to_string(pid) + ".ledger");
    std::ofstream(path) << text;
    return path;
  }

  TemporaryFolder folder_;
  ScopedEnvironment environment_{{"HEADROOM_LEDGERS=" + folder_.root()}};
};

TEST_F(LedgerFile, TellsWhatTheAllocatorHoldsAfterEveryStep) {
  CachingAllocator& allocator = allocator_of(Device::cpu());
  LedgerWriter writer("lenet", Device::cpu());
  writer.on_start(info_);
  Block* block = allocator.allocate(3 << 20);
  writer.on_step(step_of(1));
  const std::vector<Ledger> ledgers = read_ledgers();
  ASSERT_EQ(ledgers.size(), 1u);
  const Ledger& ledger = ledgers[0];
  EXPECT_EQ(ledger.pid, own_pid());
  EXPECT_STREQ(ledger.device, "cpu");
  EXPECT_STREQ(ledger.model, "lenet");
  EXPECT_EQ(ledger.step, 1);
  EXPECT_EQ(ledger.total_steps, 100);
  EXPECT_EQ(ledger.allocated_bytes, allocator.allocated_bytes());
  EXPECT_EQ(ledger.reserved_bytes, allocator.reserved_bytes());
  EXPECT_GE(ledger.cached_bytes(), 0);
  EXPECT_GE(ledger.peak_allocated_bytes, ledger.allocated_bytes);
  EXPECT_EQ(std::accumulate(std::begin(ledger.tag_bytes), std::end(ledger.tag_bytes), int64_t{0}),
            ledger.allocated_bytes);
  EXPECT_GT(ledger.outside_bytes, int64_t{1} << 20) << "at least the program itself";
  const int64_t before = ledger.allocated_bytes;
  allocator.free(block);
  writer.on_step(step_of(2));
  EXPECT_EQ(read_ledgers().at(0).step, 2);
  EXPECT_EQ(read_ledgers().at(0).allocated_bytes, before - (3 << 20));
}

TEST_F(LedgerFile, IsForItsOwnerAloneAndGoneAtTheEnd) {
  {
    LedgerWriter writer("lenet", Device::cpu());
    writer.on_start(info_);
    struct stat status {};
    ASSERT_EQ(stat(path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
  }
  EXPECT_TRUE(folder_.names().empty());
}

// Step and bytes change together; a reader that saw one of each state would see them part.
TEST_F(LedgerFile, IsNeverReadHalfWritten) {
  CachingAllocator& allocator = allocator_of(Device::cpu());
  LedgerWriter writer("lenet", Device::cpu());
  writer.on_start(info_);
  const int64_t base = allocator.allocated_bytes();
  std::atomic<bool> done{false};
  std::thread writing([&] {
    for (int64_t step = 2; !done; ++step) {
      Block* block = step % 2 == 0 ? nullptr : allocator.allocate(512);
      writer.on_step(step_of(step));
      allocator.free(block);
    }
  });
  int seen[2] = {0, 0};
  for (int i = 0; i < 2000000 && (seen[0] < 200 || seen[1] < 200); ++i) {
    const std::vector<Ledger> ledgers = read_ledgers();
    if (ledgers.empty() || ledgers[0].step < 2) continue;
    const int64_t odd = ledgers[0].step % 2;
    ++seen[odd];
    EXPECT_EQ(ledgers[0].allocated_bytes, base + odd * 512) << "at step " << ledgers[0].step;
    if (HasFailure()) break;
  }
  done = true;
  writing.join();
  EXPECT_GT(seen[0], 0);
  EXPECT_GT(seen[1], 0);
}

TEST_F(LedgerFile, ThatNobodyWritesIsRemoved) {
  write_ledger(kNoProcess, "left behind");
  write_ledger(own_pid(), "of an earlier process");
  const std::string other = folder_.file("headroom-12.ledger.new");
  std::ofstream(other) << "not a ledger's name";
  EXPECT_TRUE(read_ledgers().empty());
  EXPECT_EQ(folder_.names(), std::vector<std::string>{"headroom-12.ledger.new"});
}

TEST_F(LedgerFile, ReplacesOneLeftBehindByAnEarlierProcessOfItsNumber) {
  write_ledger(own_pid(), "of an earlier process");
  LedgerWriter writer("lenet", Device::cpu());
  writer.on_start(info_);
  EXPECT_EQ(read_ledgers().size(), 1u);
}

TEST_F(LedgerFile, ThatIsCutOrOfAnotherVersionIsIgnored) {
  LedgerWriter writer("lenet", Device::cpu());
  writer.on_start(info_);
  ASSERT_EQ(read_ledgers().size(), 1u);
  std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(12);
  file.put('\x7f').flush();
  EXPECT_TRUE(read_ledgers().empty());
  EXPECT_TRUE(std::filesystem::exists(path())) << "it is being written";
}

TEST_F(LedgerFile, IsIgnoredWithAByteThatIsNotOfItsStateUntilItIsWrittenAgain) {
  LedgerWriter writer("lenet", Device::cpu());
  writer.on_start(info_);
  std::fstream file(path(), std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end);
  file.put('\x7f').flush();
  EXPECT_TRUE(read_ledgers().empty());
  writer.on_step(step_of(1));
  EXPECT_EQ(read_ledgers().size(), 1u);
}

// In /tmp anybody may put one for a process of his own, and others show it on their terminals.
TEST_F(LedgerFile, ReachesReadersWithoutControlCharacters) {
  LedgerWriter writer("a\033[2Jb", Device::cpu());
  writer.on_start(info_);
  ASSERT_EQ(read_ledgers().size(), 1u);
  EXPECT_STREQ(read_ledgers()[0].model, "a?[2Jb");
}

// As when a session ends that the run outlives, and its folder goes.
TEST_F(LedgerFile, IsMadeAgainWhereAnotherFolderIsLeft) {
  const TemporaryFolder session, later;
  const ScopedEnvironment folders(
      {"HEADROOM_LEDGERS=", "XDG_RUNTIME_DIR=" + session.root(), "TMPDIR=" + later.root()});
  LedgerWriter writer("lenet", Device::cpu());
  writer.on_start(info_);
  ASSERT_EQ(session.names().size(), 1u);
  const ScopedEnvironment no_session({"XDG_RUNTIME_DIR=/nowhere"});
  std::filesystem::remove(session.file(session.names()[0]));
  writer.on_step(step_of(1));
  EXPECT_TRUE(session.names().empty());
  // Those of others lie in the folders that are everybody's.
  const std::vector<Ledger> all = read_ledgers();
  const auto own = std::find_if(all.begin(), all.end(),
                                [](const Ledger& ledger) { return ledger.pid == own_pid(); });
  ASSERT_NE(own, all.end());
  EXPECT_EQ(own->step, 1);
}

TEST_F(LedgerFile, ThatCannotBeMadeIsNoError) {
  const ScopedEnvironment nowhere({"HEADROOM_LEDGERS=/nowhere"});
  LedgerWriter writer("lenet", Device::cpu());
  writer.on_start(info_);
  writer.on_step(step_of(1));
  EXPECT_TRUE(read_ledgers().empty());
}

TEST_F(LedgerFile, IsNotMadeForAMetaDevice) {
  LedgerWriter writer("lenet", parse_device("meta:cuda"));
  writer.on_start(info_);
  writer.on_step(step_of(1));
  EXPECT_TRUE(folder_.names().empty());
}

TEST_F(LedgerFile, LiesInTheSessionsFolderOrInOneForTemporaryFiles) {
  const std::string of_user = "/run/user/" + std::to_string(geteuid());
  const ScopedEnvironment session(
      {"HEADROOM_LEDGERS=", "XDG_RUNTIME_DIR=/run/user/1x", "TMPDIR=/scratch"});
  EXPECT_EQ(ledger_folders(),
            (std::vector<std::string>{"/run/user/1x", of_user, "/scratch", "/tmp"}));
  const ScopedEnvironment none({"XDG_RUNTIME_DIR=", "TMPDIR=/tmp"});
  EXPECT_EQ(ledger_folders(), (std::vector<std::string>{of_user, "/tmp"}));
}

// A step takes milliseconds. The least of several rounds: others may have the cores meanwhile.
TEST_F(LedgerFile, CostsAStepNoMoreThanSomeMicroseconds) {
  LedgerWriter writer("lenet", Device::cpu());
  writer.on_start(info_);
  constexpr int kSteps = 2000;
  double least_us = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 5; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kSteps; ++i) {
      writer.on_gradients({});
      writer.on_step(step_of(2 + i));
    }
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - begin;
    least_us = std::min(least_us, spent.count() / kSteps);
  }
  std::printf("%.1f us per step\n", least_us);
  EXPECT_LT(least_us, 100);
}

}  // namespace
}  // namespace headroom::test
