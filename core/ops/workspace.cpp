// Chooses the rule of the device that runs, or that a meta device stands for.
#include "core/ops/workspace.h"

#include "core/ops/workspace_rules.h"

namespace headroom {

int64_t conv2d_workspace_bytes(Device device, ConvDirection direction, const View& x, const View& w,
                               const View& y, const Conv2dParams& params, int64_t limit_bytes) {
  if (device.stands_for == DeviceType::cuda) {
    return rules::cuda_conv2d_workspace_bytes(direction, x, w, y, params, limit_bytes);
  }
  return rules::cpu_conv2d_workspace_bytes(direction, x, w, y, params);
}

int64_t matmul_workspace_bytes(Device device, int64_t m, int64_t n, int64_t k, DType dtype) {
  return device.stands_for == DeviceType::cuda ? rules::cuda_matmul_workspace_bytes(m, n, k, dtype)
                                               : rules::cpu_matmul_workspace_bytes(m, n, k, dtype);
}

int64_t batch_norm_workspace_bytes(Device device, const View& x) {
  return device.stands_for == DeviceType::cuda ? rules::cuda_batch_norm_workspace_bytes(x)
                                               : rules::cpu_batch_norm_workspace_bytes(x);
}

}  // namespace headroom
