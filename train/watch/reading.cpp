// Gathering a reading and relating its parts.
#include "train/watch/reading.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/base/error.h"

namespace headroom {
namespace {

bool lists(const GpuReading& gpu, int64_t pid) {
  return std::any_of(gpu.processes.begin(), gpu.processes.end(),
                     [pid](const GpuProcess& process) { return process.pid == pid; });
}

bool is_on(const Run& run, const char* device) {
  return std::strcmp(run.ledger.device, device) == 0;
}

}  // namespace

Reading Watcher::read() {
  Reading out;
  out.time =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  try {
    if (!nvml_) nvml_ = std::make_unique<Nvml>();
    out.gpus = nvml_->read();
    if (out.gpus.empty()) out.nvml_failure = "the driver lists none";
  } catch (const DeviceError& error) {
    nvml_.reset();
    out.nvml_failure = error.what();
  }
  out.host = host_memory();
  for (const Ledger& ledger : read_ledgers()) {
    out.runs.push_back({ledger, process_name(ledger.pid), resident_bytes(ledger.pid)});
  }
  return out;
}

Reading only_process(Reading reading, int64_t pid) {
  std::erase_if(reading.runs, [pid](const Run& run) { return run.ledger.pid != pid; });
  std::erase_if(reading.gpus, [pid](const GpuReading& gpu) { return !lists(gpu, pid); });
  for (GpuReading& gpu : reading.gpus) {
    std::erase_if(gpu.processes, [pid](const GpuProcess& other) { return other.pid != pid; });
  }
  return reading;
}

const Run* gpu_run_of(const Reading& reading, int64_t pid) {
  for (const Run& run : reading.runs) {
    if (run.ledger.pid == pid && is_on(run, "cuda")) return &run;
  }
  return nullptr;
}

std::vector<const Run*> unlisted_runs(const Reading& reading) {
  std::vector<const Run*> out;
  for (const Run& run : reading.runs) {
    const bool listed =
        std::any_of(reading.gpus.begin(), reading.gpus.end(),
                    [&run](const GpuReading& gpu) { return lists(gpu, run.ledger.pid); });
    if (is_on(run, "cuda") && !listed) out.push_back(&run);
  }
  return out;
}

std::vector<const Run*> cpu_runs(const Reading& reading) {
  std::vector<const Run*> out;
  for (const Run& run : reading.runs) {
    if (is_on(run, "cpu")) out.push_back(&run);
  }
  return out;
}

Account account_of(const Ledger& ledger, std::optional<int64_t> process_bytes) {
  Account out;
  out.live_bytes = ledger.allocated_bytes;
  out.cached_bytes = ledger.cached_bytes();
  out.split_bytes = ledger.split_bytes;
  if (ledger.outside_bytes < 0) return out;
  out.outside_bytes = ledger.outside_bytes;
  if (process_bytes) {
    out.unexplained_bytes = *process_bytes - ledger.reserved_bytes - *out.outside_bytes;
  }
  return out;
}

std::optional<int64_t> unlisted_bytes(const GpuReading& gpu) {
  if (!gpu.used_bytes) return std::nullopt;
  int64_t out = *gpu.used_bytes;
  for (const GpuProcess& process : gpu.processes) {
    if (!process.bytes) return std::nullopt;
    out -= *process.bytes;
  }
  return out;
}

}  // namespace headroom
