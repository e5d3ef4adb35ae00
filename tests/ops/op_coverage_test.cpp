// That the op table has a row for every function of the op headers.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "tests/ops/op_row.h"

namespace headroom::testing_ops {
namespace {

// Functions at namespace level that take or give tensors, as the headers declare them.
std::set<std::string> declared_functions(const std::filesystem::path& header) {
  std::ifstream file(header);
  std::set<std::string> out;
  const std::regex declaration(R"(^(?:Tensor&?|MaxResult|void) (\w+)\()");
  std::string line;
  while (std::getline(file, line)) {
    std::smatch match;
    if (std::regex_search(line, match, declaration)) out.insert(match[1]);
  }
  return out;
}

TEST(OpTable, HasARowForEveryFunctionOfTheHeaders) {
  const std::filesystem::path root = HEADROOM_SOURCE_DIR;
  if (!std::filesystem::exists(root / "core/ops")) GTEST_SKIP() << "the sources are not here";
  std::set<std::string> covered;
  for (const Row& row : op_table()) covered.insert(row.covers.begin(), row.covers.end());
  std::set<std::string> declared;
  for (const char* header :
       {"core/ops/elementwise.h", "core/ops/linalg.h", "core/ops/conv.h", "core/ops/pool.h",
        "core/ops/norm.h", "core/ops/reduce.h", "core/ops/loss.h", "core/ops/shape_ops.h",
        "core/autograd/checkpoint.h", "core/tensor/tensor.h"}) {
    const std::set<std::string> found = declared_functions(root / header);
    EXPECT_FALSE(found.empty()) << header;
    declared.insert(found.begin(), found.end());
  }
  // Not ops: helpers of core/tensor/tensor.h that make or relabel handles.
  for (const char* helper : {"alias", "dense_in", "converted", "moved"}) declared.erase(helper);
  EXPECT_GE(declared.size(), 60u);
  for (const std::string& name : declared) {
    EXPECT_TRUE(covered.contains(name)) << name << " has no row in the op table";
  }
  for (const std::string& name : covered) {
    EXPECT_TRUE(declared.contains(name)) << name << " has a row but no declaration";
  }
}

TEST(OpTable, HasRowsOfDifferentNames) {
  std::set<std::string> names;
  for (const Row& row : op_table()) EXPECT_TRUE(names.insert(row.name).second) << row.name;
}

}  // namespace
}  // namespace headroom::testing_ops
