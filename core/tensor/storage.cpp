// Storage: a block and its tags.
#include "core/tensor/storage.h"

namespace headroom {

Storage::Storage(Device device, int64_t bytes)
    : device_(device),
      allocator_(&allocator_of(device)),
      block_(allocator_->allocate(bytes)),
      bytes_(bytes) {}

Storage::~Storage() { allocator_->free(block_); }

void Storage::set_tag(Tag tag) {
  if (block_->tag != tag) allocator_->retag(block_, tag);
}

void Storage::begin_saved() {
  if (saved_count_++ == 0 && block_->tag == Tag::temporary) set_tag(Tag::saved_activation);
}

void Storage::end_saved() {
  if (--saved_count_ == 0 && block_->tag == Tag::saved_activation) set_tag(Tag::temporary);
}

}  // namespace headroom
