// A fuzzer's input as a file, and what its readers may throw.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "core/base/error.h"
#include "tests/fuzz/targets.h"

namespace headroom::fuzz {

// In memory, under a path that lasts as long as the object: nothing is left behind by a crash, and
// nothing waits for a disk.
class InputFile {
 public:
  explicit InputFile(Input bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t wrote = write(fd_, bytes.data() + done, bytes.size() - done);
      if (wrote < 0) throw std::system_error(errno, std::generic_category(), "write");
      done += static_cast<size_t>(wrote);
    }
  }
  ~InputFile() { close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// False if the input is refused the way it may be.
template <class Action>
bool is_accepted(const Action& action) {
  try {
    action();
    return true;
  } catch (const InvalidArgument&) {
    return false;
  } catch (const DataError&) {
    return false;
  }
}

inline void require(bool condition, const char* what) {
  if (!condition) throw Broken(what);
}

}  // namespace headroom::fuzz
