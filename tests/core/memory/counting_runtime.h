// A device with a set capacity that owns no memory and writes down what was asked of it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/device.h"

namespace headroom::testing {

class CountingRuntime : public DeviceRuntime {
 public:
  struct Call {
    bool acquire = false;  // or release
    int64_t bytes = 0;
    bool operator==(const Call&) const = default;
  };

  explicit CountingRuntime(int64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  std::string description() const override { return "counting"; }
  void* acquire(int64_t bytes) override {
    if (throw_on_acquire) throw DeviceError("counting: told to fail");
    if (bytes > free_bytes()) {
      ++refusals;
      return nullptr;
    }
    calls.push_back({true, bytes});
    held_bytes += bytes;
    // Addresses fall, so anything that orders by address shows.
    next_address_ -= bytes;
    return reinterpret_cast<void*>(next_address_);
  }
  void release(void*, int64_t bytes) noexcept override {
    calls.push_back({false, bytes});
    held_bytes -= bytes;
  }
  std::string describe_other_users() override { return other_users; }
  MemoryInfo memory_info() override { return {free_bytes(), capacity_bytes_}; }

  int64_t page_granularity() override { return granularity; }
  void* reserve_range(int64_t bytes) override {
    if (no_addresses) return nullptr;
    range_bytes += bytes;
    next_address_ -= bytes;
    return reinterpret_cast<void*>(next_address_);
  }
  void release_range(void* range, int64_t bytes) noexcept override {
    const auto begin = reinterpret_cast<uint64_t>(range);
    const auto first = pages.lower_bound(begin);
    if (first != pages.end() && first->first < begin + static_cast<uint64_t>(bytes)) ++bad_calls;
    range_bytes -= bytes;
  }
  bool map_page(void* address, int64_t bytes) override {
    if (pages_until_throw-- == 0) throw DeviceError("counting: told to fail");
    if (bytes > free_bytes()) {
      ++refusals;
      return false;
    }
    if (!pages.emplace(reinterpret_cast<uint64_t>(address), bytes).second) ++bad_calls;
    held_bytes += bytes;
    return true;
  }
  void unmap_page(void* address, int64_t bytes) noexcept override {
    const auto page = pages.find(reinterpret_cast<uint64_t>(address));
    if (page == pages.end() || page->second != bytes) {
      ++bad_calls;
      return;
    }
    pages.erase(page);
    held_bytes -= bytes;
  }

  void* host_acquire(int64_t) override { return nullptr; }
  void host_release(void*) noexcept override {}
  void copy_to_device(void*, const void*, int64_t, Stream) override {}
  void copy_to_host(void*, const void*, int64_t) override {}
  void queue_copy_to_host(void*, const void*, int64_t, Stream) override {}
  void copy_within(void*, const void*, int64_t) override {}
  void fill_bytes(void*, uint8_t, int64_t) override {}
  void synchronize() override {}
  void check_async_error() override {}
  EventHandle create_event() override { return nullptr; }
  void destroy_event(EventHandle) noexcept override {}
  void record_event(EventHandle, Stream) override {}
  void wait_event(EventHandle, Stream) override {}
  void synchronize_event(EventHandle) override {}
  float elapsed_ms(EventHandle, EventHandle) override { return 0; }
  void begin_kernel(const char*) override {}
  void end_kernel(const char*) override {}

  std::vector<Call> calls;
  int64_t held_bytes = 0;
  int refusals = 0;
  bool throw_on_acquire = false;
  std::string other_users;

  std::map<uint64_t, int64_t> pages;  // bytes, by address
  int64_t range_bytes = 0;
  int64_t granularity = int64_t{2} << 20;
  int64_t used_by_others = 0;
  int64_t pages_until_throw = -1;  // -1: never
  int bad_calls = 0;               // a page mapped twice, or not there when it is given back
  bool no_addresses = false;

 private:
  int64_t free_bytes() const { return capacity_bytes_ - used_by_others - held_bytes; }

  int64_t capacity_bytes_;
  int64_t next_address_ = int64_t{1} << 60;
};

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int64_t kGiB = 1024 * kMiB;

}  // namespace headroom::testing
