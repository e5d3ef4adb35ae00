// Who else holds a GPU's memory, in the words of an OutOfMemory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/nvml.h"

namespace headroom {

// Empty if the driver does not list the process or does not know its bytes.
std::optional<int64_t> bytes_of_process(const GpuReading& gpu, int64_t pid);

// "others hold 61.20 GiB: python 4711 60.10 GiB, X 901 1.10 GiB": at most three, the largest first;
// or that there is nobody else. Says so where the driver does not give the bytes, or does not list
// this process, `own`, and so either hides processes or counts pids that are not those of here.
std::string other_users_text(const GpuReading& gpu, int64_t own);

}  // namespace headroom
