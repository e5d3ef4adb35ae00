// Philox4x32-10, the counter-based random generator of Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011). One counter gives four words, so element i of any tensor can be drawn
// by any thread, on any device, with the same result.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define HEADROOM_HOST_DEVICE __host__ __device__
#else
#define HEADROOM_HOST_DEVICE
#endif

namespace headroom {

struct PhiloxWords {
  uint32_t word[4];
};

// key: the seed. counter: two 64-bit halves; by convention `low` is the element group (index / 4)
// and `high` the generator's offset, which advances once per op that draws.
HEADROOM_HOST_DEVICE inline PhiloxWords philox(uint64_t key, uint64_t low, uint64_t high) {
  constexpr uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  uint32_t c0 = static_cast<uint32_t>(low), c1 = static_cast<uint32_t>(low >> 32);
  uint32_t c2 = static_cast<uint32_t>(high), c3 = static_cast<uint32_t>(high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * c0;
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// A float in [0, 1): 24 random bits, so 1 never comes out.
HEADROOM_HOST_DEVICE inline float uniform_from_bits(uint32_t bits) {
  return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f);
}

// The word of element `index` of a draw at `offset`.
HEADROOM_HOST_DEVICE inline uint32_t philox_word(uint64_t seed, uint64_t offset, uint64_t index) {
  return philox(seed, index / 4, offset).word[index % 4];
}

}  // namespace headroom
