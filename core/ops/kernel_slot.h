// A kernel slot is a typed variable with one function pointer per device: the seam between an op
// and the kernels that do its work. Calling a slot is the one place that checks that the operands'
// devices agree, is a range of a trace, leaves a launch trail, and blocks when launches are to
// block.
#pragma once

#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/device.h"
#include "core/base/ranges.h"
#include "core/tensor/view.h"

namespace headroom {

// The part of a slot that a test can walk without knowing its type.
class SlotBase {
 public:
  explicit SlotBase(const char* name);
  SlotBase(const SlotBase&) = delete;
  SlotBase& operator=(const SlotBase&) = delete;
  const char* name() const { return name_; }
  virtual bool has(DeviceType type) const = 0;

 protected:
  ~SlotBase() = default;
  // Throws InvalidArgument "softmax: operands lie on cpu and cuda".
  [[noreturn]] void fail_devices(Device a, Device b) const;
  [[noreturn]] void fail_missing(Device device) const;

 private:
  const char* name_;
};
// Every slot of the contract, by order of construction.
const std::vector<const SlotBase*>& all_slots();

// Lists of views, as the fused optimizer kernels take them.
using ViewList = std::vector<View>;

template <class Signature>
class KernelSlot;

template <class... Args>
class KernelSlot<void(Args...)> final : public SlotBase {
 public:
  using Function = void (*)(Args...);
  using SlotBase::SlotBase;

  void set(DeviceType type, Function function) { function_[static_cast<int>(type)] = function; }
  bool has(DeviceType type) const override {
    return type == DeviceType::meta || function_[static_cast<int>(type)] != nullptr;
  }

  // Runs the kernel of the operands' device; returns at once on meta. Throws InvalidArgument when
  // devices differ or the device has no such kernel, and what the kernel throws.
  void operator()(Args... args) const {
    const Device* device = nullptr;
    (check(args, device), ...);
    if (device == nullptr || device->is_meta()) return;
    const Function function = function_[static_cast<int>(device->type)];
    if (function == nullptr) fail_missing(*device);
    DeviceRuntime& runtime = runtime_of(*device);
    const RangeScope range(RangeKind::kernel, name());
    runtime.begin_kernel(name());
    function(args...);
    runtime.end_kernel(name());
  }

 private:
  template <class Arg>
  void check(const Arg& arg, const Device*& device) const {
    if constexpr (std::is_same_v<std::remove_cvref_t<Arg>, View>) {
      if (!arg.defined) return;
      if (device == nullptr) {
        device = &arg.device;
      } else if (!(*device == arg.device)) {
        fail_devices(*device, arg.device);
      }
    } else if constexpr (std::is_same_v<std::remove_cvref_t<Arg>, ViewList>) {
      for (const View& view : arg) check(view, device);
    }
  }

  std::array<Function, 2> function_{};
};

}  // namespace headroom
