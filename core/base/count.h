// The limit of counts that come back from a file.
#pragma once

#include <cstdint>

namespace headroom {

// So far from the end of int64_t that no run counts on to it.
constexpr int64_t kMaxRestoredCount = int64_t{1} << 62;

}  // namespace headroom
