// Where halving the batch ends, and what keeps it from ending early.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/train/program_run.h"

namespace headroom::test {
namespace {

const std::string kTight =
    "--device meta:cpu --no-eval --steps 4 --data random:3x24x24:5:1024 --memory-limit ";

// What fits with a small batch from the start also fits after halving: what lives on does not cut
// up the segments that the passes need.
TEST(HalvingLimits, AHalvedRunFitsWhereTheSmallBatchFits) {
  for (const char* limit : {"24MiB ", "32MiB ", "40MiB "}) {
    ASSERT_EQ(train(kTight + limit + "--batch 1 --accum 64").exit_code, 0) << limit;
    const ProcessResult halved = train(kTight + limit + "--batch 64 --on-oom halve-batch");
    EXPECT_EQ(halved.exit_code, 0) << limit << halved.err.substr(0, 2000);
    EXPECT_NE(halved.err.find("is tried again"), std::string::npos) << limit;
  }
}

TEST(HalvingLimits, DoesNotHalveToAPassThatTheModelRefuses) {
  const ProcessResult result = train(
      "--device meta:cpu --model resnet18 --data random:3x2x2:5:26 --batch 26 --steps 2 "
      "--on-oom halve-batch --no-eval --memory-limit 144MiB");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_EQ(result.err.find("needs more than one value"), std::string::npos) << result.err;
}

TEST(HalvingLimits, AResumeWithAnotherBatchIsRefusedIfItComesToAPassOfOne) {
  const TemporaryFolder folder;
  const std::string run = "--device cpu --model resnet18 --data random:3x2x2:2:10 --no-eval ";
  const std::string save = folder.path("r.safetensors");
  ASSERT_EQ(train(run + "--batch 3 --drop-last --steps 1 --save " + save).exit_code, 0);
  const ProcessResult resumed = train(run + "--batch 2 --steps 9 --resume " + save);
  EXPECT_EQ(resumed.exit_code, 2);
  EXPECT_NE(resumed.err.find("--batch 2"), std::string::npos) << resumed.err;
}

TEST(OutputFiles, MayNotBeTheSameAndReplaceNoPipe) {
  const TemporaryFolder folder;
  const std::string x = folder.path("x");
  for (const std::string& flags :
       {"--log " + x + " --save " + x, "--log " + x + ".state.safetensors --save " + x,
        "--memory-report " + x + " --log " + folder.path("./x"),
        // Names that are not there yet, below the current folder.
        std::string("--save same_file --conv-report ./same_file"),
        "--save " + folder.path("y") + " --resume " + x + " --log " + x + ".state.safetensors"}) {
    const ProcessResult result = train(tiny_run(flags));
    EXPECT_EQ(result.exit_code, 2) << flags;
    EXPECT_NE(result.err.find("writes the same file"), std::string::npos) << result.err;
  }
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const char* flag : {"--save ", "--memory-report ", "--log "}) {
    const ProcessResult result = train(tiny_run(flag + pipe), {.timeout_seconds = 60});
    EXPECT_EQ(result.exit_code, 2) << flag << result.err;
    EXPECT_TRUE(std::filesystem::is_fifo(pipe)) << flag;
  }
  ASSERT_EQ(mkfifo(folder.path("p.state.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(train(tiny_run("--resume " + folder.path("p.safetensors")), {.timeout_seconds = 60})
                .exit_code,
            2);
}

TEST(OutputFiles, OfALinkReplaceWhatItPointsTo) {
  const TemporaryFolder folder;
  const std::string link = folder.path("link.safetensors"), real = folder.path("real.safetensors");
  std::ofstream(real) << "old";
  std::filesystem::create_symlink(real, link);
  ASSERT_EQ(train(tiny_run("--save " + link)).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_GT(std::filesystem::file_size(real), 1000u);
}

TEST(OutputFiles, GetNothingThatIsMeantForAClosedStream) {
  const TemporaryFolder folder;
  const std::string log = folder.path("log.jsonl");
  for (const char* closed : {" 2>&-", " >&-"}) {
    const ProcessResult result = run_process(
        {"/bin/sh", "-c", built_program("train") + " " + tiny_run("--log " + log) + closed});
    EXPECT_EQ(result.exit_code, std::string(closed) == " 2>&-" ? 0 : 1) << result.err;
    for (const Json& line : json_lines(log)) EXPECT_TRUE(line.contains("event")) << closed;
  }
}

}  // namespace
}  // namespace headroom::test
