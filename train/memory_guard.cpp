// Reading how full a device is.
#include "train/memory_guard.h"

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

}  // namespace headroom
