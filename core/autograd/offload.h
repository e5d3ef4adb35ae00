// SavePolicy::offload: what backward needs waits in host memory, so that the device's block serves
// others meanwhile.
//
// When a node saves a tensor, the whole storage is copied to host memory on the copy stream. The
// block comes free once nobody else holds it and its copy is done; that is not asked but arranged:
// at most kOffloadWindow copies are under way, and the next one makes the compute stream wait for
// the oldest, whose block is let go then. Backward brings the tensors back in the order in which
// they were saved last, latest first, kOffloadWindow ahead of the one that it needs. So a peak does
// not depend on how fast copies are, and meta devices, which copy nothing, know it.
//
// Kept on the device instead are tensors below kOffloadMinBytes and those whose bytes would not
// come free: parameters and everything else that is not tagged as a temporary (inputs, buffers,
// half copies), leaves that require a gradient, and what another saved tensor keeps. What the
// program holds on to itself is copied for nothing, and not copied back.
//
// The host memory is host_allocator_of(device)'s. It is pinned on CUDA, and running out of it is an
// OutOfMemory. On the CPU the bytes leave the allocator that a device's memory stands for, not the
// machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/tensor/tensor.h"

namespace headroom {

// A copy takes some 10 us to start, whatever its size, in which a PCIe link of 25 GB/s moves 250
// KB: below that the link idles and little is gained.
constexpr int64_t kOffloadMinBytes = int64_t{1} << 20;

// Copies under way in one direction: one that moves and one that waits behind it, so that the link
// does not idle between them. More only keep more blocks alive.
constexpr int kOffloadWindow = 2;

namespace detail {

class HostCopy;

// A saved tensor whose storage waits on the host. Tensors of one storage share the copy.
class OffloadedTensor {
 public:
  OffloadedTensor(std::shared_ptr<HostCopy> copy, const Tensor& like);
  ~OffloadedTensor();

  // On the device again: the original storage while someone else holds it, else a new one, which
  // stays until leave_device() or the last OffloadedTensor of the copy is gone. Throws OutOfMemory.
  Tensor bring_back() const;
  // Gives up the storage that bring_back() or a prefetch made. The copy on the host stays.
  void leave_device();
  // How often the original was written, also after it is gone.
  int64_t version() const;
  std::string describe() const;

 private:
  std::shared_ptr<HostCopy> copy_;
  int64_t offset_;
  Shape shape_;
  Strides strides_;
  DType dtype_;
  MemoryFormat format_;
  bool is_view_;
};

// Queues the copy of a tensor's storage to the host, or takes the one that is there. Null if it is
// better kept (see above). Throws OutOfMemory when the host has no room.
std::unique_ptr<OffloadedTensor> offload(const Tensor& tensor);

// A backward has ended: what was brought back and is not used leaves the device again.
void end_prefetch();

}  // namespace detail
}  // namespace headroom
