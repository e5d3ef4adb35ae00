// Workspaces: bytes from the allocator that live for one kernel call.
#pragma once

#include "core/ops/workspace.h"
#include "core/tensor/tensor.h"

namespace headroom::detail {

// u8[bytes], tagged as workspace; undefined for 0 bytes. The caller's handle frees it; with one
// compute stream that is safe as soon as the kernel was launched. Throws OutOfMemory.
inline Tensor scratch(Device device, int64_t bytes) {
  if (bytes <= 0) return {};
  const TagScope tag(Tag::workspace);
  return empty({bytes}, {DType::u8, device});
}

}  // namespace headroom::detail
