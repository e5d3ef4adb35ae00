// The numbers that an allocator keeps. All are bytes unless they say counts. The names and meanings
// are those of PyTorch's torch.cuda.memory_stats(), so that readings compare.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "core/memory/tag.h"

namespace headroom {

struct Stat {
  int64_t current = 0;
  int64_t peak = 0;
  int64_t total_allocated = 0;
  int64_t total_freed = 0;

  void increase(int64_t amount) {
    current += amount;
    total_allocated += amount;
    if (current > peak) peak = current;
  }
  void decrease(int64_t amount) {
    current -= amount;
    total_freed += amount;
  }
  // By the sign of a net change.
  void change(int64_t amount) {
    if (amount > 0) increase(amount);
    if (amount < 0) decrease(-amount);
  }
};

enum class Pool : uint8_t { all, small, large };
constexpr int kPoolCount = 3;

struct PoolStats {
  Stat allocated_bytes;       // in blocks handed out, rounded
  Stat requested_bytes;       // in blocks handed out, as asked
  Stat reserved_bytes;        // in segments held from the device
  Stat active_bytes;          // not yet free for reuse; with one stream, as allocated
  Stat inactive_split_bytes;  // free pieces of segments that are partly in use
  Stat allocation_count;
  Stat segment_count;
  Stat active_count;
  Stat inactive_split_count;
};

// Every Stat of a pool, for code that treats them alike.
constexpr std::array<Stat PoolStats::*, 9> kPoolStatMembers = {
    &PoolStats::allocated_bytes, &PoolStats::requested_bytes,      &PoolStats::reserved_bytes,
    &PoolStats::active_bytes,    &PoolStats::inactive_split_bytes, &PoolStats::allocation_count,
    &PoolStats::segment_count,   &PoolStats::active_count,         &PoolStats::inactive_split_count,
};

using BytesByTag = std::array<int64_t, kTagCount>;

struct MemoryStats {
  std::array<PoolStats, kPoolCount> pool;  // indexed by Pool
  BytesByTag current_by_tag{};
  BytesByTag peak_by_tag{};   // the parts at the instant of the allocated peak; they sum to it
  int64_t retries = 0;        // requests for which cached segments were given back
  int64_t out_of_memory = 0;  // requests that failed

  const PoolStats& operator[](Pool which) const { return pool[static_cast<int>(which)]; }
  PoolStats& operator[](Pool which) { return pool[static_cast<int>(which)]; }
};

}  // namespace headroom
