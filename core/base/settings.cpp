// The one instance of the switches.
#include "core/base/settings.h"

#include <cstdlib>
#include <cstring>

namespace headroom {

bool is_switched_on(const char* variable) {
  const char* value = std::getenv(variable);
  return value && std::strcmp(value, "1") == 0;
}

Settings& settings() {
  static Settings instance = [] {
    Settings initial;
    initial.launch_blocking =
        is_switched_on("HEADROOM_LAUNCH_BLOCKING") || is_switched_on("CUDA_LAUNCH_BLOCKING");
    return initial;
  }();
  return instance;
}

}  // namespace headroom
