// A stand-in for libnvidia-ml.so.1, loaded through HEADROOM_NVML. It tells what the file named by
// HEADROOM_FAKE_NVML says, line by line:
//   init CODE                          result of nvmlInit_v2
//   gpu UUID TOTAL USED PERCENT NAME   a GPU; the lines below are about the last one
//   compute PID BYTES, graphics PID BYTES    a process; BYTES is - where the driver gives none
//   fail WHAT CODE                     memory_v2, memory, utilisation, processes or handle fails
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Bytes = unsigned long long;
constexpr Bytes kNotAvailable = ~Bytes{0};
constexpr int kSuccess = 0, kInvalidArgument = 2, kNotFound = 6, kInsufficientSize = 7;

struct Process {
  unsigned int pid;
  Bytes used;
  unsigned int gpu_instance, compute_instance;
};
struct Gpu {
  std::string uuid, name;
  Bytes total = 0, used = 0;
  unsigned int percent = 0;
  std::vector<Process> compute, graphics;
  std::map<std::string, int> failures;

  int result_of(const char* what) const {
    const auto found = failures.find(what);
    return found == failures.end() ? kSuccess : found->second;
  }
};

std::vector<Gpu> gpus;

Process process_in(std::istream& in) {
  unsigned int pid = 0;
  std::string bytes;
  in >> pid >> bytes;
  return {pid, bytes == "-" ? kNotAvailable : std::strtoull(bytes.c_str(), nullptr, 10), ~0u, ~0u};
}

int copy_text(const std::string& text, char* to, unsigned int size) {
  if (text.size() >= size) return kInsufficientSize;
  std::snprintf(to, size, "%s", text.c_str());
  return kSuccess;
}

int copy_processes(const std::vector<Process>& from, unsigned int* count, Process* to) {
  const unsigned int room = *count;
  *count = static_cast<unsigned int>(from.size());
  if (room < from.size()) return kInsufficientSize;
  std::copy(from.begin(), from.end(), to);
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  gpus.clear();
  const char* path = std::getenv("HEADROOM_FAKE_NVML");
  std::ifstream in(path ? path : "");
  int result = kSuccess;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "init") words >> result;
    if (what == "gpu") {
      Gpu& gpu = gpus.emplace_back();
      words >> gpu.uuid >> gpu.total >> gpu.used >> gpu.percent >> std::ws;
      std::getline(words, gpu.name);
    }
    if (what == "compute") gpus.back().compute.push_back(process_in(words));
    if (what == "graphics") gpus.back().graphics.push_back(process_in(words));
    if (what == "fail") {
      words >> what;
      words >> gpus.back().failures[what];
    }
  }
  return result;
}

int nvmlShutdown() { return kSuccess; }

const char* nvmlErrorString(int result) {
  switch (result) {
    case 3:
      return "Not Supported";
    case 9:
      return "Driver Not Loaded";
    case 15:
      return "GPU is lost";
    default:
      return "Unknown Error";
  }
}

int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(gpus.size());
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index >= gpus.size()) return kInvalidArgument;
  *device = &gpus[index];
  return gpus[index].result_of("handle");
}

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  for (Gpu& gpu : gpus) {
    if (gpu.uuid != uuid) continue;
    *device = &gpu;
    return kSuccess;
  }
  return kNotFound;
}

int nvmlDeviceGetName(void* device, char* text, unsigned int size) {
  return copy_text(static_cast<Gpu*>(device)->name, text, size);
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned int size) {
  return copy_text(static_cast<Gpu*>(device)->uuid, text, size);
}

struct FakeMemory {
  Bytes total, free, used;
};

// As drivers do, the first version counts what is reserved for the driver as used.
constexpr Bytes kReserved = Bytes{1} << 20;

int nvmlDeviceGetMemoryInfo(void* device, FakeMemory* memory) {
  const Gpu& gpu = *static_cast<Gpu*>(device);
  *memory = {gpu.total, gpu.total - gpu.used - kReserved, gpu.used + kReserved};
  return gpu.result_of("memory");
}

struct FakeMemoryV2 {
  unsigned int version;
  Bytes total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(void* device, FakeMemoryV2* memory) {
  constexpr unsigned int kVersion = sizeof(FakeMemoryV2) | 2u << 24;
  if (memory->version != kVersion) return kInvalidArgument;
  const Gpu& gpu = *static_cast<Gpu*>(device);
  *memory = {kVersion, gpu.total, kReserved, gpu.total - gpu.used - kReserved, gpu.used};
  return gpu.result_of("memory_v2");
}

struct FakeUtilization {
  unsigned int gpu, memory;
};

int nvmlDeviceGetUtilizationRates(void* device, FakeUtilization* utilisation) {
  const Gpu& gpu = *static_cast<Gpu*>(device);
  *utilisation = {gpu.percent, 0};
  return gpu.result_of("utilisation");
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned int* count, Process* list) {
  const Gpu& gpu = *static_cast<Gpu*>(device);
  if (const int result = gpu.result_of("processes")) return result;
  return copy_processes(gpu.compute, count, list);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void* device, unsigned int* count, Process* list) {
  return copy_processes(static_cast<Gpu*>(device)->graphics, count, list);
}

}  // extern "C"
