// One look at the memory of this machine: every GPU and its processes as the driver has them, and
// the ledgers of running trainings.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/nvml.h"
#include "core/base/process.h"
#include "train/ledger.h"

namespace headroom {

// A training that publishes its ledger.
struct Run {
  Ledger ledger;
  std::string name;                       // of the program
  std::optional<int64_t> resident_bytes;  // in the host's memory
};

struct Reading {
  double time = 0;           // seconds since 1970
  std::string nvml_failure;  // why there are no GPUs to see; empty if there are
  std::vector<GpuReading> gpus;
  HostMemory host;
  std::vector<Run> runs;
};

// Reads again and again. NVML is loaded once; while it cannot be, each reading tries again, since a
// driver may be loaded later.
class Watcher {
 public:
  Reading read();

 private:
  std::unique_ptr<Nvml> nvml_;
};

// Only what belongs to the process: its rows, the GPUs that have one, its ledger.
Reading only_process(Reading reading, int64_t pid);

// The run with that ledger on a GPU; null if there is none.
const Run* gpu_run_of(const Reading& reading, int64_t pid);
// Runs on a GPU that no GPU's list shows, as in a container, where the driver counts other pids.
std::vector<const Run*> unlisted_runs(const Reading& reading);
std::vector<const Run*> cpu_runs(const Reading& reading);

// Where a process's bytes are. The first three are the allocator's reserved bytes.
struct Account {
  int64_t live_bytes = 0;    // in blocks handed out
  int64_t cached_bytes = 0;  // in segments that are wholly free
  int64_t split_bytes = 0;   // free pieces of segments that are partly in use: the fragmented rest
  std::optional<int64_t> outside_bytes;      // context and libraries
  std::optional<int64_t> unexplained_bytes;  // what the process holds besides
};
// `process_bytes` is what the driver, or on a CPU the system, charges to the process.
Account account_of(const Ledger& ledger, std::optional<int64_t> process_bytes);

// Bytes in use that the listed processes do not hold; empty if one of them has no bytes.
std::optional<int64_t> unlisted_bytes(const GpuReading& gpu);

}  // namespace headroom
