// One object per device, made on first use and never destroyed: tensors with static lifetime give
// their memory back after main() ends.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "core/base/device.h"

namespace headroom {

template <class T>
class PerDevice {
 public:
  // make() gives a new T. What it throws passes through, and the next call tries again.
  template <class Make>
  T& of(Device device, const Make& make) {
    std::atomic<T*>& slot = made_[static_cast<size_t>(device.slot())];
    if (T* ready = slot.load(std::memory_order_acquire)) return *ready;
    const std::lock_guard lock(making_);
    if (!slot.load(std::memory_order_relaxed)) slot.store(make(), std::memory_order_release);
    return *slot.load(std::memory_order_relaxed);
  }

  template <class Fn>
  void for_each_made(const Fn& fn) {
    for (const std::atomic<T*>& slot : made_) {
      if (T* ready = slot.load(std::memory_order_acquire)) fn(*ready);
    }
  }

 private:
  std::array<std::atomic<T*>, kDeviceSlots> made_{};
  std::mutex making_;
};

}  // namespace headroom
