// Readers of typed values.
#include "train/parse_value.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace headroom {
namespace {

TEST(ParseInteger, TakesWholeNumbers) {
  EXPECT_EQ(parse_integer("--n", "0"), 0);
  EXPECT_EQ(parse_integer("--n", "10"), 10);
  EXPECT_EQ(parse_integer("--n", "-3"), -3);
  EXPECT_EQ(parse_integer("--n", "9223372036854775807"), INT64_MAX);
}

TEST(ParseInteger, RefusesEverythingElse) {
  for (const char* text : {"", " ", "+1", " 1", "1 ", "1x", "x", "1.0", "1e1", "0x1",
                           "9223372036854775808", "99999999999999999999", "--batch", "nan"}) {
    EXPECT_THROW(parse_integer("--n", text), InvalidArgument) << "'" << text << "'";
  }
}

TEST(ParseInteger, NamesTheFlagAndTheText) {
  try {
    parse_integer("--batch", "many");
    FAIL() << "no throw";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "--batch: needs a whole number such as 16, got 'many'");
  }
}

TEST(ParseUnsigned, TakesTheWholeRangeOfSeeds) {
  EXPECT_EQ(parse_unsigned("--seed", "18446744073709551615"), UINT64_MAX);
  for (const char* text : {"", "-1", "18446744073709551616", "1.5"}) {
    EXPECT_THROW(parse_unsigned("--seed", text), InvalidArgument) << text;
  }
}

TEST(ParseReal, TakesFiniteDecimals) {
  EXPECT_DOUBLE_EQ(parse_real("--lr", "0.05"), 0.05);
  EXPECT_DOUBLE_EQ(parse_real("--lr", "1e-3"), 1e-3);
  EXPECT_DOUBLE_EQ(parse_real("--lr", "5"), 5);
  EXPECT_DOUBLE_EQ(parse_real("--lr", ".5"), 0.5);
  EXPECT_DOUBLE_EQ(parse_real("--lr", "-2.5"), -2.5);
}

TEST(ParseReal, RefusesWhatIsNoFiniteDecimal) {
  for (const char* text :
       {"", "nan", "inf", "-inf", "1e999", "0x1p3", "1,5", "0.1 ", " 0.1", "0.1f", "+0.1", "1e"}) {
    EXPECT_THROW(parse_real("--lr", text), InvalidArgument) << "'" << text << "'";
  }
}

TEST(ParseBytes, KnowsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("--s", "0"), 0);
  EXPECT_EQ(parse_bytes("--s", "33554432"), 33554432);
  EXPECT_EQ(parse_bytes("--s", "512B"), 512);
  EXPECT_EQ(parse_bytes("--s", "1KiB"), 1024);
  EXPECT_EQ(parse_bytes("--s", "1KB"), 1000);
  EXPECT_EQ(parse_bytes("--s", "32MiB"), 33554432);
  EXPECT_EQ(parse_bytes("--s", "800MB"), 800000000);
  EXPECT_EQ(parse_bytes("--s", "1.5GiB"), 1610612736);
  EXPECT_EQ(parse_bytes("--s", "2GB"), 2000000000);
  EXPECT_EQ(parse_bytes("--s", "1TiB"), int64_t{1} << 40);
}

TEST(ParseBytes, MindsNeitherCaseNorABlank) {
  EXPECT_EQ(parse_bytes("--s", "4gib"), int64_t{4} << 30);
  EXPECT_EQ(parse_bytes("--s", "4 GiB"), int64_t{4} << 30);
}

TEST(ParseBytes, RefusesFractionsOfAByteAndRoundsLargerUnitsDown) {
  for (const char* text : {"1.5", "0.5", "8.25B", "1e-3"}) {
    EXPECT_THROW(parse_bytes("--s", text), InvalidArgument) << text;
  }
  EXPECT_EQ(parse_bytes("--s", "8"), 8);
  EXPECT_EQ(parse_bytes("--s", "1e6"), 1000000);
  EXPECT_EQ(parse_bytes("--s", "1.1GiB"), 1181116006);  // 1181116006.4
}

TEST(ParseBytes, RefusesOtherUnitsAndSizesThatNoDeviceHas) {
  for (const char* text : {"", "GiB", "-1", "-1GiB", "4G", "4giga", "4GiB x", "1e30", "1e30GiB",
                           "nan", "inf", "1..5GiB", "0x10", "5000000TiB"}) {
    EXPECT_THROW(parse_bytes("--s", text), InvalidArgument) << "'" << text << "'";
  }
}

}  // namespace
}  // namespace headroom
