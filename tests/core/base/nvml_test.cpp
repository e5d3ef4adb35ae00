// What is read from the driver, against a driver whose answers are known.
#include "core/base/nvml.h"

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/process.h"
#include "tests/support/fake_driver.h"

namespace headroom::test {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::vector<GpuReading> read_gpus(const std::string& description) {
  const FakeDriver driver(description);
  const ScopedEnvironment environment(driver.environment());
  return Nvml().read();
}

std::string failure_with(const std::vector<std::string>& variables) {
  const ScopedEnvironment environment(variables);
  try {
    const Nvml nvml;
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no failure";
}

TEST(NvmlReader, ReadsEveryGpuAndItsProcessesTheLargestFirst) {
  const std::string own = std::to_string(own_pid());
  const auto gpus = read_gpus(
      "gpu GPU-a 85899345920 3221225472 87 NVIDIA H200\n"
      "compute 4194305 1073741824\n"
      "compute " +
      own +
      " 2147483648\n"
      "gpu GPU-b 17179869184 0 0 Tesla T4\n");
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].name, "NVIDIA H200");
  EXPECT_EQ(gpus[0].uuid, "GPU-a");
  EXPECT_EQ(gpus[0].total_bytes, 80 * kGiB);
  EXPECT_EQ(gpus[0].used_bytes, 3 * kGiB);
  EXPECT_EQ(gpus[0].utilisation_percent, 87);
  EXPECT_TRUE(gpus[0].failures.empty());
  ASSERT_EQ(gpus[0].processes.size(), 2u);
  EXPECT_EQ(gpus[0].processes[0].pid, own_pid());
  EXPECT_EQ(gpus[0].processes[0].name, process_name(own_pid()));
  EXPECT_EQ(gpus[0].processes[0].bytes, 2 * kGiB);
  EXPECT_EQ(gpus[0].processes[1].pid, kNoProcess + 1);
  EXPECT_EQ(gpus[0].processes[1].name, "");
  EXPECT_EQ(gpus[1].index, 1);
  EXPECT_TRUE(gpus[1].processes.empty());
}

TEST(NvmlReader, LeavesBytesEmptyThatTheDriverDoesNotGive) {
  const auto gpus = read_gpus("gpu GPU-a 100 50 1 A\ncompute 4194305 -\ncompute 4194306 7\n");
  ASSERT_EQ(gpus.at(0).processes.size(), 2u);
  EXPECT_EQ(gpus[0].processes[0].bytes, 7);
  EXPECT_EQ(gpus[0].processes[1].bytes, std::nullopt);
}

TEST(NvmlReader, ListsAProcessThatComputesAndDrawsOnce) {
  const auto gpus = read_gpus(
      "gpu GPU-a 100 50 1 A\ncompute 4194305 20\ngraphics 4194305 20\ngraphics 4194306 3\n");
  ASSERT_EQ(gpus.at(0).processes.size(), 2u);
  EXPECT_EQ(gpus[0].processes[0].bytes, 20);
  EXPECT_TRUE(gpus[0].processes[0].graphics);
  EXPECT_EQ(gpus[0].processes[1].bytes, 3);
}

TEST(NvmlReader, TakesMoreProcessesThanItFirstHasRoomFor) {
  std::string description = "gpu GPU-a 100000 50000 1 A\n";
  for (int i = 1; i <= 40; ++i) {
    description += "compute " + std::to_string(kNoProcess + i) + " " + std::to_string(i) + "\n";
  }
  const auto gpus = read_gpus(description);
  ASSERT_EQ(gpus.at(0).processes.size(), 40u);
  EXPECT_EQ(gpus[0].processes.front().bytes, 40);
  EXPECT_EQ(gpus[0].processes.back().bytes, 1);
}

TEST(NvmlReader, AsksAnOlderDriverInItsOwnWay) {
  // The older answer counts 1 MiB for the driver.
  const auto gpus = read_gpus("gpu GPU-a 1073741824 1048576 1 A\nfail memory_v2 13\n");
  EXPECT_EQ(gpus.at(0).used_bytes, int64_t{2} << 20);
  EXPECT_TRUE(gpus[0].failures.empty());
}

TEST(NvmlReader, NamesWhatOneGpuRefusesAndReadsTheOthers) {
  const auto gpus = read_gpus(
      "gpu GPU-a 100 50 1 A\nfail utilisation 3\nfail processes 3\nfail memory 3\n"
      "fail memory_v2 3\n"
      "gpu GPU-b 100 50 1 B\nfail handle 15\n"
      "gpu GPU-c 100 50 1 C\n");
  ASSERT_EQ(gpus.size(), 3u);
  EXPECT_EQ(gpus[0].failures,
            (std::vector<std::string>{"memory: Not Supported", "utilisation: Not Supported",
                                      "processes: Not Supported"}));
  EXPECT_EQ(gpus[0].used_bytes, std::nullopt);
  EXPECT_EQ(gpus[0].utilisation_percent, std::nullopt);
  EXPECT_EQ(gpus[1].failures, std::vector<std::string>{"not reached: GPU is lost"});
  EXPECT_EQ(gpus[2].name, "C");
}

TEST(NvmlReader, FindsAGpuOrASliceByItsUuid) {
  const FakeDriver driver("gpu GPU-12-34 100 50 1 Whole\ngpu MIG-56-78 100 50 1 Slice\n");
  const ScopedEnvironment environment(driver.environment());
  const Nvml nvml;
  ASSERT_TRUE(nvml.read_uuid("12-34"));
  EXPECT_EQ(nvml.read_uuid("12-34")->name, "Whole");
  ASSERT_TRUE(nvml.read_uuid("56-78"));
  EXPECT_EQ(nvml.read_uuid("56-78")->name, "Slice");
  EXPECT_FALSE(nvml.read_uuid("99-99"));
}

TEST(NvmlReader, SaysWhyThereIsNoDriver) {
  EXPECT_NE(failure_with({"HEADROOM_NVML=/nowhere/nvml.so"}).find("/nowhere/nvml.so"),
            std::string::npos);
  const FakeDriver driver("init 9\n");
  EXPECT_EQ(failure_with(driver.environment()), "NVML does not start: Driver Not Loaded");
}

TEST(ProcessFacts, AreThoseOfThisProcessAndEmptyForNone) {
  EXPECT_EQ(process_name(own_pid()).find("headroom_tests"), 0u) << process_name(own_pid());
  EXPECT_GT(resident_bytes(own_pid()).value_or(0), int64_t{1} << 20);
  EXPECT_TRUE(process_owner(own_pid()).has_value());
  EXPECT_EQ(process_name(kNoProcess), "");
  EXPECT_EQ(resident_bytes(kNoProcess), std::nullopt);
  EXPECT_EQ(process_owner(kNoProcess), std::nullopt);
  const HostMemory host = host_memory();
  EXPECT_GT(host.available_bytes, 0);
  EXPECT_GE(host.total_bytes, host.available_bytes);
}

}  // namespace
}  // namespace headroom::test
