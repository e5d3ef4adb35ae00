// Virtual memory of the current device through the driver's calls, which are looked up when the
// program runs: it links with the runtime alone.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace headroom::cuda {

// What the calls do is said at DeviceRuntime.
class VirtualMemory {
 public:
  VirtualMemory();

  int64_t page_granularity() const { return granularity_; }
  void* reserve_range(int64_t bytes) const;
  void release_range(void* range, int64_t bytes) const noexcept;
  bool map_page(void* address, int64_t bytes) const;
  void unmap_page(void* address, int64_t bytes) const noexcept;

 private:
  // None of them is linked: only their types are taken from the header.
  struct DriverCalls {
    decltype(&cuGetErrorName) error_name = nullptr;
    decltype(&cuDeviceGetAttribute) device_attribute = nullptr;
    decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
    decltype(&cuMemAddressReserve) reserve = nullptr;
    decltype(&cuMemAddressFree) free = nullptr;
    decltype(&cuMemCreate) create = nullptr;
    decltype(&cuMemRelease) release = nullptr;
    decltype(&cuMemMap) map = nullptr;
    decltype(&cuMemUnmap) unmap = nullptr;
    decltype(&cuMemSetAccess) set_access = nullptr;
  };

  bool find_calls();
  bool succeeded(CUresult status, const char* call) const;

  DriverCalls driver_;
  CUmemAllocationProp page_{};  // memory of the current device
  int64_t granularity_ = 0;
};

}  // namespace headroom::cuda
