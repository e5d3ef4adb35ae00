// How full a device is, and what of it is not the allocator's.
#pragma once

#include <cstdint>
#include <optional>

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

// What this process holds of the device besides the allocator's segments: context and libraries; on
// a CPU its code, data and heap, at least, since segments that were never touched are not resident.
// Empty where the driver does not say, and on meta devices.
std::optional<int64_t> bytes_outside(Device device);

// Context and libraries of a GPU: what this process holds of it outside of every peak.
struct OutsideMemory {
  std::optional<int64_t> bytes;  // empty where the driver does not say
  // What is in use besides the allocator's segments by whomever, so at most that.
  std::optional<int64_t> at_most_bytes;
};
// Both are empty for other devices.
OutsideMemory outside_memory(Device device);

}  // namespace headroom
