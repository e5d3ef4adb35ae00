// What the driver's management library says of the GPU that this process uses: who is on it and
// what they hold. Nothing here throws, waits for the device or needs a context of this process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace headroom::cuda {

// Context and libraries included. Empty where the driver cannot be asked, does not list this
// process, or gives no bytes.
std::optional<int64_t> bytes_of_this_process();

// "others hold 61.20 GiB: python 4711 60.10 GiB, ...", that there are none, or why it is not known:
// as it was at most a second ago.
std::string other_users();

// The same with what is free, to go on a message of something that failed for want of memory or of
// the GPU itself: "; device has 9.00 MiB free of 79.10 GiB, others hold ...".
std::string memory_note();

}  // namespace headroom::cuda
