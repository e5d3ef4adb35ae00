// How the program ends when something is wrong: exit codes, one clear line, nothing half-written.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/device.h"
#include "tests/train/program_run.h"

namespace headroom::test {
namespace {

// One line "train: error: ..." that contains `part`, and nothing on standard output.
void expect_one_error_line(const ProcessResult& result, const std::string& part) {
  EXPECT_EQ(result.out, "");
  const size_t at = result.err.find("train: error: ");
  ASSERT_NE(at, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find('\n', at), result.err.size() - 1) << result.err;
  EXPECT_NE(result.err.find(part, at), std::string::npos) << result.err;
}

// Known at the start, so said then: not after an epoch.
TEST(Program, RefusesAPassOfOneImageWhereBatchNormNeedsMore) {
  const std::string one_left = "--device cpu --model resnet18 --data random:3x8x8:4:17 --batch 16 ";
  const ProcessResult result = train(one_left);
  EXPECT_EQ(result.exit_code, 2);
  expect_one_error_line(result, "--batch 16: of 17 images one is left");
  EXPECT_EQ(train(one_left + "--drop-last --steps 1 --no-eval").exit_code, 0);
  // Where the net can, it may.
  EXPECT_EQ(
      train("--device cpu --model lenet --data random:1x12x12:4:17 --batch 16 --steps 1").exit_code,
      0);
}

TEST(ProgramFailure, WrongInputEndsWithTwoAndWritesNothing) {
  const TemporaryFolder bad;
  write_bytes(bad.path("cifar/data_batch_1.bin"), Bytes(3073 * 2 - 1));
  write_bytes(bad.path("cifar/test_batch.bin"), Bytes(3073));
  Bytes label_too_large(3073);
  label_too_large[0] = 10;
  write_bytes(bad.path("label/data_batch_1.bin"), label_too_large);
  write_bytes(bad.path("label/test_batch.bin"), Bytes(3073));
  write_bytes(bad.path("mnist/train-images-idx3-ubyte"), Bytes(20));
  write_bytes(bad.path("text.safetensors"), Bytes(100, 'x'));
  bad.make_folder("empty");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--batch 0", "--batch"},
      {"--accum 0", "--accum"},
      {"--bacth 4", "did you mean --batch?"},
      {"--lr nan", "--lr"},
      {"stray", "stray"},
      {"--data " + bad.path("missing"), "--data: " + bad.path("missing")},
      {"--data " + bad.path("empty"), "empty"},
      {"--data " + bad.path("cifar"), "--data: cifar: "},
      {"--data " + bad.path("label"), "10"},
      {"--data " + bad.path("mnist"), "mnist"},
      {"--data random:0x28x28:10", "random:"},
      {"--data random:1x4x4:10 --model resnet50 --image-size 0", "--image-size"},
      {"--data random:1x2x2:10", "lenet"},
      {"--data random:1x28x28:10:5 --batch 16 --accum 4 --drop-last", "batch"},
      {"--resume " + bad.path("missing.safetensors"), "missing"},
      {"--resume " + bad.path("text.safetensors"), "text"},
      {"--save " + bad.path("cifar"), "--save"},
      {"--save /nowhere/a.safetensors", "--save"},
      {"--save " + std::string(250, 'a'), "--save"},
      {"--trace " + std::string(255, 'a'), "--trace"},
      {"--memory-report " + bad.path("r.txt"), "ends in .html or .json"},
      {"--memory-limit 1.5", "fraction of a byte"},
      {"--log /nowhere/log.jsonl", "--log"},
  };
  for (const auto& [flags, part] : cases) {
    SCOPED_TRACE(flags);
    const TemporaryFolder out;
    const ProcessResult result = train("--device cpu --steps 1 --log " + out.path("log.jsonl") +
                                       " --save " + out.path("a.safetensors") + " " + flags);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    expect_one_error_line(result, part);
    EXPECT_EQ(out.names(), std::vector<std::string>{});
  }
}

TEST(ProgramFailure, CudaWithoutAGpuEndsWithTwo) {
  if (has_runtime(Device::cuda())) GTEST_SKIP() << "this machine has a GPU";
  const ProcessResult result = train(tiny_run("--device cuda"));
  EXPECT_EQ(result.exit_code, 2);
  expect_one_error_line(result, "--device cuda");
}

TEST(ProgramFailure, OutOfMemoryEndsWithThree) {
  const ProcessResult result = train(tiny_run("--memory-limit 4MiB"));
  EXPECT_EQ(result.exit_code, 3);
  expect_one_error_line(result, "memory");
}

int64_t sum_of(const Json& bytes) {
  int64_t sum = 0;
  for (const Json& each : bytes) sum += each.get<int64_t>();
  return sum;
}

// The only line on standard output, whatever the phase that failed.
Json failure_of(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_EQ(result.out.find('\n'), result.out.size() - 1) << result.out;
  return Json::parse(result.out, nullptr, false);
}

TEST(ProgramFailure, OutOfMemoryIsAnObjectForPrograms) {
  const ProcessResult result = train(tiny_run("--memory-limit 24MiB --threads 1 --json"));
  const Json out = failure_of(result);
  EXPECT_EQ(out["model"], "lenet");
  EXPECT_EQ(out["steps"], 1) << "the first has no momenta yet when its backward begins";
  EXPECT_EQ(out["config"]["memory_limit"], int64_t{24} << 20);
  const Json& error = out["error"];
  EXPECT_EQ(error["kind"], "out of memory");
  EXPECT_NE(result.err.find(error["message"].get<std::string>()), std::string::npos);
  EXPECT_EQ(error["device"], "cpu");
  EXPECT_NE(error["op"], "");
  EXPECT_NE(error["path"], "");
  EXPECT_NE(error["phase"], "none");
  EXPECT_GT(error["requested_bytes"], 0);
  EXPECT_GE(error["rounded_bytes"], error["requested_bytes"]);
  EXPECT_GE(error["segment_bytes"], error["rounded_bytes"]);
  EXPECT_EQ(error["limit_bytes"], int64_t{24} << 20);
  EXPECT_GT(error["device_free_bytes"], 0);
  EXPECT_LE(error["reserved_bytes"], error["limit_bytes"]);
  EXPECT_EQ(sum_of(error["parts"]), error["allocated_bytes"]);
  ASSERT_FALSE(error["modules"].empty());
  EXPECT_GE(error["modules"][0]["bytes"], error["modules"].back()["bytes"]);
}

TEST(ProgramFailure, AModelThatDoesNotFitIsAnObjectAndAReportToo) {
  const TemporaryFolder folder;
  const std::string file = folder.path("report.json");
  const Json out =
      failure_of(train(tiny_run("--memory-limit 4MiB --json --memory-report " + file)));
  EXPECT_EQ(out["device"], "cpu");
  EXPECT_TRUE(out["parameter_count"].is_null());
  EXPECT_EQ(sum_of(out["error"]["parts"]), out["error"]["allocated_bytes"]);
  const Json report = Json::parse(file_text(file));
  EXPECT_EQ(report["run"]["error"], out["error"]);
  EXPECT_EQ(report["peak"]["allocated"], out["error"]["allocated_bytes"]);
  EXPECT_EQ(
      train(tiny_run("--memory-limit 8 --json")).err.find("holds nothing") == std::string::npos,
      false);
}

TEST(ProgramFailure, AResumeWithAnotherModelNamesBoth) {
  const TemporaryFolder folder;
  const std::string save = folder.path("a.safetensors");
  ASSERT_EQ(train(tiny_run("--save " + save)).exit_code, 0);
  const ProcessResult result = train(tiny_run("--model resnet18 --steps 8 --resume " + save));
  EXPECT_EQ(result.exit_code, 2);
  expect_one_error_line(result, "lenet");
  expect_one_error_line(result, "resnet18");
}

}  // namespace
}  // namespace headroom::test
