// Pages of device memory, mapped and unmapped.
#include "kernels/cuda/virtual_memory.h"

#include "kernels/cuda/cuda_common.h"

namespace headroom::cuda {
namespace {

constexpr unsigned kErrorNameVersion = 6000, kAttributeVersion = 2000;
constexpr unsigned kVirtualMemoryVersion = 10020;  // CUDA 10.2 brought it

// The driver's call as it was in that version of CUDA; false if the driver has none.
template <class Call>
bool find(const char* name, unsigned version, Call& call) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
  if (status != cudaSuccess) cudaGetLastError();
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) return false;
  call = reinterpret_cast<Call>(entry);
  return call != nullptr;
}

CUdeviceptr pointer(void* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace

VirtualMemory::VirtualMemory() {
  int device = 0, supported = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  page_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  page_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  page_.location.id = device;
  if (!find_calls()) return;
  constexpr auto kSupport = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  if (driver_.device_attribute(&supported, kSupport, device) != CUDA_SUCCESS || !supported) return;
  size_t bytes = 0;
  constexpr auto kSmallest = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
  if (driver_.granularity(&bytes, &page_, kSmallest) != CUDA_SUCCESS) return;
  granularity_ = static_cast<int64_t>(bytes);
}

bool VirtualMemory::find_calls() {
  return find("cuGetErrorName", kErrorNameVersion, driver_.error_name) &&
         find("cuDeviceGetAttribute", kAttributeVersion, driver_.device_attribute) &&
         find("cuMemGetAllocationGranularity", kVirtualMemoryVersion, driver_.granularity) &&
         find("cuMemAddressReserve", kVirtualMemoryVersion, driver_.reserve) &&
         find("cuMemAddressFree", kVirtualMemoryVersion, driver_.free) &&
         find("cuMemCreate", kVirtualMemoryVersion, driver_.create) &&
         find("cuMemRelease", kVirtualMemoryVersion, driver_.release) &&
         find("cuMemMap", kVirtualMemoryVersion, driver_.map) &&
         find("cuMemUnmap", kVirtualMemoryVersion, driver_.unmap) &&
         find("cuMemSetAccess", kVirtualMemoryVersion, driver_.set_access);
}

// False for want of memory, which also the device's page tables may be short of.
bool VirtualMemory::succeeded(CUresult status, const char* call) const {
  if (status == CUDA_SUCCESS) return true;
  if (status == CUDA_ERROR_OUT_OF_MEMORY) return false;
  const char* name = nullptr;
  driver_.error_name(status, &name);
  throw DeviceError(detail::concat(call, ": ", name ? name : "an unknown error"));
}

void* VirtualMemory::reserve_range(int64_t bytes) const {
  CUdeviceptr range = 0;
  const CUresult status = driver_.reserve(&range, static_cast<size_t>(bytes), 0, 0, 0);
  return succeeded(status, "cuMemAddressReserve") ? reinterpret_cast<void*>(range) : nullptr;
}

void VirtualMemory::release_range(void* range, int64_t bytes) const noexcept {
  driver_.free(pointer(range), static_cast<size_t>(bytes));
}

bool VirtualMemory::map_page(void* address, int64_t bytes) const {
  const auto size = static_cast<size_t>(bytes);
  CUmemGenericAllocationHandle memory{};
  if (!succeeded(driver_.create(&memory, size, &page_, 0), "cuMemCreate")) return false;
  const CUresult mapped = driver_.map(pointer(address), size, 0, memory, 0);
  driver_.release(memory);  // the mapping, where there is one, holds the memory from here on
  if (!succeeded(mapped, "cuMemMap")) return false;
  CUmemAccessDesc access{};
  access.location = page_.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult usable = driver_.set_access(pointer(address), size, &access, 1);
  if (usable != CUDA_SUCCESS) driver_.unmap(pointer(address), size);
  return succeeded(usable, "cuMemSetAccess");
}

// Unlike cudaFree, the driver's call does not wait by itself. Failures are those of earlier work,
// or the driver is already gone, as in CudaRuntime::release().
void VirtualMemory::unmap_page(void* address, int64_t bytes) const noexcept {
  if (cudaDeviceSynchronize() == cudaErrorCudartUnloading) {
    cudaGetLastError();
    return;
  }
  driver_.unmap(pointer(address), static_cast<size_t>(bytes));
}

}  // namespace headroom::cuda
