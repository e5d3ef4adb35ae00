// Device names and the table of runtimes.
#include "core/base/device.h"

#include <array>
#include <utility>

#include "core/base/host_runtime.h"

namespace headroom {
namespace {

std::array<std::unique_ptr<DeviceRuntime>, kDeviceSlots>& runtimes() {
  // Never destroyed: tensors with static lifetime give their memory back after main() ends.
  static auto* table = [] {
    auto* out = new std::array<std::unique_ptr<DeviceRuntime>, kDeviceSlots>;
    (*out)[Device::cpu().slot()] = make_cpu_runtime();
    (*out)[Device::meta(DeviceType::cpu).slot()] = make_meta_runtime(DeviceType::cpu);
    (*out)[Device::meta(DeviceType::cuda).slot()] = make_meta_runtime(DeviceType::cuda);
    return out;
  }();
  return *table;
}

}  // namespace

const char* name_of(Device device) {
  switch (device.type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::cuda:
      return "cuda";
    case DeviceType::meta:
      return device.stands_for == DeviceType::cuda ? "meta:cuda" : "meta:cpu";
  }
  return "?";
}

Device parse_device(const std::string& text) {
  for (const Device device : {Device::cpu(), Device::cuda(), Device::meta(DeviceType::cpu),
                              Device::meta(DeviceType::cuda)}) {
    if (text == name_of(device)) return device;
  }
  throw InvalidArgument("device: allowed are cpu, cuda, meta:cpu and meta:cuda, got '" + text +
                        "'");
}

void register_runtime(Device device, std::unique_ptr<DeviceRuntime> runtime) {
  auto& entry = runtimes()[device.slot()];
  if (!entry) entry = std::move(runtime);
}

std::unique_ptr<DeviceRuntime> exchange_runtime(Device device,
                                                std::unique_ptr<DeviceRuntime> runtime) {
  return std::exchange(runtimes()[device.slot()], std::move(runtime));
}

bool has_runtime(Device device) { return runtimes()[device.slot()] != nullptr; }

DeviceRuntime& runtime_of(Device device) {
  auto& runtime = runtimes()[device.slot()];
  CHECK_ARG(runtime, "device ", name_of(device),
            ": not available in this process (no such device, or built without it)");
  return *runtime;
}

}  // namespace headroom
