// The clock of all records of what happened when, so that they can be laid over each other.
#pragma once

#include <cstdint>

namespace headroom {

// Nanoseconds since the process first asked; never goes back.
int64_t process_time_ns();

}  // namespace headroom
