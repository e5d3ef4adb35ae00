// What fuzzers with a mutator of their own share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

// libFuzzer's own mutation.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace headroom::fuzz {

// Of a safetensors file: mutates the JSON header or the file as a whole. A header that grew or
// shrank would no longer have the length in front of it, and nothing behind that check would ever
// be tried, so the length follows.
inline size_t mutate_safetensors(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  constexpr size_t kLengthBytes = 8;
  uint64_t length = 0;
  if (size >= kLengthBytes) std::memcpy(&length, data, kLengthBytes);
  if (size < kLengthBytes || length > size - kLengthBytes || seed % 8 == 0) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  const std::vector<uint8_t> tail(data + kLengthBytes + length, data + size);
  if (max_size < kLengthBytes + tail.size()) return LLVMFuzzerMutate(data, size, max_size);
  length = LLVMFuzzerMutate(data + kLengthBytes, length, max_size - kLengthBytes - tail.size());
  std::memcpy(data, &length, kLengthBytes);
  if (!tail.empty()) std::memcpy(data + kLengthBytes + length, tail.data(), tail.size());
  return kLengthBytes + length + tail.size();
}

}  // namespace headroom::fuzz
