// Reading and writing safetensors.
#include "train/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include <nlohmann/json.hpp>

#include "core/base/dtype.h"

namespace headroom {
namespace {

using OrderedJson = nlohmann::ordered_json;  // as written: entries in the order of their bytes
// As read: its objects are searched in logarithmic time, those of the other one by one.
using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 8;
constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;  // the format's own limit

struct TypeName {
  const char* name;
  DType dtype;
};
constexpr TypeName kTypeNames[] = {{"F16", DType::f16}, {"BF16", DType::bf16}, {"F32", DType::f32},
                                   {"F64", DType::f64}, {"I64", DType::i64},   {"U8", DType::u8}};

const char* name_in_file(DType dtype) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  return "?";
}

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Range {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  uint64_t begin = 0, end = 0;
};

Range parse_entry(const std::string& file, const std::string& name, const Json& entry,
                  uint64_t data_bytes) {
  auto bad = [&](const std::string& what) -> InvalidArgument {
    return InvalidArgument(detail::concat(file, ": safetensors entry '", name, "': ", what));
  };
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    throw bad("needs dtype, shape and data_offsets");
  }
  Range out;
  out.name = name;
  const Json& type = entry["dtype"];
  const auto* found = std::find_if(std::begin(kTypeNames), std::end(kTypeNames),
                                   [&](const TypeName& known) { return type == known.name; });
  if (found == std::end(kTypeNames)) throw bad("dtype " + type.dump() + " is not supported");
  out.dtype = found->dtype;
  const Json& shape = entry["shape"];
  if (!shape.is_array() || shape.size() > kMaxRank) {
    throw bad(detail::concat("shape must be a list of at most ", kMaxRank, " extents"));
  }
  for (const Json& extent : shape) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > (uint64_t{1} << 60)) {
      throw bad("extent " + extent.dump() + " is no size");
    }
    out.shape.push_back(extent.get<int64_t>());
  }
  const Json& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    throw bad("data_offsets must be two sizes");
  }
  out.begin = offsets[0].get<uint64_t>();
  out.end = offsets[1].get<uint64_t>();
  if (out.begin > out.end || out.end > data_bytes) {
    throw bad(detail::concat("bytes ", out.begin, " .. ", out.end, " lie outside the ", data_bytes,
                             " bytes of data"));
  }
  // numel_of throws for products beyond 2^60, before any use of the number.
  const auto wanted = static_cast<uint64_t>(numel_of(out.shape)) * size_of(out.dtype);
  if (wanted != out.end - out.begin) {
    throw bad(detail::concat("has ", out.end - out.begin, " bytes but ", name_of(out.dtype),
                             to_string(out.shape), " needs ", wanted));
  }
  return out;
}

// The header is an object of objects whose lists hold no lists. Whatever else nests is refused
// while it is read: a JSON value takes up to a hundred times the bytes of a bracket.
Json parse_header(const std::string& file, const char* text, uint64_t length) {
  const auto refuse_nesting = [&](int depth, Json::parse_event_t event, const Json&) {
    using Event = Json::parse_event_t;
    const bool misplaced =
        (event == Event::object_start && depth > 1) || (event == Event::array_start && depth != 2);
    CHECK_ARG(!misplaced, file, ": the safetensors header is not a JSON object of entries: ",
              event == Event::array_start ? "a list" : "an object", " stands at depth ", depth);
    return true;
  };
  Json header = Json::parse(text, text + length, refuse_nesting, false);
  CHECK_ARG(header.is_object(), file, ": the safetensors header is not a JSON object");
  return header;
}

}  // namespace

std::string to_safetensors(const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata) {
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  std::set<std::string> names;
  for (const NamedTensor& entry : tensors) {
    CHECK_ARG(names.insert(entry.name).second, "safetensors: the name '", entry.name,
              "' appears twice");
    const auto bytes = static_cast<uint64_t>(entry.tensor.nbytes());
    std::vector<int64_t> shape(entry.tensor.shape().begin(), entry.tensor.shape().end());
    header[entry.name] = {{"dtype", name_in_file(entry.tensor.dtype())},
                          {"shape", shape},
                          {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize(aligned(text.size()), ' ');
  std::string out(kLengthBytes, '\0');
  const uint64_t length = text.size();
  for (size_t i = 0; i < kLengthBytes; ++i) out[i] = static_cast<char>(length >> (8 * i));
  out += text;
  const size_t data_begin = out.size();
  out.resize(data_begin + offset);
  size_t at = data_begin;
  for (const NamedTensor& entry : tensors) {
    const Tensor plain = detail::dense_in(entry.tensor, MemoryFormat::contiguous);
    if (plain.nbytes() > 0) {
      runtime_of(plain.device()).copy_to_host(out.data() + at, plain.view().data, plain.nbytes());
    }
    at += static_cast<size_t>(plain.nbytes());
  }
  return out;
}

SafetensorsFile parse_safetensors(const std::string& bytes, const std::string& name) {
  CHECK_ARG(bytes.size() >= kLengthBytes, name, ": not a safetensors file: ", bytes.size(),
            " bytes, the header length alone takes ", kLengthBytes);
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  CHECK_ARG(length <= kMaxHeaderBytes && length <= bytes.size() - kLengthBytes, name,
            ": not a whole safetensors file: its header claims ", length, " bytes, ",
            bytes.size() - kLengthBytes, " follow");
  const Json header = parse_header(name, bytes.data() + kLengthBytes, length);
  const uint64_t data_bytes = bytes.size() - kLengthBytes - length;
  SafetensorsFile out;
  std::vector<Range> ranges;
  for (const auto& [key, value] : header.items()) {
    if (key == "__metadata__") {
      CHECK_ARG(value.is_object(), name, ": the safetensors metadata is not a JSON object");
      for (const auto& [field, text] : value.items()) {
        CHECK_ARG(text.is_string(), name, ": safetensors metadata '", field, "' is not a string");
        out.metadata[field] = text.get<std::string>();
      }
      continue;
    }
    ranges.push_back(parse_entry(name, key, value, data_bytes));
  }
  std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t expected = 0;
  for (const Range& range : ranges) {
    CHECK_ARG(range.begin == expected, name, ": safetensors entry '", range.name, "' begins at ",
              range.begin, " where ", expected, " was due");
    expected = range.end;
  }
  CHECK_ARG(expected == data_bytes, name, ": safetensors data has ", data_bytes,
            " bytes, its entries cover ", expected);
  const char* data = bytes.data() + kLengthBytes + length;
  for (const Range& range : ranges) {
    const Tensor tensor = empty(range.shape, {range.dtype, Device::cpu()});
    if (range.end > range.begin) {
      std::memcpy(tensor.view().data, data + range.begin, range.end - range.begin);
    }
    out.tensors.push_back({range.name, tensor});
  }
  return out;
}

SafetensorsFile read_safetensors(const std::string& path) {
  std::error_code error;
  CHECK_ARG(!std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error),
            path, ": is no regular file");
  std::ifstream in(path, std::ios::binary);
  CHECK_ARG(in, path, ": cannot be opened: ", std::strerror(errno));
  std::string bytes;
  // In pieces: what the file system says of the size need not be true of a device or a pipe.
  constexpr size_t kPieceBytes = size_t{1} << 20;
  while (in) {
    const size_t before = bytes.size();
    bytes.resize(before + kPieceBytes);
    in.read(bytes.data() + before, kPieceBytes);
    bytes.resize(before + static_cast<size_t>(in.gcount()));
  }
  CHECK_ARG(in.eof() && !in.bad(), path, ": cannot be read: ", std::strerror(errno));
  return parse_safetensors(bytes, path);
}

}  // namespace headroom
