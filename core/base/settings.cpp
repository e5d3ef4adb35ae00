// The one instance of the switches.
#include "core/base/settings.h"

#include <cstdlib>
#include <cstring>

namespace headroom {

bool is_switched_on(const char* variable) {
  const char* value = std::getenv(variable);
  return value && std::strcmp(value, "1") == 0;
}

bool launch_blocking_is_asked_for() {
  return is_switched_on("HEADROOM_LAUNCH_BLOCKING") || is_switched_on("CUDA_LAUNCH_BLOCKING");
}

Settings& settings() {
  static Settings instance;
  return instance;
}

}  // namespace headroom
