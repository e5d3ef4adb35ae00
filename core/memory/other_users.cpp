// Sentences about the processes of a GPU.
#include "core/memory/other_users.h"

#include <fmt/format.h>

#include <iterator>

#include "core/memory/caching_allocator.h"

namespace headroom {
namespace {

constexpr int kNamed = 3;

}  // namespace

std::optional<int64_t> bytes_of_process(const GpuReading& gpu, int64_t pid) {
  for (const GpuProcess& process : gpu.processes) {
    if (process.pid == pid) return process.bytes;
  }
  return std::nullopt;
}

std::string other_users_text(const GpuReading& gpu, int64_t own) {
  int64_t held_bytes = 0;
  int others = 0;
  bool sees_own = false, knows_all = true;
  std::string list;
  for (const GpuProcess& process : gpu.processes) {
    if (process.pid == own) {
      sees_own = true;
      continue;
    }
    held_bytes += process.bytes.value_or(0);
    knows_all = knows_all && process.bytes.has_value();
    if (++others > kNamed) continue;
    fmt::format_to(std::back_inserter(list), "{}{}{}{} {}", list.empty() ? "" : ", ", process.name,
                   process.name.empty() ? "" : " ", process.pid,
                   process.bytes ? format_bytes(*process.bytes) : "of unknown bytes");
  }
  if (others == 0) {
    return sees_own ? "no other process is on it"
                    : "the driver lists no process on it, as in a container";
  }
  if (others > kNamed) fmt::format_to(std::back_inserter(list), ", {} more", others - kNamed);
  // As in a container: without a pid of ours the list cannot be told apart into us and others.
  if (!sees_own) return "the driver lists, this process perhaps among them, " + list;
  if (held_bytes == 0) return "others hold what the driver does not give: " + list;
  return fmt::format("others hold {}{}: {}", knows_all ? "" : "at least ", format_bytes(held_bytes),
                     list);
}

}  // namespace headroom
