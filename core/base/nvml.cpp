// The few functions and structures of NVML that are needed, declared here as its documentation has
// them: its header belongs to the CUDA toolkit, which a build for the CPU need not have.
#include "core/base/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "core/base/error.h"
#include "core/base/process.h"

namespace headroom {
namespace {

using Result = int;
using DeviceHandle = void*;
constexpr Result kSuccess = 0, kInsufficientSize = 7, kFunctionNotFound = 13;

struct Memory {
  unsigned long long total, free, used;
};
struct MemoryV2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned int kMemoryV2 = sizeof(MemoryV2) | 2u << 24;
struct Utilization {
  unsigned int gpu, memory;
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
static_assert(sizeof(Memory) == 24 && sizeof(MemoryV2) == 40 && sizeof(ProcessInfo) == 24);
constexpr unsigned long long kNotAvailable = std::numeric_limits<unsigned long long>::max();

constexpr size_t kTextBytes = 96;  // NVML's names and UUIDs take no more

}  // namespace

struct Nvml::Library {
  using GetProcesses = Result (*)(DeviceHandle, unsigned int*, ProcessInfo*);

  void* handle = nullptr;
  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*count)(unsigned int*) = nullptr;
  Result (*by_index)(unsigned int, DeviceHandle*) = nullptr;
  Result (*by_uuid)(const char*, DeviceHandle*) = nullptr;
  Result (*get_name)(DeviceHandle, char*, unsigned int) = nullptr;
  Result (*get_uuid)(DeviceHandle, char*, unsigned int) = nullptr;
  Result (*get_memory)(DeviceHandle, Memory*) = nullptr;
  Result (*get_memory_v2)(DeviceHandle, MemoryV2*) = nullptr;
  Result (*get_utilisation)(DeviceHandle, Utilization*) = nullptr;
  GetProcesses get_compute = nullptr, get_graphics = nullptr;

  Library();
  ~Library() {
    if (handle) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  // What an older driver lacks stays null, and what() then says so.
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
  }
  template <class Function, class... Arguments>
  Result call(Function function, Arguments... arguments) const {
    return function ? function(arguments...) : kFunctionNotFound;
  }
  std::string what(Result result) const {
    const char* text = error_string ? error_string(result) : nullptr;
    return text ? text : detail::concat("NVML error ", result);
  }

  GpuReading read(DeviceHandle device) const;
  void read_memory(DeviceHandle device, GpuReading& out) const;
  void read_processes(DeviceHandle device, GetProcesses get, bool graphics, GpuReading& out) const;
};

Nvml::Library::Library() {
  const char* file = std::getenv("HEADROOM_NVML");
  handle = dlopen(file && *file ? file : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw DeviceError(detail::concat("no NVIDIA driver library: ", dlerror()));
  find(init, "nvmlInit_v2");
  find(shutdown, "nvmlShutdown");
  find(error_string, "nvmlErrorString");
  find(count, "nvmlDeviceGetCount_v2");
  find(by_index, "nvmlDeviceGetHandleByIndex_v2");
  find(by_uuid, "nvmlDeviceGetHandleByUUID");
  find(get_name, "nvmlDeviceGetName");
  find(get_uuid, "nvmlDeviceGetUUID");
  find(get_memory, "nvmlDeviceGetMemoryInfo");
  find(get_memory_v2, "nvmlDeviceGetMemoryInfo_v2");
  find(get_utilisation, "nvmlDeviceGetUtilizationRates");
  find(get_compute, "nvmlDeviceGetComputeRunningProcesses_v3");
  find(get_graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3");
}

// The second version leaves out what the driver keeps for itself, as nvidia-smi does.
void Nvml::Library::read_memory(DeviceHandle device, GpuReading& out) const {
  MemoryV2 memory{};
  memory.version = kMemoryV2;
  if (call(get_memory_v2, device, &memory) == kSuccess) {
    out.used_bytes = static_cast<int64_t>(memory.used);
    out.total_bytes = static_cast<int64_t>(memory.total);
    return;
  }
  Memory first{};
  if (const Result result = call(get_memory, device, &first); result != kSuccess) {
    out.failures.push_back("memory: " + what(result));
    return;
  }
  out.used_bytes = static_cast<int64_t>(first.used);
  out.total_bytes = static_cast<int64_t>(first.total);
}

void Nvml::Library::read_processes(DeviceHandle device, GetProcesses get, bool graphics,
                                   GpuReading& out) const {
  // Processes may begin between the two calls, so there is room for some more, and a few tries.
  constexpr unsigned int kSpare = 16;
  constexpr int kTries = 4;
  std::vector<ProcessInfo> list;
  Result result = kInsufficientSize;
  unsigned int count = 0;
  for (int i = 0; i < kTries && result == kInsufficientSize; ++i) {
    list.resize(count + kSpare);
    count = static_cast<unsigned int>(list.size());
    result = call(get, device, &count, list.data());
  }
  if (result != kSuccess) {
    // Nothing draws on most of these GPUs, and some drivers refuse the question.
    if (!graphics) out.failures.push_back("processes: " + what(result));
    return;
  }
  list.resize(std::min<size_t>(count, list.size()));
  for (const ProcessInfo& info : list) {
    GpuProcess process;
    process.pid = info.pid;
    process.name = process_name(info.pid);
    process.graphics = graphics;
    if (info.used_bytes != kNotAvailable) process.bytes = static_cast<int64_t>(info.used_bytes);
    // One that does both is listed twice, and a process has several rows under MIG.
    const auto known = std::find_if(out.processes.begin(), out.processes.end(),
                                    [&](const GpuProcess& other) { return other.pid == info.pid; });
    if (known == out.processes.end()) {
      out.processes.push_back(process);
    } else if (known->graphics != graphics) {
      known->graphics = true;
    } else if (process.bytes) {
      known->bytes = known->bytes.value_or(0) + *process.bytes;
    }
  }
}

GpuReading Nvml::Library::read(DeviceHandle device) const {
  GpuReading out;
  std::array<char, kTextBytes> text{};
  const auto read_text = [&](auto function, const char* part, std::string& to) {
    const Result result = call(function, device, text.data(), unsigned{kTextBytes});
    if (result == kSuccess) {
      to = text.data();
    } else {
      out.failures.push_back(part + (": " + what(result)));
    }
  };
  read_text(get_name, "name", out.name);
  read_text(get_uuid, "UUID", out.uuid);
  read_memory(device, out);
  Utilization utilisation{};
  if (const Result result = call(get_utilisation, device, &utilisation); result == kSuccess) {
    out.utilisation_percent = static_cast<int>(utilisation.gpu);
  } else {
    out.failures.push_back("utilisation: " + what(result));
  }
  read_processes(device, get_compute, false, out);
  read_processes(device, get_graphics, true, out);
  std::stable_sort(out.processes.begin(), out.processes.end(),
                   [](const GpuProcess& a, const GpuProcess& b) {
                     return a.bytes.value_or(-1) > b.bytes.value_or(-1);
                   });
  return out;
}

Nvml::Nvml() : library_(std::make_unique<Library>()) {
  const Result result = library_->call(library_->init);
  if (result != kSuccess) throw DeviceError("NVML does not start: " + library_->what(result));
}

Nvml::~Nvml() { library_->call(library_->shutdown); }

std::vector<GpuReading> Nvml::read() const {
  unsigned int count = 0;
  if (const Result result = library_->call(library_->count, &count); result != kSuccess) {
    throw DeviceError("NVML cannot count the GPUs: " + library_->what(result));
  }
  std::vector<GpuReading> out(count);
  for (unsigned int i = 0; i < count; ++i) {
    DeviceHandle device = nullptr;
    if (const Result result = library_->call(library_->by_index, i, &device); result == kSuccess) {
      out[i] = library_->read(device);
    } else {
      out[i].failures.push_back("not reached: " + library_->what(result));
    }
    out[i].index = static_cast<int>(i);
  }
  return out;
}

std::optional<GpuReading> Nvml::read_uuid(const std::string& digits) const {
  for (const char* prefix : {"GPU-", "MIG-"}) {
    DeviceHandle device = nullptr;
    const std::string uuid = prefix + digits;
    if (library_->call(library_->by_uuid, uuid.c_str(), &device) == kSuccess) {
      return library_->read(device);
    }
  }
  return std::nullopt;
}

}  // namespace headroom
