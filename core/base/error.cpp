// Throws for broken invariants.
#include "core/base/error.h"

#include <cstring>

namespace headroom::detail {

void fail_internal(const char* file, int line, const char* condition, const std::string& message) {
  const char* slash = std::strrchr(file, '/');
  throw Error(concat("internal error at ", slash ? slash + 1 : file, ":", line, ": ", condition,
                     message.empty() ? "" : ": ", message));
}

}  // namespace headroom::detail
