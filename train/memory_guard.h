// Watches how full a device is between the steps of a run.
#pragma once

#include <cstdint>

#include "core/base/device.h"

namespace headroom {

struct MemoryUse {
  int64_t used_bytes = 0, capacity_bytes = 0;
  double share() const {
    return static_cast<double>(used_bytes) / static_cast<double>(capacity_bytes);
  }
};

// Of the device's memory limit, what its allocator has reserved; without a limit, of the device's
// memory, what all processes use together.
MemoryUse memory_use(Device device);

}  // namespace headroom
