// The program as people run it: what it prints, how it ends, what it leaves behind.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/device.h"
#include "tests/train/program_run.h"

namespace headroom::test {
namespace {

TEST(Program, PrintsOneJsonObjectAloneOnStandardOutput) {
  const ProcessResult result = train(tiny_run("--json"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  ASSERT_FALSE(result.out.empty());
  EXPECT_EQ(result.out.find('\n'), result.out.size() - 1);
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["model"], "lenet");
  EXPECT_EQ(json["data"], "random");
  EXPECT_EQ(json["device"], "cpu");
  EXPECT_EQ(json["batch"], 16);
  EXPECT_EQ(json["accum"], 1);
  EXPECT_EQ(json["steps"], 4);
  EXPECT_EQ(json["interrupted"], false);
  EXPECT_TRUE(json["cudnn_version"].is_null());
  EXPECT_GT(json["train_loss"].get<double>(), 0);
  EXPECT_GE(json["test_accuracy"].get<double>(), 0);
  EXPECT_LE(json["test_accuracy"].get<double>(), 1);
  EXPECT_GT(json["images_per_s"].get<double>(), 0);
  EXPECT_NE(result.err.find("peak allocated"), std::string::npos) << result.err;
}

TEST(Program, PartsOfThePeakSumToThePeakInEveryPhase) {
  const Json json = train_json(tiny_run(""));
  const auto check = [](const Json& phase) {
    int64_t sum = 0;
    for (const auto& [tag, bytes] : phase["peak_parts"].items()) sum += bytes.get<int64_t>();
    EXPECT_EQ(sum, phase["peak_allocated"].get<int64_t>());
    EXPECT_GT(sum, 0);
    EXPECT_GE(phase["peak_reserved"].get<int64_t>(), sum);
  };
  check(json);
  check(json["first_step"]);
  check(json["evaluation"]);
}

TEST(Program, ConfigurationInTheReportIsTheSettledOne) {
  const Json config = train_json(tiny_run("--optimizer adam"))["config"];
  EXPECT_EQ(config["device"], "cpu");
  EXPECT_EQ(config["lr"], 1e-3);
  EXPECT_EQ(config["eval_batch"], 16);
  EXPECT_EQ(config["image_size"], 28);
  EXPECT_EQ(config["augment"], "none");
  EXPECT_EQ(config["steps"], 4);
  EXPECT_GT(config["threads"].get<int>(), 0);
}

TEST(Program, LaunchesBlockIfTheEnvironmentAsksForIt) {
  for (const auto& [variable, blocks] :
       {std::pair("HEADROOM_LAUNCH_BLOCKING=1", true), std::pair("CUDA_LAUNCH_BLOCKING=1", true),
        std::pair("HEADROOM_LAUNCH_BLOCKING=0", false)}) {
    const ProcessResult result = train(tiny_run("--no-eval --json"), {.environment = {variable}});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(Json::parse(result.out)["config"]["launch_blocking"], blocks) << variable;
  }
}

TEST(Program, PrintsTheTableOnStandardOutputAndProgressOnStandardError) {
  const ProcessResult result = train(tiny_run(""));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* text :
       {"4 steps", "test accuracy", "images/s", "ms per step", "peak allocated", "peak reserved",
        "outside of it", "parameter", "in the first step", "in evaluation"}) {
    EXPECT_NE(result.out.find(text), std::string::npos) << text << "\n" << result.out;
  }
  EXPECT_NE(result.err.find("step 4/4"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("test accuracy"), std::string::npos) << result.err;
  EXPECT_EQ(result.err.find('\r'), std::string::npos) << "control characters in a pipe";
}

TEST(Program, DescribesItself) {
  const ProcessResult help = train("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_NE(help.out.find("usage: train"), std::string::npos);
  EXPECT_EQ(help.err, "");
  const ProcessResult version = train("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_NE(version.out.find("headroom "), std::string::npos);
}

// Bytes of a context are those of driver and GPU: above a stream's stacks, below a small card.
TEST(Program, TellsContextAndLibrariesOfAGpuApartFromThePeak) {
  if (!has_runtime(Device::cuda())) GTEST_SKIP() << "no cuda on this machine";
  const Json json = train_json(tiny_run("--device cuda"));
  const auto at_most = json["context_and_libraries_at_most_bytes"].get<int64_t>();
  EXPECT_GT(at_most, int64_t{16} << 20);
  if (json["context_and_libraries_bytes"].is_null()) {
    GTEST_SKIP() << "the driver does not list the program, as in a container";
  }
  const auto bytes = json["context_and_libraries_bytes"].get<int64_t>();
  EXPECT_GT(bytes, int64_t{16} << 20);
  EXPECT_LT(bytes, int64_t{4} << 30);
}

TEST(Program, TakesTheCpuWithoutAGpuAndSaysSo) {
  if (has_runtime(Device::cuda())) GTEST_SKIP() << "this machine has a GPU";
  const ProcessResult result = train(tiny_run("--device auto"));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("training on the CPU"), std::string::npos) << result.err;
}

TEST(Program, SameSeedGivesTheSameRunAndAnotherSeedAnother) {
  const Json first = train_json(tiny_run("--seed 5")), second = train_json(tiny_run("--seed 5"));
  EXPECT_EQ(first["train_loss"], second["train_loss"]);
  EXPECT_EQ(first["test_accuracy"], second["test_accuracy"]);
  EXPECT_EQ(first["test_loss"], second["test_loss"]);
  EXPECT_NE(first["train_loss"], train_json(tiny_run("--seed 6"))["train_loss"]);
}

TEST(Program, ThreadsChangeNeitherTheLossNorThePeak) {
  const Json one = train_json(tiny_run("--threads 1 --loader-threads 0"));
  for (const char* flags : {"--threads 3 --loader-threads 1", "--threads 2 --loader-threads 5"}) {
    const Json other = train_json(tiny_run(flags));
    for (const char* key : {"train_loss", "test_loss", "test_accuracy", "peak_allocated",
                            "peak_reserved", "peak_parts"}) {
      EXPECT_EQ(one[key], other[key]) << key << " with " << flags;
    }
  }
}

TEST(Program, ResidentImagesGiveTheSameRunAndCountInThePeak) {
  const Json plain = train_json(tiny_run("")), resident = train_json(tiny_run("--resident"));
  EXPECT_EQ(plain["train_loss"], resident["train_loss"]);
  EXPECT_GT(resident["peak_parts"]["input"], plain["peak_parts"]["input"]);
}

TEST(Program, AccumulatingIsTheSameStepWithLessMemory) {
  const Json whole = train_json(tiny_run("--batch 32 --steps 2"));
  const Json parts = train_json(tiny_run("--batch 8 --accum 4 --steps 2"));
  EXPECT_EQ(parts["steps"], 2);
  EXPECT_NEAR(whole["train_loss"].get<double>(), parts["train_loss"].get<double>(), 1e-4);
  EXPECT_NEAR(whole["test_loss"].get<double>(), parts["test_loss"].get<double>(), 1e-4);
  EXPECT_LT(parts["peak_allocated"], whole["peak_allocated"]);
}

TEST(Program, MetaPredictsThePeaksOfTheCpuToTheByte) {
  for (const char* flags : {"", "--accum 2", "--amp", "--checkpoint", "--no-inplace"}) {
    const Json real = train_json(tiny_run(flags));
    const Json predicted = train_json(tiny_run(std::string("--device meta:cpu ") + flags));
    for (const char* key : {"peak_allocated", "peak_reserved", "peak_parts", "first_step",
                            "evaluation", "parameter_count", "steps"}) {
      EXPECT_EQ(real[key], predicted[key]) << key << " with " << flags;
    }
    EXPECT_TRUE(predicted["train_loss"].is_null());
    EXPECT_TRUE(predicted["test_accuracy"].is_null());
    EXPECT_EQ(predicted["skipped_steps"], 0);
  }
}

TEST(Program, MetaCudaPredictsWithoutAGpu) {
  const Json json = train_json(
      "--device meta:cuda --model resnet18 --data random:3x32x32:10:512 --batch 128 --steps 2 "
      "--amp");
  EXPECT_EQ(json["device"], "meta:cuda");
  EXPECT_GT(json["peak_allocated"].get<int64_t>(), 100 << 20);
  EXPECT_GT(json["peak_parts"]["saved_activation"], json["peak_parts"]["parameter"]);
}

TEST(Program, KeepsALogLinePerStepAndEpochThatAResumedRunAddsTo) {
  const TemporaryFolder folder;
  const std::string files =
      " --log " + folder.path("log.jsonl") + " --save " + folder.path("a.safetensors");
  ASSERT_EQ(train(two_epochs("--epochs 1" + files)).exit_code, 0);
  std::vector<Json> lines = json_lines(folder.path("log.jsonl"));
  ASSERT_EQ(lines.size(), 5U);  // four steps and their epoch
  EXPECT_EQ(lines[0]["event"], "step");
  EXPECT_EQ(lines[0]["step"], 1);
  EXPECT_GT(lines[0]["loss"].get<double>(), 0);
  EXPECT_GT(lines[0]["lr"].get<double>(), lines[3]["lr"].get<double>());
  EXPECT_GT(lines[1]["allocated"].get<int64_t>(), 0);
  EXPECT_EQ(lines[4]["event"], "epoch");
  EXPECT_EQ(lines[4]["step"], 4);
  ASSERT_EQ(
      train(two_epochs("--epochs 2 --resume " + folder.path("a.safetensors") + files)).exit_code,
      0);
  lines = json_lines(folder.path("log.jsonl"));
  ASSERT_EQ(lines.size(), 10U);
  EXPECT_EQ(lines[5]["step"], 5);
  EXPECT_EQ(lines[9]["epoch"], 2);
}

// The schedule depends on the length of the run, so that is the same in both.
TEST(Program, ResumedRunEndsLikeAnUnbrokenOne) {
  const std::string flags = "--schedule constant --warmup 0 ";
  const Json whole = train_json(two_epochs(flags + "--epochs 2"));
  for (const char* part : {"--epochs 1", "--steps 6"}) {  // at the end of an epoch, and inside one
    const TemporaryFolder folder;
    const std::string save = folder.path("a.safetensors");
    ASSERT_EQ(train(two_epochs(flags + part + " --save " + save)).exit_code, 0);
    const Json resumed = train_json(two_epochs(flags + "--epochs 2 --resume " + save));
    for (const char* key : {"steps", "train_loss", "test_loss", "test_accuracy"}) {
      EXPECT_EQ(whole[key], resumed[key]) << key << " after " << part;
    }
  }
}

TEST(Program, EndsWithAnErrorWhenItsResultCannotBeWritten) {
  const ProcessResult result = run_process(
      {"/bin/sh", "-c", built_program("train") + " " + tiny_run("--json") + " > /dev/full"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("train: error: standard output cannot be written"), std::string::npos)
      << result.err;
}

TEST(Program, TrainsOnWhenNobodyReadsItsProgress) {
  const ProcessResult result = run_process(
      {"/bin/sh", "-c", built_program("train") + " " + tiny_run("--json") + " 2> /dev/full"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(Json::parse(result.out)["steps"], 4);
}

}  // namespace
}  // namespace headroom::test
