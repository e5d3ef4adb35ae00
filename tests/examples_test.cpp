// Every example runs, ends well and prints what it shows. The examples check their own claims and
// end with 1 where one does not hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace headroom::test {
namespace {

namespace fs = std::filesystem;

struct Example {
  std::string name;
  std::string line;  // a part of what it prints
};

const std::vector<Example>& examples() {
  static const std::vector<Example> all = {
      {"train_cnn", "accuracy on unseen bars"},
      {"gradient_accumulation", "passes of 8 images: peak"},
      {"mixed_precision", "mixed precision takes"},
      {"activation_checkpoint", "gradients are equal to the bit"},
      {"offload", "waited on the host"},
      {"no_grad_evaluation", "forward under NoGrad"},
      {"in_place", "was written in place since"},
      {"memory_limit", "went on with batch"},
      {"memory_summary", "the tags sum to the peak"},
      {"predict_peak", "prediction and run are equal to the byte"},
      {"custom_op", "gradient check: largest error"},
      {"launch_blocking", "as told on"},
      {"expandable_segments", "expandable ones go on to"},
  };
  return all;
}

void PrintTo(const Example& example, std::ostream* out) { *out << example.name; }

class Examples : public testing::TestWithParam<Example> {};

TEST_P(Examples, RunsAndPrintsWhatItShows) {
  const std::string program = built_program("example_" + GetParam().name);
  if (!fs::exists(program)) GTEST_SKIP() << program << " was not built";
  ProcessOptions options;
  options.timeout_seconds = 300;
  const ProcessResult result = run_process({program}, options);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_NE(result.out.find(GetParam().line), std::string::npos) << result.out;
  EXPECT_EQ(result.err, "");
}

INSTANTIATE_TEST_SUITE_P(Every, Examples, testing::ValuesIn(examples()),
                         [](const auto& info) { return info.param.name; });

TEST(ExamplesList, HoldsEverySourceInTheFolder) {
  std::vector<std::string> listed, found;
  for (const Example& example : examples()) listed.push_back(example.name);
  for (const auto& entry : fs::directory_iterator(std::string(HEADROOM_SOURCE_DIR) + "/examples")) {
    if (entry.path().extension() == ".cpp") found.push_back(entry.path().stem().string());
  }
  std::sort(listed.begin(), listed.end());
  std::sort(found.begin(), found.end());
  EXPECT_EQ(listed, found);
}

}  // namespace
}  // namespace headroom::test
