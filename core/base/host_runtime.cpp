// Host, pinned and meta runtimes.
#include "core/base/host_runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <string>
#include <thread>

#include "core/base/process.h"

namespace headroom {
namespace {

constexpr int64_t kSegmentAlignment = 512;

// These runtimes finish every call before they return, so events are time stamps.
class SynchronousRuntime : public DeviceRuntime {
 public:
  void* host_acquire(int64_t bytes) override {
    void* memory = std::malloc(static_cast<size_t>(bytes > 0 ? bytes : 1));
    if (!memory) {
      throw OutOfMemory(detail::concat("host memory: ", bytes, " bytes not available"),
                        {.requested_bytes = bytes});
    }
    return memory;
  }
  void host_release(void* memory) noexcept override { std::free(memory); }

  void synchronize() override {}
  void check_async_error() override {}

  EventHandle create_event() override { return new Clock::time_point(Clock::now()); }
  void destroy_event(EventHandle event) noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
  void record_event(EventHandle event, Stream) override {
    *static_cast<Clock::time_point*>(event) = Clock::now();
  }
  void wait_event(EventHandle, Stream) override {}
  void synchronize_event(EventHandle) override {}
  float elapsed_ms(EventHandle begin, EventHandle end) override {
    return std::chrono::duration<float, std::milli>(*static_cast<Clock::time_point*>(end) -
                                                    *static_cast<Clock::time_point*>(begin))
        .count();
  }

  void begin_kernel(const char*) override {}
  void end_kernel(const char*) override {}

 private:
  using Clock = std::chrono::steady_clock;
};

class CpuRuntime : public SynchronousRuntime {
 public:
  std::string description() const override {
    return detail::concat("CPU, ", std::thread::hardware_concurrency(), " hardware threads");
  }
  void* acquire(int64_t bytes) override {
    // An overcommitting kernel would promise more than there is and end the process when it is
    // used.
    if (bytes > memory_info().total_bytes) return nullptr;
    const int64_t rounded = (bytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
    return std::aligned_alloc(kSegmentAlignment, static_cast<size_t>(rounded));
  }
  void release(void* segment, int64_t) noexcept override { std::free(segment); }
  int64_t page_granularity() override { return sysconf(_SC_PAGESIZE); }
  void* reserve_range(int64_t bytes) override {
    void* range = mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return range == MAP_FAILED ? nullptr : range;
  }
  void release_range(void* range, int64_t bytes) noexcept override {
    munmap(range, static_cast<size_t>(bytes));
  }
  bool map_page(void* address, int64_t bytes) override {
    if (mapped_bytes_ + bytes > memory_info().total_bytes) return false;  // as in acquire()
    if (mprotect(address, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE) != 0) return false;
    mapped_bytes_ += bytes;
    return true;
  }
  void unmap_page(void* address, int64_t bytes) noexcept override {
    madvise(address, static_cast<size_t>(bytes), MADV_DONTNEED);
    mprotect(address, static_cast<size_t>(bytes), PROT_NONE);  // a late access faults
    mapped_bytes_ -= bytes;
  }
  MemoryInfo memory_info() override {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return {sysconf(_SC_AVPHYS_PAGES) * page, sysconf(_SC_PHYS_PAGES) * page};
  }
  std::optional<int64_t> process_bytes() override { return resident_bytes(own_pid()); }
  void copy_to_device(void* to, const void* from, int64_t bytes, Stream) override {
    if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void copy_to_host(void* to, const void* from, int64_t bytes) override {
    if (bytes) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void queue_copy_to_host(void* to, const void* from, int64_t bytes, Stream) override {
    copy_to_host(to, from, bytes);
  }
  void copy_within(void* to, const void* from, int64_t bytes) override {
    if (bytes) std::memmove(to, from, static_cast<size_t>(bytes));
  }
  void fill_bytes(void* to, uint8_t value, int64_t bytes) override {
    if (bytes) std::memset(to, value, static_cast<size_t>(bytes));
  }

 private:
  std::atomic<int64_t> mapped_bytes_{0};
};

// What the host could give without swapping, as Linux estimates it; all it has where nothing says.
int64_t available_host_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

class PinnedRuntime final : public CpuRuntime {
 public:
  explicit PinnedRuntime(DeviceRuntime& device) : device_(device) {}
  std::string description() const override {
    return detail::concat("host memory of ", device_.description());
  }
  void* acquire(int64_t bytes) override {
    // Pinned pages cannot be swapped: asking for more than there is ends processes, not the
    // request.
    if (bytes > available_host_bytes()) return nullptr;
    try {
      return device_.host_acquire(bytes);
    } catch (const OutOfMemory&) {
      return nullptr;
    }
  }
  void release(void* segment, int64_t) noexcept override {
    try {
      device_.synchronize();
    } catch (const std::exception&) {
      // A failed device is reported by whoever waits for it next; here memory is only given back.
    }
    device_.host_release(segment);
  }
  // Pinned memory comes whole.
  int64_t page_granularity() override { return 0; }
  MemoryInfo memory_info() override {
    return {available_host_bytes(), CpuRuntime::memory_info().total_bytes};
  }

 private:
  DeviceRuntime& device_;
};

class MetaRuntime : public SynchronousRuntime {
 public:
  explicit MetaRuntime(DeviceType stands_for) : stands_for_(stands_for) {}
  std::string description() const override {
    return detail::concat(name_of(Device::meta(stands_for_)), ": counts bytes, runs nothing");
  }
  void* acquire(int64_t bytes) override {
    // Non-canonical on x86-64, so that a stray read faults at once instead of returning rubbish.
    char* out = reinterpret_cast<char*>(next_address_);
    next_address_ += static_cast<uintptr_t>((bytes + kSegmentAlignment - 1) / kSegmentAlignment *
                                            kSegmentAlignment);
    return out;
  }
  void release(void*, int64_t) noexcept override {}
  int64_t page_granularity() override { return kSegmentAlignment; }
  void* reserve_range(int64_t bytes) override { return acquire(bytes); }
  bool map_page(void*, int64_t) override { return true; }
  MemoryInfo memory_info() override { return {kUnlimited, kUnlimited}; }
  void copy_to_device(void*, const void*, int64_t, Stream) override {}
  // Nothing was computed, so a reader on the host sees zeros.
  void copy_to_host(void* to, const void*, int64_t bytes) override {
    if (bytes) std::memset(to, 0, static_cast<size_t>(bytes));
  }
  void queue_copy_to_host(void*, const void*, int64_t, Stream) override {}
  void copy_within(void*, const void*, int64_t) override {}
  void fill_bytes(void*, uint8_t, int64_t) override {}

 private:
  static constexpr int64_t kUnlimited = int64_t{1} << 50;
  DeviceType stands_for_;
  uintptr_t next_address_ = uintptr_t{1} << 56;
};

}  // namespace

std::unique_ptr<DeviceRuntime> make_cpu_runtime() { return std::make_unique<CpuRuntime>(); }
std::unique_ptr<DeviceRuntime> make_meta_runtime(DeviceType stands_for) {
  return std::make_unique<MetaRuntime>(stands_for);
}

std::unique_ptr<DeviceRuntime> make_pinned_runtime(DeviceRuntime& device) {
  return std::make_unique<PinnedRuntime>(device);
}

}  // namespace headroom
