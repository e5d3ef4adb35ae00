// The two runtimes that need no library: host memory, and the meta device's counting without
// memory.
#pragma once

#include <memory>

#include "core/base/device.h"

namespace headroom {

std::unique_ptr<DeviceRuntime> make_cpu_runtime();

// Hands out addresses that must never be read. Its memory is without bound; a limit on the
// allocator makes it small.
std::unique_ptr<DeviceRuntime> make_meta_runtime(DeviceType stands_for);

}  // namespace headroom
