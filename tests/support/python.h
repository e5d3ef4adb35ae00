// Running Python scripts from tests, where there is a Python.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/subprocess.h"

namespace headroom::test {

inline ProcessResult python_process(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"/usr/bin/env", "python3"});
  return run_process(arguments);
}

inline bool has_python() {
  static const bool has = python_process({"-c", ""}).exit_code == 0;
  return has;
}

// What a script prints; a script that fails is a failure of the test.
inline std::string run_python(const std::vector<std::string>& arguments) {
  const ProcessResult result = python_process(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

}  // namespace headroom::test
