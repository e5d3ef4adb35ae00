// A driver that tells of the GPUs a test describes, for this process and for programs it starts.
// See fake_nvml.cpp for the description's lines.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/subprocess.h"
#include "tests/support/temporary_folder.h"

namespace headroom::test {

// Above the largest number that Linux gives a process, so there is none.
constexpr int64_t kNoProcess = int64_t{1} << 22;

class FakeDriver {
 public:
  explicit FakeDriver(const std::string& description) {
    std::ofstream(folder_.file("gpus")) << description;
  }
  // "NAME=value". No ledger but those of the test is seen.
  std::vector<std::string> environment() const {
    return {"HEADROOM_NVML=" + built_program("headroom_fake_nvml.so"),
            "HEADROOM_FAKE_NVML=" + folder_.file("gpus"), "HEADROOM_LEDGERS=" + folder_.file("")};
  }

 private:
  TemporaryFolder folder_;
};

// Sets variables of this process, and puts back what was there.
class ScopedEnvironment {
 public:
  explicit ScopedEnvironment(const std::vector<std::string>& variables) {
    for (const std::string& variable : variables) {
      const std::string name = variable.substr(0, variable.find('='));
      const char* before = std::getenv(name.c_str());
      before_.push_back({name, before ? before : "", before != nullptr});
      setenv(name.c_str(), variable.c_str() + name.size() + 1, 1);
    }
  }
  ~ScopedEnvironment() {
    for (const Before& before : before_) {
      if (before.was_set) {
        setenv(before.name.c_str(), before.value.c_str(), 1);
      } else {
        unsetenv(before.name.c_str());
      }
    }
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  struct Before {
    std::string name, value;
    bool was_set;
  };
  std::vector<Before> before_;
};

}  // namespace headroom::test
