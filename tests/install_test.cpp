// cmake --install and find_package(headroom): a separate project is configured, built and run
// against an installed copy.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/subprocess.h"
#include "tests/train/trainer_run.h"

namespace headroom::test {
namespace {

std::string output_of(const std::vector<std::string>& command) {
  const ProcessResult result = run_process(command);
  if (result.exit_code != 0) throw Error(command[0] + " failed:\n" + result.out + result.err);
  return result.out;
}

TEST(Install, ASeparateProjectBuildsAgainstTheInstalledCopyAndTrains) {
  const std::filesystem::path source = HEADROOM_SOURCE_DIR "/tests/consumer";
  if (!std::filesystem::exists(source)) GTEST_SKIP() << "the sources are not here";
  if (!std::filesystem::exists(HEADROOM_BINARY_DIR "/CMakeCache.txt")) {
    GTEST_SKIP() << "the build folder is not here";
  }
  if (HEADROOM_IS_SANITIZED) GTEST_SKIP() << "a consumer would have to be built with sanitizers";
  const TemporaryFolder folder;
  const std::string prefix = folder.file("prefix"), build = folder.file("build");
  output_of({HEADROOM_CMAKE, "--install", HEADROOM_BINARY_DIR, "--prefix", prefix});
  output_of({HEADROOM_CMAKE, "-S", source.string(), "-B", build, "-DCMAKE_PREFIX_PATH=" + prefix,
             "-DCMAKE_BUILD_TYPE=Debug", std::string("-DCMAKE_CXX_COMPILER=") + HEADROOM_CXX});
  output_of({HEADROOM_CMAKE, "--build", build});
  EXPECT_NE(output_of({build + "/consumer"}).find("loss"), std::string::npos);
  // The program comes along and runs from where it was put.
  EXPECT_NE(output_of({prefix + "/bin/train", "--version"}).find("headroom"), std::string::npos);
  EXPECT_EQ(output_of({prefix + "/bin/memory-watch", "--version"}).find("headroom"), 0u);
}

TEST(Install, OfTheCommandNeedsAFolder) {
  const std::string dev = HEADROOM_SOURCE_DIR "/dev";
  if (!std::filesystem::exists(dev)) GTEST_SKIP() << "the sources are not here";
  EXPECT_NE(output_of({dev, "help"}).find("install PREFIX"), std::string::npos);
  const ProcessResult result = run_process({dev, "install"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("install: takes the folder"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace headroom::test
