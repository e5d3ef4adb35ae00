// Devices, and the small virtual interface through which core reaches one. Core knows no CUDA; each
// backend registers a DeviceRuntime from main().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "core/base/error.h"

namespace headroom {

enum class DeviceType : uint8_t { cpu, cuda, meta };

// A device. A meta device runs no kernel and owns no memory; it counts bytes exactly as the device
// it stands for would: meta:cpu or meta:cuda.
struct Device {
  DeviceType type = DeviceType::cpu;
  DeviceType stands_for = DeviceType::cpu;  // equals `type` unless type is meta

  static constexpr Device cpu() { return {DeviceType::cpu, DeviceType::cpu}; }
  static constexpr Device cuda() { return {DeviceType::cuda, DeviceType::cuda}; }
  static constexpr Device meta(DeviceType stands_for) { return {DeviceType::meta, stands_for}; }

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  bool is_meta() const { return type == DeviceType::meta; }
  bool operator==(const Device&) const = default;
  // cpu 0, cuda 1, meta:cpu 2, meta:cuda 3
  int slot() const {
    return type == DeviceType::meta ? 2 + static_cast<int>(stands_for) : static_cast<int>(type);
  }
};
constexpr int kDeviceSlots = 4;

// "cpu", "cuda", "meta:cpu", "meta:cuda"
const char* name_of(Device device);
inline std::ostream& operator<<(std::ostream& out, Device device) { return out << name_of(device); }

// Parses the names above; throws InvalidArgument naming what is allowed.
Device parse_device(const std::string& text);

// A stream of a device. The compute stream runs every kernel, in program order; the copy stream
// brings input batches, and takes saved tensors to the host and back.
enum class Stream : uint8_t { compute, copy };

// What a runtime knows of a device's memory, in bytes.
struct MemoryInfo {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

// A marker recorded on a stream; opaque, owned by the runtime.
using EventHandle = void*;

// One per device. Calls are made by the thread that trains, except host_acquire/host_release and
// the event calls, which a loader thread may make too. Every failure throws DeviceError.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual std::string description() const = 0;  // "NVIDIA H200, driver ..., cuDNN 9.14.0"

  // A new segment of memory of `bytes`, 512-byte aligned, or nullptr when the device is out of it.
  virtual void* acquire(int64_t bytes) = 0;
  // Gives a segment back. Waits for the device where work may still use it.
  virtual void release(void* segment, int64_t bytes) noexcept = 0;
  virtual MemoryInfo memory_info() = 0;
  // What this process holds of the memory in all, context and libraries included, as the system or
  // the driver counts it. Empty where that is not known. Does not throw.
  virtual std::optional<int64_t> process_bytes() { return std::nullopt; }
  // What other processes hold of it, for the message of a device that is full: "others hold 61.20
  // GiB: python 4711 60.10 GiB, ...", or why that is not known. Empty for a device where nobody
  // keeps such a list. Does not throw.
  virtual std::string describe_other_users() { return {}; }

  // Virtual memory, on devices that have it: ranges of addresses, to which pages of memory are
  // mapped one by one.

  // What a page's bytes must be a multiple of. 0: the device has no virtual memory, and none of the
  // calls below is made.
  virtual int64_t page_granularity() { return 0; }
  // Addresses without memory, 512-byte aligned, or nullptr when there are none left.
  virtual void* reserve_range(int64_t /*bytes*/) { return nullptr; }
  // Gives addresses back. No page is mapped to them any more.
  virtual void release_range(void* /*range*/, int64_t /*bytes*/) noexcept {}
  // Maps a new page to addresses of a range. False when the device is out of memory; nothing has
  // changed then, as after an exception.
  virtual bool map_page(void* /*address*/, int64_t /*bytes*/) { return false; }
  // Gives a page back. Waits for the device where work may still use it.
  virtual void unmap_page(void* /*address*/, int64_t /*bytes*/) noexcept {}

  // Host memory that this device copies from asynchronously (pinned on CUDA). Throws OutOfMemory.
  virtual void* host_acquire(int64_t bytes) = 0;
  virtual void host_release(void* memory) noexcept = 0;

  // Copies between this device and the host, or within the device. Asynchronous on `stream` as far
  // as the device allows; to_host waits for the compute stream first and returns when done.
  virtual void copy_to_device(void* to, const void* from, int64_t bytes, Stream stream) = 0;
  virtual void copy_to_host(void* to, const void* from, int64_t bytes) = 0;
  virtual void copy_within(void* to, const void* from, int64_t bytes) = 0;
  virtual void fill_bytes(void* to, uint8_t value, int64_t bytes) = 0;

  virtual void synchronize() = 0;
  // Throws DeviceError for an asynchronous failure seen so far, without waiting.
  virtual void check_async_error() = 0;

  // To memory of host_acquire(), on `stream`; an event recorded there afterwards says when it is
  // done. Nothing on meta.
  virtual void queue_copy_to_host(void* to, const void* from, int64_t bytes, Stream stream) = 0;

  // Events order the two streams and time regions.
  virtual EventHandle create_event() = 0;
  virtual void destroy_event(EventHandle event) noexcept = 0;
  virtual void record_event(EventHandle event, Stream stream) = 0;
  virtual void wait_event(EventHandle event, Stream stream) = 0;  // the stream waits
  virtual void synchronize_event(EventHandle event) = 0;          // the host waits
  virtual float elapsed_ms(EventHandle begin, EventHandle end) = 0;

  // Called by every kernel slot around a launch (see core/ops/kernel_slot.h).
  virtual void begin_kernel(const char* name) = 0;
  virtual void end_kernel(const char* name) = 0;
};

// Registers the runtime of a device; called once per process by register_kernels(). Meta devices
// and the CPU are there from the start.
void register_runtime(Device device, std::unique_ptr<DeviceRuntime> runtime);
// For tests: puts another runtime in a device's place and gives back the one that was there.
// Nothing may be under way, and allocators keep the one that they were made with.
std::unique_ptr<DeviceRuntime> exchange_runtime(Device device,
                                                std::unique_ptr<DeviceRuntime> runtime);
bool has_runtime(Device device);
// Throws InvalidArgument when the device has none: "device cuda: not available in this process
// ...".
DeviceRuntime& runtime_of(Device device);

}  // namespace headroom
