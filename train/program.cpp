// Failing and printing.
#include "train/program.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "core/base/error.h"

namespace headroom {

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return text;
}

void hold_standard_streams() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) == -1 && errno == EBADF) {
      // The lowest free number is this one.
      if (open("/dev/null", O_RDONLY) != descriptor) return;
    }
  }
}

int fail(const char* program, const std::string& message, int code) {
  std::fputs(fmt::format("{}: error: {}\n", program, one_line(message)).c_str(), stderr);
  return code;
}

int guarded(const char* program, const std::function<int()>& run) {
  try {
    return run();
  } catch (const OutOfMemory& error) {
    return fail(program, error.what(), kOutOfMemory);
  } catch (const std::bad_alloc&) {
    return fail(program, "the host is out of memory", kOutOfMemory);
  } catch (const std::exception& error) {
    return fail(program, error.what(), kFailed);
  }
}

void print_result(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) {
    throw DataError(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
}

}  // namespace headroom
