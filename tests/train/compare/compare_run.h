// Running the program `memory-compare` from tests.
#pragma once

#include <string>
#include <vector>

#include "tests/train/program_run.h"

namespace headroom::test {

inline std::vector<std::string> compare_command(const std::string& arguments) {
  std::vector<std::string> out = train_command(arguments);
  out[0] = built_program("memory-compare");
  return out;
}

inline ProcessResult compare(const std::string& arguments) {
  return run_process(compare_command(arguments));
}

// A comparison of four steps that takes a moment; "-- ..." ends the arguments.
inline std::string tiny_comparison(const std::string& arguments) {
  return "--device cpu --data random:1x28x28:10:64 --batch 16 --steps 4 --threads 2 " + arguments;
}

// What --json FILE holds.
inline Json compare_json(const std::string& arguments) {
  const TemporaryFolder folder;
  const std::string file = folder.path("compare.json");
  const ProcessResult result = compare("--json " + file + " " + arguments);
  EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
  return Json::parse(file_text(file), nullptr, false);
}

inline Json row_of(const Json& comparison, const std::string& name) {
  for (const Json& row : comparison.at("rows")) {
    if (row.at("name") == name) return row;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

}  // namespace headroom::test
