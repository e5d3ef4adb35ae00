// Storage: one block of an allocator, shared by the tensors that look at it, with the version
// counter that lets a saved tensor notice an in-place write.
#pragma once

#include <cstdint>
#include <memory>

#include "core/memory/caching_allocator.h"

namespace headroom {

class Storage {
 public:
  // Allocates `bytes` on the device under the current memory_context(). Throws OutOfMemory, and
  // InvalidArgument for negative bytes or a device that is not there.
  Storage(Device device, int64_t bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  Device device() const { return device_; }
  void* data() const { return block_->address; }
  int64_t bytes() const { return bytes_; }
  // What the allocator charges for it: the rounded size.
  int64_t block_bytes() const { return block_->bytes; }
  Tag tag() const { return block_->tag; }
  void set_tag(Tag tag);
  PathId path() const { return block_->path; }
  void set_path(PathId path) { allocator_->set_path(block_, path); }

  int64_t version() const { return *version_; }
  void bump_version() { ++*version_; }
  // Outlives the storage, for who keeps its bytes elsewhere and has to notice a write all the same.
  std::shared_ptr<const int64_t> version_counter() const { return version_; }

  // While a saved tensor holds a temporary, it is charged as a saved activation.
  void begin_saved();
  void end_saved();
  bool is_saved() const { return saved_count_ > 0; }

  // Set once a differentiable view of this storage exists: in-place ops with gradients are refused
  // from then on, because the view's place in the graph would go stale.
  bool has_views() const { return has_views_; }
  void mark_viewed() { has_views_ = true; }

 private:
  Device device_;
  CachingAllocator* allocator_;
  Block* block_;
  int64_t bytes_;
  std::shared_ptr<int64_t> version_ = std::make_shared<int64_t>(0);
  int saved_count_ = 0;
  bool has_views_ = false;
};

}  // namespace headroom
