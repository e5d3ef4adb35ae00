// The program memory-watch, with a driver whose answers are known and with real runs on the CPU.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "core/base/process.h"
#include "tests/support/fake_driver.h"
#include "tests/train/program_run.h"

namespace headroom::test {
namespace {

constexpr const char* kOneGpu =
    "gpu GPU-a 85899345920 42949672960 87 NVIDIA H200\n"
    "compute 4194305 41875931136\n"
    "compute 4194306 -\n"
    "gpu GPU-b 85899345920 0 0 NVIDIA H200\n"
    "fail utilisation 3\n";

ProcessResult watch(const std::string& flags, const std::vector<std::string>& environment) {
  std::istringstream words(flags);
  std::vector<std::string> command = {built_program("memory-watch")};
  command.insert(command.end(), std::istream_iterator<std::string>(words), {});
  ProcessOptions options;
  options.environment = environment;
  options.timeout_seconds = 60;
  return run_process(command, options);
}

TEST(MemoryWatch, PrintsOneReading) {
  const FakeDriver driver(kOneGpu);
  const ProcessResult result = watch("--once", driver.environment());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out,
            "GPU 0  NVIDIA H200  busy 87 %\n"
            "  [===============               ]  40.00 GiB of 80.00 GiB used (50.0 %)\n"
            "  pid 4194305     39.00 GiB  (not seen from here)\n"
            "  pid 4194306     not given  (not seen from here)\n"
            "  note: NVML gives no bytes for 1 of these processes, as under MIG, in some "
            "containers and without the rights\n"
            "GPU 1  NVIDIA H200\n"
            "  [                              ]  0 B of 80.00 GiB used (0.0 %)\n"
            "  note: utilisation: Not Supported\n"
            "no training publishes a ledger\n");
}

TEST(MemoryWatch, PrintsJsonAndKeepsToOneProcess) {
  const FakeDriver driver(kOneGpu);
  const ProcessResult result = watch("--once --json --pid 4194305", driver.environment());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  ASSERT_EQ(json["gpus"].size(), 1u);
  ASSERT_EQ(json["gpus"][0]["processes"].size(), 1u);
  EXPECT_EQ(json["gpus"][0]["processes"][0]["bytes"], int64_t{39} << 30);
}

TEST(MemoryWatch, GoesOnUntilItIsToldToEnd) {
  const FakeDriver driver(kOneGpu);
  ProcessOptions options;
  options.environment = driver.environment();
  Process process({built_program("memory-watch"), "--interval", "0.05", "--json"}, options);
  ASSERT_TRUE(process.wait_for_output("}\n{"));
  process.send(SIGINT);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_TRUE(Json::accept(line)) << line;
}

TEST(MemoryWatch, FailsWhereThereIsNothingToSee) {
  const TemporaryFolder folder;
  const std::vector<std::string> no_driver = {"HEADROOM_NVML=/nowhere/nvml.so",
                                              "HEADROOM_LEDGERS=" + folder.root()};
  const ProcessResult result = watch("--once", no_driver);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("no GPU to see: no NVIDIA driver library: /nowhere/nvml.so"),
            std::string::npos)
      << result.out;
  EXPECT_EQ(result.err.find("memory-watch: error: nothing to see: "), 0u) << result.err;

  const FakeDriver empty("");
  const ProcessResult none = watch("--once", empty.environment());
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.out.find("no GPU to see: the driver lists none\n"), std::string::npos) << none.out;

  const FakeDriver broken("init 9\n");
  const ProcessResult refused = watch("--once", broken.environment());
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("Driver Not Loaded"), std::string::npos) << refused.err;
}

TEST(MemoryWatch, RefusesWrongFlagsAndProcessesThatAreNotThere) {
  const FakeDriver driver(kOneGpu);
  for (const char* flags : {"--interval 0", "--interval nan", "--pid 0", "--pid x", "--what",
                            "extra", "--once --pid 4194399"}) {
    const ProcessResult result = watch(flags, driver.environment());
    EXPECT_EQ(result.exit_code, 2) << flags << "\n" << result.out;
    EXPECT_EQ(result.err.find("memory-watch: error: "), 0u) << result.err;
  }
  EXPECT_EQ(watch("--help", {}).out.find("usage: memory-watch"), 0u);
}

// The one run whose ledger lies in the folder, once it has done a step.
Json await_run(const std::vector<std::string>& environment) {
  for (int i = 0; i < 300; ++i) {
    const ProcessResult result = watch("--once --json", environment);
    const Json json = Json::parse(result.out, nullptr, false);
    if (!json.is_discarded() && json["host"]["processes"].size() == 1 &&
        json["host"]["processes"][0]["run"]["step"] > 0) {
      return json["host"]["processes"][0];
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return nullptr;
}

TEST(MemoryWatch, SeesARunOnTheCpuAndClearsAwayWhatAKilledOneLeft) {
  const TemporaryFolder folder;
  const std::vector<std::string> environment = {"HEADROOM_NVML=/nowhere/nvml.so",
                                                "HEADROOM_LEDGERS=" + folder.root()};
  ProcessOptions options;
  options.environment = environment;
  Process run(train_command(two_epochs("--epochs 100000 --no-eval --threads 1")), options);
  const Json process = await_run(environment);
  ASSERT_FALSE(process.is_null());
  const int64_t pid = process["pid"];
  EXPECT_EQ(process["name"], "train");
  EXPECT_GT(resident_bytes(pid).value_or(0), 0);
  const Json& ledger = process["run"];
  EXPECT_EQ(ledger["device"], "cpu");
  EXPECT_EQ(ledger["model"], "lenet");
  const auto bytes = [&ledger](const char* name) { return ledger[name].get<int64_t>(); };
  const int64_t parts = bytes("live_bytes") + bytes("cached_bytes") + bytes("fragmented_bytes");
  EXPECT_EQ(parts, bytes("reserved_bytes"));
  EXPECT_GT(bytes("context_and_libraries_bytes"), 0);
  EXPECT_EQ(parts + bytes("context_and_libraries_bytes") + bytes("unexplained_bytes"),
            process["bytes"].get<int64_t>());
  // The weights and the optimizer's state are there between steps as well.
  EXPECT_GT(ledger["live_by_tag"]["parameter"].get<int64_t>(), 1000000);
  EXPECT_EQ(watch("--once --pid " + std::to_string(pid), environment).exit_code, 0);

  run.send(SIGKILL);
  EXPECT_EQ(run.wait().signal, SIGKILL);
  EXPECT_EQ(folder.names().size(), 1u) << "a killed process removes nothing";
  EXPECT_EQ(watch("--once", environment).exit_code, 1);
  EXPECT_TRUE(folder.names().empty());
}

TEST(MemoryWatch, FindsNothingOfARunThatEnded) {
  const TemporaryFolder folder;
  ProcessOptions options;
  options.environment = {"HEADROOM_LEDGERS=" + folder.root()};
  EXPECT_EQ(train(tiny_run("--no-eval"), options).exit_code, 0);
  EXPECT_TRUE(folder.names().empty());
}

TEST(MemoryWatch, DoesNotKeepARunFromTraining) {
  ProcessOptions options;
  options.environment = {"HEADROOM_LEDGERS=/nowhere"};
  const ProcessResult result = train(tiny_run("--no-eval"), options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace headroom::test
