// The runtimes that need no library: host memory, pinned or not, and the meta device's counting
// without memory.
#pragma once

#include <memory>

#include "core/base/device.h"

namespace headroom {

std::unique_ptr<DeviceRuntime> make_cpu_runtime();

// Hands out addresses that must never be read. Its memory is without bound; a limit on the
// allocator makes it small.
std::unique_ptr<DeviceRuntime> make_meta_runtime(DeviceType stands_for);

// The host memory of another device (pinned on CUDA) as a runtime of its own, for an allocator to
// serve from. Borrows the device's runtime, whose work it waits for before it gives memory back.
std::unique_ptr<DeviceRuntime> make_pinned_runtime(DeviceRuntime& device);

}  // namespace headroom
