// The table, the JSON object and the log.
#include "train/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <numeric>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/memory/allocation_failure.h"
#include "train/report_log.h"

namespace headroom {
namespace {

using Json = nlohmann::json;

Report example() {
  Report report;
  report.info.device_name = "cpu";
  report.info.device_description = "CPU, 2 hardware threads";
  report.info.data_name = "digits train";
  report.info.parameter_count = 1234;
  report.result.steps = 471;
  report.result.train_loss = 0.25;
  report.result.test_accuracy = 0.9865;
  report.result.test_loss = 0.125;
  report.result.step_ms = 15.5;
  report.result.images_per_s = 4129;
  report.result.peak.allocated = 3 << 20;
  report.result.peak.reserved = 22 << 20;
  report.result.peak.parts[static_cast<size_t>(Tag::parameter)] = 1 << 20;
  report.result.peak.parts[static_cast<size_t>(Tag::saved_activation)] = 2 << 20;
  report.result.first_step = report.result.peak;
  return report;
}

TEST(Report, TableListsThePeaksPartsFromTheLargest) {
  const std::string table = to_table(example());
  const size_t saved = table.find("saved activation"), parameter = table.find("parameter ");
  ASSERT_NE(saved, std::string::npos);
  ASSERT_NE(parameter, std::string::npos);
  EXPECT_LT(saved, parameter);
  for (const char* text : {"471 steps", "98.65 %", "4129 images/s, 15.50 ms per step", "3.00 MiB",
                           "22.00 MiB", "66.7 %", "33.3 %", "in the first step"}) {
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  }
  for (const char* text : {"gradient", "cuDNN", "skipped", "fallbacks", "in evaluation"}) {
    EXPECT_EQ(table.find(text), std::string::npos) << text << "\n" << table;
  }
}

TEST(Report, TableNamesWhatWentOtherwise) {
  Report report = example();
  report.cudnn_version = "9.19.0";
  report.result.skipped_steps = 2;
  report.result.workspace_fallbacks = 3;
  report.result.interrupted = true;
  report.result.train_loss = std::numeric_limits<double>::quiet_NaN();
  const std::string table = to_table(report);
  for (const char* text : {"interrupted after step 471", "9.19.0", "skipped steps", "fallbacks",
                           "the loss is not finite"}) {
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  }
}

TEST(Report, TableTellsARunThatWasStoppedFromOneThatWasInterrupted) {
  Report report = example();
  report.result.interrupted = report.result.over_threshold = true;
  const std::string table = to_table(report);
  EXPECT_TRUE(table.starts_with("stopped above --memory-threshold after step 471\n")) << table;
}

// The host's own failure has no facts.
TEST(Report, JsonOfAFailedRunHasAllKeysWhateverIsKnown) {
  FailedRun run;
  run.info.device_name = "cpu";
  const std::bad_alloc host;
  run.error = &host;
  ASSERT_TRUE(is_out_of_memory(host));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("other")));
  const Json of_host = Json::parse(to_json(run))["error"];
  EXPECT_EQ(of_host["message"], "the host is out of memory");
  EXPECT_TRUE(of_host["op"].is_null());
  const AllocationFailure failure("message", {.requested_bytes = 5, .allocated_bytes = 512},
                                  Device::cpu(), {.op = "conv2d", .phase = Phase::forward},
                                  {{.tag = Tag::input, .bytes = 512}});
  run.error = &failure;
  const Json of_device = Json::parse(to_json(run))["error"];
  EXPECT_EQ(of_device.size(), of_host.size());
  EXPECT_EQ(of_device["phase"], "forward");
  EXPECT_EQ(of_device["parts"]["input"], 512);
  EXPECT_EQ(of_device["modules"][0]["path"], "");
  EXPECT_TRUE(of_device["limit_bytes"].is_null());
}

TEST(Report, JsonHasEveryKeyAndItsPartsSumToThePeak) {
  const Json json = Json::parse(to_json(example()));
  for (const char* key : {"model",          "data",
                          "device",         "device_description",
                          "cudnn_version",  "parameter_count",
                          "batch",          "accum",
                          "steps",          "epochs",
                          "interrupted",    "train_loss",
                          "test_loss",      "test_accuracy",
                          "step_ms",        "images_per_s",
                          "peak_allocated", "peak_reserved",
                          "peak_parts",     "first_step",
                          "evaluation",     "skipped_steps",
                          "loss_scale",     "workspace_fallbacks",
                          "config"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  int64_t sum = 0;
  for (const auto& [tag, bytes] : json["peak_parts"].items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(json["peak_parts"].size(), static_cast<size_t>(kTagCount));
  EXPECT_EQ(sum, json["peak_allocated"].get<int64_t>());
  EXPECT_EQ(json["test_accuracy"], 0.9865);
  EXPECT_TRUE(json["cudnn_version"].is_null());
  EXPECT_TRUE(json["evaluation"].is_null());
}

TEST(Report, JsonWritesNumbersThatAreNotFiniteAsNull) {
  Report report = example();
  report.result.train_loss = std::numeric_limits<double>::quiet_NaN();
  report.result.test_loss = std::numeric_limits<double>::infinity();
  const Json json = Json::parse(to_json(report));
  EXPECT_TRUE(json["train_loss"].is_null());
  EXPECT_TRUE(json["test_loss"].is_null());
}

TEST(Report, JsonOfAMetaDeviceHasBytesButNoValues) {
  Report report = example();
  report.info.device_name = "meta:cuda";
  const Json json = Json::parse(to_json(report));
  EXPECT_TRUE(json["train_loss"].is_null());
  EXPECT_TRUE(json["test_accuracy"].is_null());
  EXPECT_EQ(json["peak_allocated"], 3 << 20);
  EXPECT_TRUE(json["images_per_s"].is_null());
  EXPECT_EQ(to_table(report).find("accuracy"), std::string::npos);
}

TEST(Report, NamesWhatLiesOutsideOfThePeakAndHowMuchWhereThatIsKnown) {
  Report report = example();
  const auto row = [&report](const char* device) {
    report.info.device_name = device;
    const std::string table = to_table(report);
    const size_t begin = table.find("  outside of it");
    EXPECT_NE(begin, std::string::npos) << table;
    return table.substr(begin, table.find('\n', begin) - begin);
  };
  EXPECT_EQ(row("meta:cuda"), "  outside of it     context and libraries, which are not predicted");
  EXPECT_EQ(row("cpu"), "  outside of it     code, data and libraries, which are not measured");
  report.outside.at_most_bytes = int64_t{3} << 30;
  EXPECT_EQ(
      row("cuda"),
      "  outside of it     context and libraries, at most 3.00 GiB: the driver gives no bytes "
      "of this process, all processes together hold that");
  EXPECT_TRUE(Json::parse(to_json(report))["context_and_libraries_bytes"].is_null());
  report.outside.bytes = int64_t{512} << 20;
  EXPECT_EQ(row("cuda"), "  outside of it     512.00 MiB of context and libraries");
  const Json json = Json::parse(to_json(report));
  EXPECT_EQ(json["context_and_libraries_bytes"], int64_t{512} << 20);
  EXPECT_EQ(json["context_and_libraries_at_most_bytes"], int64_t{3} << 30);
}

TEST(Report, JsonSurvivesNamesThatAreNoUtf8) {
  Report report = example();
  report.config.save =
      "a\xff"
      "b";
  EXPECT_NO_THROW(Json::parse(to_json(report)));
}

class RunLogTest : public ::testing::Test {
 protected:
  ~RunLogTest() override { std::filesystem::remove(path_); }

  void write_one_step(bool append) {
    RunLog log(path_, append, Device::cpu());
    log.on_start({});
    log.on_step({7, 2, 64, 64, 0.5, 1000, [] { return 0.75; }, [] { return 0.1; }});
    log.on_epoch({.epoch = 2, .train_loss = NAN, .seconds = 1});
  }

  std::vector<Json> lines() const {
    std::vector<Json> out;
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
    return out;
  }

  std::string path_ = (std::filesystem::path(::testing::TempDir()) / "headroom_run_log_test.jsonl");
};

TEST_F(RunLogTest, WritesALinePerStepAndEpoch) {
  write_one_step(false);
  const std::vector<Json> all = lines();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["event"], "step");
  EXPECT_EQ(all[0]["step"], 7);
  EXPECT_EQ(all[0]["loss"], 0.75);
  EXPECT_EQ(all[0]["images_per_s"], 128.0);
  EXPECT_EQ(all[0]["peak_allocated"], 1000);
  EXPECT_EQ(all[1]["event"], "epoch");
  EXPECT_EQ(all[1]["step"], 7);
  EXPECT_TRUE(all[1]["train_loss"].is_null());
  EXPECT_TRUE(all[1]["test_accuracy"].is_null());
}

TEST_F(RunLogTest, AddsToAFileOrBeginsItAnew) {
  write_one_step(false);
  write_one_step(true);
  EXPECT_EQ(lines().size(), 4U);
  write_one_step(false);
  EXPECT_EQ(lines().size(), 2U);
}

TEST_F(RunLogTest, RefusesAFileThatCannotBeOpenedAndReportsAFullDisk) {
  EXPECT_THROW(RunLog("/nowhere/log", false, Device::cpu()), InvalidArgument);
  RunLog full("/dev/full", false, Device::cpu());
  EXPECT_THROW(full.on_epoch({.epoch = 1}), DataError);
}

}  // namespace
}  // namespace headroom
