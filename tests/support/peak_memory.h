// What a call takes of memory at its peak.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

namespace headroom::test {

// A size of this process as /proc/self/status gives it.
inline int64_t status_bytes(const std::string& field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(field)) return std::atoll(line.c_str() + field.size()) * 1024;
  }
  throw std::runtime_error("/proc/self/status lacks " + field);
}

// The address space that `action` adds at its peak, so memory counts that was asked for and never
// touched. Measured in a child process, whatever `action` throws: the peak of this one is that of
// all its tests.
template <class Action>
int64_t peak_bytes_of(const Action& action) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = fork();
  if (child == 0) {
    const int64_t before = status_bytes("VmSize:");
    try {
      action();
    } catch (...) {
    }
    const int64_t added = status_bytes("VmPeak:") - before;
    _exit(write(ends[1], &added, sizeof added) == sizeof added ? 0 : 1);
  }
  close(ends[1]);
  int64_t added = 0;
  const bool is_whole = child > 0 && read(ends[0], &added, sizeof added) == sizeof added;
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  if (!is_whole) throw std::runtime_error("the child process ended without its answer");
  return added;
}

}  // namespace headroom::test
