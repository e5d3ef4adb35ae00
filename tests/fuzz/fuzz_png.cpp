// Fuzzes the PNG decoder. Chunks end with a checksum, which a mutation almost never gets right, so
// it is put right after most of them.
#include <zlib.h>

#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"

namespace {

constexpr size_t kSignature = 8;
constexpr size_t kAround = 12;  // length, name and checksum of a chunk

uint32_t big_endian(const uint8_t* at) {
  return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | uint32_t{at[3]};
}

void put_checksums_right(uint8_t* data, size_t size) {
  for (size_t at = kSignature; at + kAround <= size;) {
    const size_t length = big_endian(data + at);
    if (length > size - at - kAround) return;
    const auto sum = crc32(0, data + at + 4, static_cast<uInt>(length + 4));
    for (size_t i = 0; i < 4; ++i) {
      data[at + 8 + length + i] = static_cast<uint8_t>(sum >> (24 - 8 * i));
    }
    at += kAround + length;
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 16 != 0) put_checksums_right(data, size);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headroom::fuzz::image({data, size});
  return 0;
}
