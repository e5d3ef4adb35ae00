// The steady clock.
#include "core/base/clock.h"

#include <chrono>

namespace headroom {

int64_t process_time_ns() {
  using Clock = std::chrono::steady_clock;
  static const Clock::time_point first = Clock::now();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - first).count();
}

}  // namespace headroom
