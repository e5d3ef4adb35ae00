// Reading how full a device is.
#include "train/memory_guard.h"

#include <algorithm>

#include "core/memory/caching_allocator.h"

namespace headroom {

MemoryUse memory_use(Device device) {
  const CachingAllocator& allocator = allocator_of(device);
  if (const int64_t limit = allocator.memory_limit(); limit > 0) {
    return {allocator.reserved_bytes(), limit};
  }
  const MemoryInfo info = runtime_of(device).memory_info();
  return {info.total_bytes - info.free_bytes, info.total_bytes};
}

std::optional<int64_t> bytes_outside(Device device) {
  const std::optional<int64_t> held = runtime_of(device).process_bytes();
  if (!held) return std::nullopt;
  const int64_t outside = *held - allocator_of(device).reserved_bytes();
  if (outside >= 0) return outside;
  // A GPU's segments are always there, so that was the figure of another process: one that has this
  // one's number outside of this container.
  return device.is_cpu() ? std::optional<int64_t>(0) : std::nullopt;
}

OutsideMemory outside_memory(Device device) {
  if (!device.is_cuda()) return {};
  const MemoryInfo info = runtime_of(device).memory_info();
  const int64_t used_bytes = info.total_bytes - info.free_bytes;
  return {bytes_outside(device),
          std::max<int64_t>(0, used_bytes - allocator_of(device).reserved_bytes())};
}

}  // namespace headroom
