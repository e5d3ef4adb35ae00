// The safetensors format: what is written, and everything that is not a whole, consistent file.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include <nlohmann/json.hpp>

#include "core/ops/ops.h"
#include "tests/train/trainer_run.h"
#include "train/checkpoint/atomic_file.h"
#include "train/checkpoint/safetensors.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;
using test::TemporaryFolder;

std::string file_of(const std::string& header, const std::string& data, int64_t length = -1) {
  const auto value = static_cast<uint64_t>(length < 0 ? header.size() : length);
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(value >> (8 * i));
  return out + header + data;
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, WritesALengthAHeaderAndTheBytes) {
  const std::string bytes =
      to_safetensors({{"a", from_vector(Floats{1, 2}, {2})},
                      {"b", from_vector(std::vector<uint8_t>{7}, {}, {DType::u8})}},
                     {{"key", "value"}});
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  EXPECT_EQ(length % 8, 0u) << "tensors are aligned to 8 bytes";
  ASSERT_EQ(bytes.size(), 8 + length + 9);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["key"], "value");
  EXPECT_EQ(header["a"]["dtype"], "F32");
  EXPECT_EQ(header["a"]["shape"], nlohmann::json({2}));
  EXPECT_EQ(header["b"]["data_offsets"], nlohmann::json({8, 9}));
  EXPECT_EQ(bytes.substr(8 + length, 8), std::string("\0\0\x80\x3f\0\0\0\x40", 8));
  EXPECT_EQ(bytes.back(), 7);
}

TEST(Safetensors, RoundTripsEveryTypeShapeAndLayout) {
  std::vector<NamedTensor> tensors;
  for (const DType dtype :
       {DType::f16, DType::bf16, DType::f32, DType::f64, DType::i64, DType::u8}) {
    tensors.push_back({name_of(dtype), from_vector(Floats{1, 2, 3, 4, 5, 6}, {2, 3}, {dtype})});
  }
  Floats values;
  for (int i = 0; i < 24; ++i) values.push_back(static_cast<float>(i));
  const Tensor image =
      from_vector(values, {1, 2, 3, 4}, {DType::f32, Device::cpu(), MemoryFormat::channels_last});
  tensors.push_back({"nhwc", image});
  tensors.push_back({"view", permute(image, {3, 2, 1, 0})});
  tensors.push_back({"empty", zeros({0, 5})});
  tensors.push_back({"scalar", scalar(3)});
  tensors.push_back({"six", zeros({1, 1, 2, 1, 1, 1})});
  const SafetensorsFile read = parse_safetensors(to_safetensors(tensors), "file");
  ASSERT_EQ(read.tensors.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(read.tensors[i].name, tensors[i].name);
    EXPECT_EQ(read.tensors[i].tensor.dtype(), tensors[i].tensor.dtype());
    EXPECT_EQ(read.tensors[i].tensor.shape(), tensors[i].tensor.shape());
    EXPECT_EQ(read.tensors[i].tensor.to_vector<double>(), tensors[i].tensor.to_vector<double>());
  }
}

TEST(Safetensors, RefusesANameThatAppearsTwice) {
  EXPECT_THROW(to_safetensors({{"a", zeros({1})}, {"a", zeros({1})}}), InvalidArgument);
}

struct Bad {
  const char* what;
  std::string bytes;
  const char* says;
};

std::vector<Bad> bad_files() {
  const std::string a4 = "{\"a\":" + entry("F32", "[1]", "[0,4]") + "}";
  const std::string zeros4(4, '\0'), zeros8(8, '\0');
  const auto one = [&](const std::string& text) { return file_of("{\"a\":" + text + "}", zeros4); };
  const auto two = [&](const std::string& first, const std::string& second, size_t bytes) {
    return file_of("{\"a\":" + first + ",\"b\":" + second + "}", std::string(bytes, '\0'));
  };
  const std::string nested(100'000, '[');
  const std::string closed = nested + std::string(nested.size(), ']');
  return {
      {"nothing", "", "0 bytes"},
      {"half a length", "\x01\x02", "2 bytes"},
      {"header longer than the file", file_of(a4, zeros4, 1000), "claims 1000 bytes"},
      {"a header of a terabyte", file_of(a4, zeros4, int64_t{1} << 40), "1099511627776"},
      {"a header of 2^60 bytes", file_of(a4, zeros4, int64_t{1} << 60), "1152921504606846976"},
      {"a header of 2^63 bytes", std::string(7, '\xff') + "\x7f" + a4, "claims"},
      {"no JSON", file_of("not json", ""), "not a JSON object"},
      {"JSON, but a list", file_of("[1,2]", ""), "not a JSON object"},
      {"deep nesting", file_of("{\"a\":" + nested, ""), "not a JSON object"},
      {"a dtype that is a deep list",
       one("{\"dtype\":" + closed + ",\"shape\":[1],\"data_offsets\":[0,4]}"), "a list"},
      {"an extent that is a deep list", one(entry("F32", "[" + closed + "]", "[0,4]")), "a list"},
      {"an object within an entry", one("{\"dtype\":{}}"), "an object stands at depth 2"},
      {"a list where an entry is due", one("[1]"), "a list stands at depth 1"},
      {"bytes that are no UTF-8", file_of("{\"\xff\xfe\":1}", ""), "not a JSON object"},
      {"truncated data", file_of(a4, "\0\0"), "lie outside"},
      {"data left over", file_of(a4, zeros8), "cover 4"},
      {"an entry that is no object", one("5"), "needs dtype"},
      {"no offsets", one("{\"dtype\":\"F32\",\"shape\":[1]}"), "needs dtype"},
      {"an unknown dtype", one(entry("I32", "[1]", "[0,4]")), "I32"},
      {"a dtype that is no string", one("{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}"),
       "dtype 4"},
      {"a negative extent", one(entry("F32", "[-1]", "[0,4]")), "-1"},
      {"a fractional extent", one(entry("F32", "[1.5]", "[0,4]")), "1.5"},
      {"a shape that is no list", one(entry("F32", "1", "[0,4]")), "shape"},
      {"seven axes", one(entry("F32", "[1,1,1,1,1,1,1]", "[0,4]")), "at most 6"},
      {"extents whose product overflows",
       one(entry("F32", "[4294967296,4294967296,4294967296]", "[0,4]")), "2^60"},
      {"a product that overflows before its 0",
       one(entry("F32", "[1152921504606846976,16,0]", "[0,0]")), "2^60"},
      {"a terabyte of data", one(entry("F32", "[274877906944]", "[0,1099511627776]")),
       "lie outside"},
      {"a shape larger than its bytes", one(entry("F32", "[2]", "[0,4]")), "needs 8"},
      {"a shape smaller than its bytes",
       file_of("{\"a\":" + entry("F32", "[1]", "[0,8]") + "}", zeros8), "needs 4"},
      {"a dtype wider than its bytes", one(entry("F64", "[1]", "[0,4]")), "needs 8"},
      {"offsets backwards", one(entry("F32", "[1]", "[4,0]")), "lie outside"},
      {"one offset", one(entry("F32", "[1]", "[4]")), "two sizes"},
      {"negative offsets", one(entry("F32", "[1]", "[-4,0]")), "two sizes"},
      {"overlapping entries", two(entry("F32", "[1]", "[0,4]"), entry("F32", "[1]", "[2,6]"), 6),
       "begins at 2"},
      {"the same bytes twice", two(entry("F32", "[1]", "[0,4]"), entry("F32", "[1]", "[0,4]"), 4),
       "begins at 0"},
      {"a gap", two(entry("F32", "[1]", "[0,4]"), entry("F32", "[1]", "[8,12]"), 12),
       "begins at 8"},
      {"metadata that is no object", file_of("{\"__metadata__\":3}", ""), "metadata"},
      {"metadata that is no text", file_of("{\"__metadata__\":{\"a\":1}}", ""), "'a'"},
  };
}

TEST(Safetensors, RefusesWhatIsNoWholeFileByNameAndWithoutMemory) {
  for (const Bad& bad : bad_files()) {
    CachingAllocator& allocator = allocator_of(Device::cpu());
    int64_t requests = 0;
    allocator.set_failure_hook([&](int64_t, int64_t) {
      ++requests;
      return false;
    });
    try {
      parse_safetensors(bad.bytes, "some/file");
      ADD_FAILURE() << "accepted: " << bad.what;
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(bad.says), std::string::npos) << bad.what << ": " << message;
    }
    allocator.set_failure_hook({});
    EXPECT_EQ(requests, 0) << "asked for memory before it knew better: " << bad.what;
  }
}

TEST(Safetensors, AHeaderOfVeryManyNamesIsReadInTimeThatGrowsWithIt) {
  std::string fields;
  constexpr int kFields = 300'000;
  for (int i = 0; i < kFields; ++i) {
    fields += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
  }
  const auto begin = std::chrono::steady_clock::now();
  const SafetensorsFile read =
      parse_safetensors(file_of("{\"__metadata__\":{" + fields + "}}", ""), "file");
  EXPECT_EQ(read.metadata.size(), size_t{kFields});
  // Takes a second, or minutes where every name is compared with every other.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
}

TEST(Safetensors, GivesTensorsInTheOrderOfTheirBytes) {
  const SafetensorsFile read =
      parse_safetensors(file_of("{\"a\":" + entry("U8", "[1]", "[2,3]") +
                                    ",\"b\":" + entry("U8", "[2]", "[0,2]") + "}",
                                "xyz"),
                        "file");
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.tensors[0].name, "b");
  EXPECT_EQ(read.tensors[1].tensor.item(), 'z');
}

TEST(Safetensors, EveryTruncationOfAFileIsRefused) {
  const std::string whole =
      to_safetensors({{"a", ones({3})}, {"b", zeros({2, 2}, {DType::f16})}}, {{"k", "v"}});
  parse_safetensors(whole, "whole");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(parse_safetensors(whole.substr(0, size), "cut"), InvalidArgument) << size;
  }
}

TEST(Safetensors, AFileThatCannotBeReadIsNamed) {
  const TemporaryFolder folder;
  for (const std::string& path : {folder.file("missing"), folder.file("")}) {
    try {
      read_safetensors(path);
      ADD_FAILURE() << "read " << path;
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
  const std::string path = folder.file("file");
  write_file_atomically(path, to_safetensors({{"a", ones({300'000})}}));
  EXPECT_EQ(read_safetensors(path).tensors[0].tensor.to_vector<float>(), Floats(300'000, 1));
}

}  // namespace
}  // namespace headroom
