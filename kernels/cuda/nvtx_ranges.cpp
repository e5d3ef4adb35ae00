// Ranges for NVIDIA's profilers.
#include "kernels/cuda/nvtx_ranges.h"

#include <nvtx3/nvToolsExt.h>

#include <cinttypes>
#include <cstdio>

namespace headroom::cuda {
namespace {

class NvtxRanges final : public RangeListener {
 public:
  void begin_range(RangeKind kind, const char* name, int64_t number) noexcept override {
    if (kind != RangeKind::step) {
      nvtxRangePushA(name);
      return;
    }
    char text[64];
    std::snprintf(text, sizeof text, "%s %" PRId64, name, number);
    nvtxRangePushA(text);
  }
  void end_range() noexcept override { nvtxRangePop(); }
};

}  // namespace

RangeListener& nvtx_ranges() {
  static NvtxRanges instance;
  return instance;
}

}  // namespace headroom::cuda
