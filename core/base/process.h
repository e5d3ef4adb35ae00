// What the system tells of processes, this one or another. Nothing here throws for a process that
// is gone: it may end at any time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace headroom {

int64_t own_pid();

// The file name of the program that it was started as, "python3"; the name of its main thread where
// there is no command line; empty if there is no such process. Control characters become '?', since
// a process may call itself anything.
std::string process_name(int64_t pid);

// Bytes of it that are in physical memory now.
std::optional<int64_t> resident_bytes(int64_t pid);

// The user it belongs to.
std::optional<int64_t> process_owner(int64_t pid);

// The physical memory of this machine, and what of it could be had now.
struct HostMemory {
  int64_t total_bytes = 0;
  int64_t available_bytes = 0;
};
HostMemory host_memory();

}  // namespace headroom
