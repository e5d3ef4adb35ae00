// Replays what the fuzzers found worth keeping, so that every build of the tests runs it, those
// under sanitizers too. docs/fuzzing.md says how the inputs came about.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>

#include "tests/fuzz/targets.h"

namespace headroom::fuzz {
namespace {

namespace fs = std::filesystem;

struct Corpus {
  const char* name;  // of the folder and of the fuzzer
  bool (*run)(Input input);
};

void PrintTo(const Corpus& corpus, std::ostream* out) { *out << corpus.name; }

class FuzzCorpus : public testing::TestWithParam<Corpus> {};

TEST_P(FuzzCorpus, IsReadOrRefusedAndNothingElse) {
  const Corpus& corpus = GetParam();
  int read = 0, refused = 0;
  const fs::path folder = fs::path(HEADROOM_SOURCE_DIR) / "tests/fuzz/corpus" / corpus.name;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
    try {
      ++(corpus.run({data, bytes.size()}) ? read : refused);
    } catch (const std::exception& error) {
      ADD_FAILURE() << entry.path().filename() << ": " << error.what();
    }
  }
  // Inputs of one kind alone would replay one path through the reader.
  EXPECT_GE(read, 1);
  EXPECT_GE(refused, 1);
}

INSTANTIATE_TEST_SUITE_P(Every, FuzzCorpus,
                         testing::Values(Corpus{"idx", idx}, Corpus{"cifar", cifar},
                                         Corpus{"jpeg", image}, Corpus{"png", image},
                                         Corpus{"safetensors", safetensors},
                                         Corpus{"checkpoint", checkpoint},
                                         Corpus{"command_line", command_line}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace headroom::fuzz
