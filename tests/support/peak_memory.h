// What a call takes of memory at its peak.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

namespace headroom::test {

// The peak of a child process that runs `action`, exceptions included, in resident bytes. A child
// because the peak of this process is that of all its tests.
template <class Action>
int64_t peak_of_child(const Action& action) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    try {
      action();
    } catch (...) {
    }
    _exit(0);
  }
  int status = 0;
  rusage usage = {};
  if (wait4(child, &status, 0, &usage) != child || status != 0) {
    throw std::runtime_error("the child process did not end by itself");
  }
  return int64_t{usage.ru_maxrss} * 1024;
}

// What `action` adds to the resident bytes.
template <class Action>
int64_t peak_bytes_of(const Action& action) {
  const int64_t idle = peak_of_child([] {});
  return peak_of_child(action) - idle;
}

}  // namespace headroom::test
