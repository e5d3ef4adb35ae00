// Scratch of CUDA's batch normalisation: the partial sums of its blocks.
#include "core/ops/batch_norm_partition.h"
#include "core/ops/workspace_rules.h"

namespace headroom::rules {

int64_t cuda_batch_norm_workspace_bytes(const View& x) {
  return bn::workspace_floats(bn::extent_of(x), x.dtype) * static_cast<int64_t>(sizeof(float));
}

}  // namespace headroom::rules
