// The ranges of a thread for NVIDIA's profilers (Nsight Systems, Nsight Compute).
#pragma once

#include "core/base/ranges.h"

namespace headroom::cuda {

// Passes ranges to NVTX: "step 3", and phases, modules, ops and kernels under their names. NVTX
// does nothing until a profiler is there, but the calls remain, so this is no thread's listener
// unless it is asked for. Lives as long as the process.
RangeListener& nvtx_ranges();

}  // namespace headroom::cuda
