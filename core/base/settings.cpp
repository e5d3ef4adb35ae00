// The one instance of the switches.
#include "core/base/settings.h"

namespace headroom {

Settings& settings() {
  static Settings instance;
  return instance;
}

}  // namespace headroom
