// Philox4x32-10 against the known-answer vectors that its authors publish with Random123.
#include "core/base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace headroom {
namespace {

void expect_words(const PhiloxWords& got, const uint32_t (&wanted)[4]) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], wanted[i]) << "word " << i;
}

TEST(Philox, GivesThePublishedWordsForZeros) {
  expect_words(philox(0, 0, 0), {0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
}

TEST(Philox, GivesThePublishedWordsForOnes) {
  constexpr uint64_t kOnes = ~uint64_t{0};
  expect_words(philox(kOnes, kOnes, kOnes), {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
}

// Counter and key are digits of pi, low words first.
TEST(Philox, GivesThePublishedWordsForPi) {
  expect_words(philox(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu),
               {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST(Philox, AnElementsWordIsAFunctionOfSeedOffsetAndIndexAlone) {
  for (const uint64_t index : {uint64_t{0}, uint64_t{5}, uint64_t{1} << 40}) {
    EXPECT_EQ(philox_word(7, 3, index), philox(7, index / 4, 3).word[index % 4]);
  }
  std::set<uint32_t> words;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (uint64_t offset = 0; offset < 4; ++offset) {
      for (uint64_t index = 0; index < 16; ++index) words.insert(philox_word(seed, offset, index));
    }
  }
  EXPECT_EQ(words.size(), 256u);  // none of seed, offset and index is left out
}

TEST(Philox, UniformsLieInZeroToOneWithoutOne) {
  EXPECT_EQ(uniform_from_bits(0), 0.0f);
  EXPECT_EQ(uniform_from_bits(0xffu), 0.0f);
  EXPECT_EQ(uniform_from_bits(0xffffffffu), 1.0f - 0x1p-24f);
  EXPECT_EQ(uniform_from_bits(0x80000000u), 0.5f);
}

}  // namespace
}  // namespace headroom
