// The pages in a real browser: drawn, sortable, readable on a phone and in the dark. What is looked
// at stands in pages_browser.py. HEADROOM_PICTURES=FOLDER keeps pictures of the pages.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/train/page_samples.h"
#include "tests/train/program_run.h"
#include "train/pages.h"

namespace headroom::test {
namespace {

// The first of the programs that stands in a folder of PATH; empty if none does.
std::string find_program(const std::vector<std::string>& names) {
  const char* path = std::getenv("PATH");
  for (const std::string& name : names) {
    std::istringstream folders(path ? path : "");
    for (std::string folder; std::getline(folders, folder, ':');) {
      const std::filesystem::path file = std::filesystem::path(folder) / name;
      if (access(file.c_str(), X_OK) == 0) return file.string();
    }
  }
  return {};
}

TEST(PagesInABrowser, AreDrawnSortedAndReadableInEveryView) {
  const std::string browser = find_program({"chromium", "chromium-browser", "google-chrome"});
  if (browser.empty()) GTEST_SKIP() << "no chromium or google-chrome in PATH";
  const std::string python = find_program({"python3"});
  if (python.empty()) GTEST_SKIP() << "no python3 in PATH";
  const std::string script = HEADROOM_SOURCE_DIR "/tests/train/pages_browser.py";
  if (!std::filesystem::exists(script)) GTEST_SKIP() << "the sources are not here";

  const TemporaryFolder folder;
  const std::string comparison = folder.path("comparison.html");
  std::ofstream(comparison) << page_of_comparison(sample_comparison());
  const std::string report = folder.path("memory_report.html");
  const ProcessResult run = train(
      "--device meta:cuda --model resnet18 --data random:3x32x32:10 --batch 64 --steps 3 --amp "
      "--memory-report " +
      report);
  ASSERT_EQ(run.exit_code, 0) << run.err;

  std::vector<std::string> command = {python, script, browser, comparison, report};
  if (const char* pictures = std::getenv("HEADROOM_PICTURES")) command.push_back(pictures);
  const ProcessResult result = run_process(command, {.environment = {"PYTHONDONTWRITEBYTECODE=1"}});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_FALSE(result.timed_out);
}

}  // namespace
}  // namespace headroom::test
