// A reading as text and as JSON, and how it fits a screen.
#include "train/watch/reading_text.h"

#include <gtest/gtest.h>

#include <cstdio>

#include <nlohmann/json.hpp>

#include "train/watch/screen.h"

namespace headroom::test {
namespace {

using Json = nlohmann::json;
constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

Run run_on(const char* device, int64_t pid) {
  Run out;
  out.name = "train";
  Ledger& ledger = out.ledger;
  ledger.pid = pid;
  ledger.updated_ms = 1000000;
  std::snprintf(ledger.device, sizeof ledger.device, "%s", device);
  std::snprintf(ledger.model, sizeof ledger.model, "resnet18");
  ledger.step = 12;
  ledger.total_steps = 471;
  ledger.allocated_bytes = 300 * kMiB;
  ledger.reserved_bytes = 400 * kMiB;
  ledger.split_bytes = 30 * kMiB;
  ledger.peak_allocated_bytes = 390 * kMiB;
  ledger.outside_bytes = 550 * kMiB;
  ledger.tag_bytes[static_cast<int>(Tag::parameter)] = 300 * kMiB;
  return out;
}

// A GPU with a training of 1 GiB and somebody else's process.
Reading busy_reading() {
  Reading out;
  out.time = 1000.5;
  GpuReading gpu;
  gpu.name = "NVIDIA H200";
  gpu.uuid = "GPU-a";
  gpu.used_bytes = 40 * kGiB;
  gpu.total_bytes = 80 * kGiB;
  gpu.utilisation_percent = 87;
  gpu.processes = {{4711, "python3", false, 39 * kGiB}, {4800, "train", false, 1 * kGiB}};
  out.gpus = {gpu};
  out.host = {16 * kGiB, 12 * kGiB};
  out.runs = {run_on("cuda", 4800)};
  return out;
}

TEST(ReadingText, ShowsGpuProcessesAndTheLedgerOfATraining) {
  EXPECT_EQ(reading_text(busy_reading()),
            "GPU 0  NVIDIA H200  busy 87 %\n"
            "  [===============               ]  40.00 GiB of 80.00 GiB used (50.0 %)\n"
            "  pid 4711        39.00 GiB  python3\n"
            "  pid 4800         1.00 GiB  train\n"
            "      allocator live           300.00 MiB\n"
            "      cached                    70.00 MiB\n"
            "      fragmented                30.00 MiB\n"
            "      context and libraries    550.00 MiB\n"
            "      unexplained               74.00 MiB\n"
            "      resnet18, step 12 of 471, peak 390.00 MiB\n");
}

TEST(ReadingText, SaysWhatTheDriverDoesNotGive) {
  Reading reading = busy_reading();
  reading.gpus[0].processes[1].bytes.reset();
  reading.gpus[0].processes[0].name.clear();
  reading.gpus[0].utilisation_percent.reset();
  reading.gpus[0].failures = {"utilisation: Not Supported"};
  reading.runs[0].ledger.limit_bytes = 2 * kGiB;
  EXPECT_EQ(reading_text(reading),
            "GPU 0  NVIDIA H200\n"
            "  [===============               ]  40.00 GiB of 80.00 GiB used (50.0 %)\n"
            "  pid 4711        39.00 GiB  (not seen from here)\n"
            "  pid 4800        not given  train\n"
            "      allocator live           300.00 MiB\n"
            "      cached                    70.00 MiB\n"
            "      fragmented                30.00 MiB\n"
            "      context and libraries    550.00 MiB\n"
            "      unexplained               not known\n"
            "      resnet18, step 12 of 471, peak 390.00 MiB, limit 2.00 GiB\n"
            "  note: utilisation: Not Supported\n"
            "  note: NVML gives no bytes for 1 of these processes, as under MIG, in some "
            "containers and without the rights\n");
}

TEST(ReadingText, SaysThatAContainerHidesProcesses) {
  Reading reading = busy_reading();
  reading.gpus[0].processes.clear();
  const std::string text = reading_text(reading);
  EXPECT_NE(text.find("  note: 40.00 GiB are held by nobody that NVML lists; in a container"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("on a GPU, but not in NVML's lists, as in a container\n"
                      "  pid 4800        not given  train\n"),
            std::string::npos)
      << text;
}

TEST(ReadingText, SaysHowOldTheLedgerOfARunIsThatStandsStill) {
  Reading reading = busy_reading();
  EXPECT_EQ(reading_text(reading).find(" ago"), std::string::npos);
  reading.time += 90;
  EXPECT_NE(reading_text(reading).find("step 12 of 471, peak 390.00 MiB, 90 s ago\n"),
            std::string::npos)
      << reading_text(reading);
}

TEST(ReadingText, ShowsTheHostsMemoryForATrainingOnTheCpu) {
  Reading reading;
  reading.nvml_failure = "no NVIDIA driver library: none";
  reading.host = {16 * kGiB, 12 * kGiB};
  reading.runs = {run_on("cpu", 77)};
  reading.runs[0].resident_bytes = 940 * kMiB;
  EXPECT_EQ(reading_text(reading),
            "no GPU to see: no NVIDIA driver library: none\n"
            "host memory\n"
            "  [=======                       ]  4.00 GiB of 16.00 GiB used (25.0 %)\n"
            "  pid 77         940.00 MiB  train\n"
            "      allocator live           300.00 MiB\n"
            "      cached                    70.00 MiB\n"
            "      fragmented                30.00 MiB\n"
            "      context and libraries    550.00 MiB\n"
            "      unexplained              -10.00 MiB\n"
            "      resnet18, step 12 of 471, peak 390.00 MiB\n");
}

TEST(ReadingText, KeepsToOneProcess) {
  const Reading one = only_process(busy_reading(), 4800);
  ASSERT_EQ(one.gpus.size(), 1u);
  ASSERT_EQ(one.gpus[0].processes.size(), 1u);
  // What others hold is not said to be nobody's.
  EXPECT_EQ(reading_text(one, 4800).find("note:"), std::string::npos);
  EXPECT_EQ(reading_text(only_process(busy_reading(), 5), 5),
            "process 5 is on no GPU's list and publishes no ledger\n");
}

TEST(ReadingJson, CarriesTheSameAndNullForWhatIsNotKnown) {
  Reading reading = busy_reading();
  reading.gpus[0].processes[0].bytes.reset();
  reading.gpus[0].processes[0].name = "bad\xff";
  const std::string text = reading_json(reading);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["time"], 1000.5);
  EXPECT_TRUE(json["nvml_failure"].is_null());
  const Json& gpu = json["gpus"].at(0);
  EXPECT_EQ(gpu["index"], 0);
  EXPECT_EQ(gpu["name"], "NVIDIA H200");
  EXPECT_EQ(gpu["uuid"], "GPU-a");
  EXPECT_EQ(gpu["used_bytes"], 40 * kGiB);
  EXPECT_EQ(gpu["total_bytes"], 80 * kGiB);
  EXPECT_EQ(gpu["utilisation_percent"], 87);
  EXPECT_TRUE(gpu["failures"].empty());
  EXPECT_TRUE(gpu["processes"][0]["bytes"].is_null());
  EXPECT_TRUE(gpu["processes"][0]["run"].is_null());
  const Json& run = gpu["processes"][1]["run"];
  EXPECT_EQ(run["live_bytes"], 300 * kMiB);
  EXPECT_EQ(run["cached_bytes"], 70 * kMiB);
  EXPECT_EQ(run["fragmented_bytes"], 30 * kMiB);
  EXPECT_EQ(run["reserved_bytes"], 400 * kMiB);
  EXPECT_EQ(run["context_and_libraries_bytes"], 550 * kMiB);
  EXPECT_EQ(run["unexplained_bytes"], 74 * kMiB);
  EXPECT_EQ(run["live_by_tag"]["parameter"], 300 * kMiB);
  EXPECT_TRUE(run["limit_bytes"].is_null());
  EXPECT_TRUE(json["unlisted_runs"].empty());
  EXPECT_EQ(json["host"]["available_bytes"], 12 * kGiB);
}

TEST(AccountOfARun, LeavesTheRestOpenWithoutAMeasuredContext) {
  auto run = run_on("cuda", 1);  // a fixture has a Run of its own
  run.ledger.outside_bytes = -1;
  const Account account = account_of(run.ledger, 1 * kGiB);
  EXPECT_EQ(account.live_bytes + account.cached_bytes + account.split_bytes, 400 * kMiB);
  EXPECT_EQ(account.outside_bytes, std::nullopt);
  EXPECT_EQ(account.unexplained_bytes, std::nullopt);
}

TEST(WatchScreen, CutsLinesAndSaysHowManyAreMissing) {
  EXPECT_EQ(fitted("abcdef\ngh\n", {4, 24}), "abcd\ngh\n");
  EXPECT_EQ(fitted("1\n2\n3\n4\n", {80, 4}), "1\n2\n... 2 more lines\n");
  EXPECT_EQ(fitted("1\n2\n3\n", {80, 4}), "1\n2\n3\n");
  EXPECT_EQ(fitted("\u00e4\u00f6\u00fc\n", {2, 4}), "\u00e4\u00f6\n");
}

}  // namespace
}  // namespace headroom::test
