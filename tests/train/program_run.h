// Running the program `train` from tests, on runs that take a moment.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "tests/train/data/data_files.h"

namespace headroom::test {

using Json = nlohmann::json;

// A run of four steps; later flags win over those here.
inline std::string tiny_run(const std::string& flags) {
  return "--device cpu --data random:1x28x28:10:64 --batch 16 --steps 4 " + flags;
}

// Epochs of four steps each; the length is the caller's.
inline std::string two_epochs(const std::string& flags) {
  return "--device cpu --data random:1x28x28:10:64 --batch 16 " + flags;
}

inline std::vector<std::string> train_command(const std::string& flags) {
  std::istringstream words(flags);
  std::vector<std::string> out = {built_program("train")};
  out.insert(out.end(), std::istream_iterator<std::string>(words), {});
  return out;
}

// Flags are separated by blanks.
inline ProcessResult train(const std::string& flags, const ProcessOptions& options = {}) {
  return run_process(train_command(flags), options);
}

// The object that --json prints.
inline Json train_json(const std::string& flags) {
  const ProcessResult result = train(flags + " --json");
  EXPECT_EQ(result.exit_code, 0) << flags << "\n" << result.err;
  return Json::parse(result.out, nullptr, false);
}

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<Json> json_lines(const std::string& path) {
  std::vector<Json> out;
  std::istringstream in(file_text(path));
  for (std::string line; std::getline(in, line);) out.push_back(Json::parse(line));
  return out;
}

}  // namespace headroom::test
