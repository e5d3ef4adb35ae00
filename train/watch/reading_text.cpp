// Readings for people.
#include "train/watch/reading_text.h"

#include <fmt/format.h>

#include <iterator>

#include "core/memory/caching_allocator.h"
#include "train/terminal.h"

namespace headroom {
namespace {

constexpr size_t kBarColumns = 32;
// What a driver holds on its own, and rounding of its pages, is below this; more is worth a word.
constexpr int64_t kUnlistedBytes = int64_t{512} << 20;

// A ledger changes with every step; an older one is of a long step, or of a run that stands still.
constexpr double kFreshSeconds = 2;

using Out = std::back_insert_iterator<std::string>;

std::string bytes_or(const std::optional<int64_t>& bytes, const char* otherwise) {
  return bytes ? format_bytes(*bytes) : otherwise;
}

void add_use(int64_t used, int64_t total, std::string& out) {
  const double percent =
      total > 0 ? 100.0 * static_cast<double>(used) / static_cast<double>(total) : 0.0;
  fmt::format_to(Out(out), "  {}  {} of {} used ({:.1f} %)\n", bar(used, total, kBarColumns),
                 format_bytes(used), format_bytes(total), percent);
}

void add_process(int64_t pid, const std::string& bytes, const std::string& name, std::string& out) {
  fmt::format_to(Out(out), "  pid {:<8} {:>12}  {}\n", pid, bytes,
                 name.empty() ? "(not seen from here)" : name);
}

// `time` is the reading's.
void add_run(const Run& run, std::optional<int64_t> process_bytes, double time, std::string& out) {
  const Ledger& ledger = run.ledger;
  const Account account = account_of(ledger, process_bytes);
  const auto line = [&out](const char* what, const std::string& bytes) {
    fmt::format_to(Out(out), "      {:<22} {:>12}\n", what, bytes);
  };
  line("allocator live", format_bytes(account.live_bytes));
  line("cached", format_bytes(account.cached_bytes));
  line("fragmented", format_bytes(account.split_bytes));
  line("context and libraries", bytes_or(account.outside_bytes, "not known"));
  line("unexplained", bytes_or(account.unexplained_bytes, "not known"));
  fmt::format_to(Out(out), "      {}, step {} of {}, peak {}", ledger.model, ledger.step,
                 ledger.total_steps, format_bytes(ledger.peak_allocated_bytes));
  if (ledger.limit_bytes > 0) {
    fmt::format_to(Out(out), ", limit {}", format_bytes(ledger.limit_bytes));
  }
  const double age_seconds = time - static_cast<double>(ledger.updated_ms) / 1e3;
  if (age_seconds >= kFreshSeconds) fmt::format_to(Out(out), ", {:.0f} s ago", age_seconds);
  out += '\n';
}

void add_notes(const GpuReading& gpu, bool whole, std::string& out) {
  for (const std::string& failure : gpu.failures) {
    fmt::format_to(Out(out), "  note: {}\n", failure);
  }
  int without = 0;
  for (const GpuProcess& process : gpu.processes) without += process.bytes ? 0 : 1;
  if (without > 0) {
    fmt::format_to(Out(out),
                   "  note: NVML gives no bytes for {} of these processes, as under MIG, in some "
                   "containers and without the rights\n",
                   without);
  }
  if (const auto unlisted = unlisted_bytes(gpu); whole && unlisted.value_or(0) > kUnlistedBytes) {
    fmt::format_to(Out(out),
                   "  note: {} are held by nobody that NVML lists; in a container it lists no "
                   "process from outside\n",
                   format_bytes(*unlisted));
  }
}

void add_gpu(const Reading& reading, const GpuReading& gpu, bool whole, std::string& out) {
  fmt::format_to(Out(out), "GPU {}  {}", gpu.index, gpu.name.empty() ? "(no name)" : gpu.name);
  if (gpu.utilisation_percent) fmt::format_to(Out(out), "  busy {} %", *gpu.utilisation_percent);
  out += '\n';
  if (gpu.used_bytes && gpu.total_bytes) add_use(*gpu.used_bytes, *gpu.total_bytes, out);
  for (const GpuProcess& process : gpu.processes) {
    add_process(process.pid, bytes_or(process.bytes, "not given"), process.name, out);
    if (const Run* run = gpu_run_of(reading, process.pid))
      add_run(*run, process.bytes, reading.time, out);
  }
  add_notes(gpu, whole, out);
}

}  // namespace

std::string reading_text(const Reading& reading, std::optional<int64_t> pid) {
  std::string out;
  if (!reading.nvml_failure.empty()) {
    fmt::format_to(Out(out), "no GPU to see: {}\n", reading.nvml_failure);
  }
  for (const GpuReading& gpu : reading.gpus) add_gpu(reading, gpu, !pid, out);
  if (const auto runs = unlisted_runs(reading); !runs.empty()) {
    out += "on a GPU, but not in NVML's lists, as in a container\n";
    for (const Run* run : runs) {
      add_process(run->ledger.pid, "not given", run->name, out);
      add_run(*run, std::nullopt, reading.time, out);
    }
  }
  const auto on_cpu = cpu_runs(reading);
  if (!on_cpu.empty()) {
    out += "host memory\n";
    add_use(reading.host.total_bytes - reading.host.available_bytes, reading.host.total_bytes, out);
    for (const Run* run : on_cpu) {
      add_process(run->ledger.pid, bytes_or(run->resident_bytes, "not given"), run->name, out);
      add_run(*run, run->resident_bytes, reading.time, out);
    }
  }
  if (pid && reading.gpus.empty() && reading.runs.empty()) {
    fmt::format_to(Out(out), "process {} is on no GPU's list and publishes no ledger\n", *pid);
  } else if (reading.runs.empty()) {
    out += "no training publishes a ledger\n";
  }
  return out;
}

}  // namespace headroom
