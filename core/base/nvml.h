// What NVIDIA's driver tells of every GPU and of the processes on it, through its management
// library. That is loaded when someone asks, so nothing is needed to build, and a machine without a
// driver gets a message. It makes no context and takes no memory on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headroom {

struct GpuProcess {
  int64_t pid = 0;               // as the driver counts them: the host's, also in a container
  std::string name;              // empty if no such process is seen from here
  bool graphics = false;         // it draws; it may compute as well
  std::optional<int64_t> bytes;  // the driver does not always say, as under MIG
};

// One GPU. What could not be read is empty and named in `failures`.
struct GpuReading {
  int index = 0;
  std::string name, uuid;
  std::optional<int64_t> used_bytes, total_bytes;
  std::optional<int> utilisation_percent;  // of the time in which some kernel ran, lately
  std::vector<GpuProcess> processes;       // by bytes, the most first; those without come last
  std::vector<std::string> failures;       // "utilisation: Not Supported"
};

// Calls are made by one thread at a time.
class Nvml {
 public:
  // Loads libnvidia-ml.so.1, or the file that the environment's HEADROOM_NVML names, and begins a
  // session. Throws DeviceError saying what failed.
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // Throws DeviceError if the GPUs cannot even be counted. One that cannot be reached, such as one
  // that fell off the bus, is there with its failure.
  std::vector<GpuReading> read() const;

  // The GPU, or the MIG slice of one, with this UUID, given without its prefix:
  // "8f3c...-....-....-....-............". Empty if there is none.
  std::optional<GpuReading> read_uuid(const std::string& digits) const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace headroom
