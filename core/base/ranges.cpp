// Telling a thread's listener.
#include "core/base/ranges.h"

#include <array>
#include <cstddef>

namespace headroom {

const char* name_of(RangeKind kind) {
  constexpr std::array<const char*, 5> kNames = {"step", "phase", "module", "op", "kernel"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace headroom
