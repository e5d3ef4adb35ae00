// An OutOfMemory that tells more than its sizes: who asked, and who held what at that moment.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/device.h"
#include "core/memory/events.h"

namespace headroom {

struct ModuleBytes {
  std::string path;  // "" for what lies outside of any module
  int64_t bytes = 0;
};
// Bytes by module path, largest first, ties by name; at most `most` of them.
std::vector<ModuleBytes> largest_modules(const std::vector<LiveBlock>& live, size_t most);

// What a CachingAllocator throws.
class AllocationFailure : public OutOfMemory {
 public:
  // `live` are the blocks in use, which sum to facts.allocated_bytes.
  AllocationFailure(const std::string& message, const Facts& facts, Device device,
                    const MemoryContext& context, std::vector<LiveBlock> live)
      : OutOfMemory(message, facts),
        device_(device),
        context_(context),
        live_(std::make_shared<const std::vector<LiveBlock>>(std::move(live))) {}

  Device device() const { return device_; }
  const MemoryContext& context() const { return context_; }  // of the request
  const std::vector<LiveBlock>& live() const { return *live_; }
  // The same by tag, path and op, as a peak's parts are.
  MemoryPeak held() const { return peak_of({{}, live(), 0}); }

 private:
  Device device_;
  MemoryContext context_;
  std::shared_ptr<const std::vector<LiveBlock>> live_;  // a copy of an exception must not throw
};

}  // namespace headroom
