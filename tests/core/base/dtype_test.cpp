// Half conversions against the definition of rounding to nearest even, over every half there is.
#include "core/base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace headroom {
namespace {

Half half_of_bits(uint16_t bits) {
  Half out;
  out.bits = bits;
  return out;
}

BFloat16 bfloat_of_bits(uint16_t bits) {
  BFloat16 out;
  out.bits = bits;
  return out;
}

// The value of a binary16 by its definition, computed in f64.
double value_of_half(uint16_t bits) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

TEST(Half, EveryFiniteHalfHasTheValueOfItsDefinition) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (((bits >> 10) & 31) == 31) continue;
    const auto value = static_cast<float>(half_of_bits(static_cast<uint16_t>(bits)));
    ASSERT_EQ(static_cast<double>(value), value_of_half(static_cast<uint16_t>(bits))) << bits;
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
  }
}

TEST(Half, ThroughF32AndBackIsTheIdentity) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = static_cast<float>(half_of_bits(static_cast<uint16_t>(bits)));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Half(value)))) << bits;
    } else {
      ASSERT_EQ(Half(value).bits, bits);
    }
  }
}

// Between two neighbours lie the tie and its neighbours in f32, which decide every rounding.
TEST(Half, RoundsEveryTieToEvenAndItsNeighboursToTheNearest) {
  for (uint16_t low = 0; low < 0x7bff; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const auto tie = static_cast<float>((value_of_half(low) + value_of_half(high)) / 2);
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const float sign : {1.0f, -1.0f}) {
      const uint16_t mask = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(Half(sign * tie).bits, even | mask) << low;
      ASSERT_EQ(Half(sign * std::nextafter(tie, 0.0f)).bits, low | mask) << low;
      ASSERT_EQ(Half(sign * std::nextafter(tie, 1e9f)).bits, high | mask) << low;
    }
  }
}

TEST(Half, OverflowsToInfinityFrom65520On) {
  EXPECT_EQ(Half(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Half(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(Half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Half(-65520.0f).bits, 0xfc00);
  EXPECT_EQ(Half(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_EQ(Half(std::numeric_limits<float>::max()).bits, 0x7c00);
}

TEST(Half, UnderflowsToSignedZeroBelowHalfOfTheSmallest) {
  EXPECT_EQ(Half(0x1p-25f).bits, 0);  // a tie with zero, which is even
  EXPECT_EQ(Half(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
  EXPECT_EQ(Half(-0x1p-26f).bits, 0x8000);
  EXPECT_EQ(Half(0x1p-149f).bits, 0);
}

TEST(Half, NanStaysNan) {
  const float quiet = std::numeric_limits<float>::quiet_NaN();
  const float payload = std::bit_cast<float>(0x7f800001u);  // its payload lies in the low bits only
  for (const float nan : {quiet, -quiet, payload}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(Half(nan))));
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(nan))));
  }
}

TEST(BFloat16, IsTheUpperHalfOfAnF32RoundedToEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto value = static_cast<float>(bfloat_of_bits(static_cast<uint16_t>(bits)));
    ASSERT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    if (!std::isnan(value)) {
      ASSERT_EQ(BFloat16(value).bits, bits);
    }
    if (!std::isfinite(value)) continue;
    const uint32_t wide = bits << 16;
    const auto tie = std::bit_cast<float>(wide | 0x8000u);
    ASSERT_EQ(BFloat16(tie).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(BFloat16(std::bit_cast<float>(wide | 0x7fffu)).bits, bits);
    ASSERT_EQ(BFloat16(std::bit_cast<float>(wide | 0x8001u)).bits, bits + 1);
  }
}

TEST(DType, SizesAndNamesAreThoseOfTheElements) {
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f32), sizeof(float));
  EXPECT_EQ(size_of(DType::f64), sizeof(double));
  EXPECT_EQ(size_of(DType::i64), sizeof(int64_t));
  EXPECT_EQ(size_of(DType::u8), 1u);
  EXPECT_STREQ(name_of(DType::bf16), "bf16");
  EXPECT_TRUE(is_half(DType::bf16));
  EXPECT_FALSE(is_half(DType::f32));
  EXPECT_TRUE(is_floating(DType::f64));
  EXPECT_FALSE(is_floating(DType::i64));
}

TEST(DType, DispatchNamesTheOpThatGotIntegers) {
  try {
    dispatch_floating(DType::i64, "softmax", [](auto) {});
    FAIL() << "not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "softmax: needs a floating dtype but got i64");
  }
  EXPECT_EQ(dispatch_all(DType::u8, "copy", [](auto tag) { return sizeof(tag); }), 1u);
}

}  // namespace
}  // namespace headroom
