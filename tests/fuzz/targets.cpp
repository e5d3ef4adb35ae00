// The targets that need no kernels.
#include "tests/fuzz/targets.h"

#include <zlib.h>

#include <cstring>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "core/base/device.h"
#include "tests/fuzz/input_file.h"
#include "train/checkpoint/safetensors.h"
#include "train/command_line.h"
#include "train/data/cifar.h"
#include "train/data/idx.h"
#include "train/data/image_file.h"
#include "train/data/random_data.h"
#include "train/flags.h"
#include "train/parse_value.h"

namespace headroom::fuzz {
namespace {

std::vector<uint8_t> gzipped(Input input) {
  constexpr int kGzipFormat = 15 + 16;
  z_stream stream = {};
  if (deflateInit2(&stream, 1, Z_DEFLATED, kGzipFormat, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw Broken("deflateInit2 failed");
  }
  std::vector<uint8_t> out(deflateBound(&stream, static_cast<uLong>(input.size())));
  stream.next_in = const_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int status = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (status != Z_STREAM_END) throw Broken("deflate failed");
  return out;
}

std::optional<IdxArray> read_array(Input input, int dimensions) {
  const InputFile file(input);
  IdxArray array;
  if (!is_accepted([&] { array = read_idx(file.path(), dimensions); })) return std::nullopt;
  int64_t count = 1;
  for (const int64_t dim : array.dims) count *= dim;
  require(static_cast<int>(array.dims.size()) == dimensions, "idx: another rank than asked for");
  require(static_cast<int64_t>(array.bytes.size()) == count, "idx: not as many bytes as elements");
  return array;
}

bool is_same(const NamedTensor& a, const NamedTensor& b) {
  const Tensor &x = a.tensor, &y = b.tensor;
  return a.name == b.name && x.dtype() == y.dtype() && x.shape() == y.shape() &&
         (x.nbytes() == 0 ||
          std::memcmp(x.view().data, y.view().data, static_cast<size_t>(x.nbytes())) == 0);
}

std::vector<std::string> lines_of(Input input) {
  std::vector<std::string> lines(1);
  for (const uint8_t byte : input) {
    if (byte == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += static_cast<char>(byte);
    }
  }
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

}  // namespace

bool idx(Input input) {
  bool is_read = false;
  for (const int dimensions : {1, 3}) {
    const std::optional<IdxArray> plain = read_array(input, dimensions);
    const bool is_gzip = input.size() >= 2 && input[0] == 0x1F && input[1] == 0x8B;
    is_read = is_read || plain.has_value();
    if (is_gzip) continue;
    const std::optional<IdxArray> packed = read_array(gzipped(input), dimensions);
    require(plain.has_value() == packed.has_value(), "idx: gzip decides whether a file is read");
    require(!plain || (plain->dims == packed->dims && plain->bytes == packed->bytes),
            "idx: gzip changes what is read");
  }
  return is_read;
}

bool cifar(Input input) {
  constexpr int64_t kRecordBytes = 3073, kImageBytes = 3072;
  const InputFile file(input);
  const std::vector<std::string> names(10, "name");
  std::unique_ptr<Dataset> set;
  if (!is_accepted([&] { set = open_cifar({file.path()}, names, "fuzz"); })) return false;
  require(set->size() * kRecordBytes == static_cast<int64_t>(input.size()), "cifar: size");
  std::vector<uint8_t> pixels(kImageBytes);
  for (int64_t i = 0; i < set->size(); ++i) {
    const uint8_t* record = input.data() + i * kRecordBytes;
    require(set->label(i) == record[0] && record[0] < 10, "cifar: label");
    set->read(i, pixels.data());
    require(pixels.front() == record[1] && pixels.back() == record[kRecordBytes - 1],
            "cifar: pixels");
  }
  return true;
}

bool image(Input input) {
  const InputFile file(input);
  ImageShape header;
  const bool has_header = is_accepted([&] { header = read_image_header(file.path()); });
  std::vector<uint8_t> pixels;
  ImageShape shape;
  const bool is_read = is_accepted([&] { shape = decode_image(file.path(), 3, pixels); });
  require(has_header || !is_read, "image: decoded in spite of its header");
  if (!is_read) return false;
  require(shape.height == header.height && shape.width == header.width, "image: another size");
  require(static_cast<int64_t>(pixels.size()) == shape.bytes(), "image: pixels and shape differ");
  std::vector<uint8_t> gray;
  const bool is_gray = is_accepted([&] { shape = decode_image(file.path(), 1, gray); });
  require(is_gray == (header.channels == 1), "image: gray or not, header and decoder differ");
  require(!is_gray || gray.size() * 3 == pixels.size(), "image: gray pixels");
  return true;
}

bool safetensors(Input input) {
  const std::string bytes(input.begin(), input.end());
  SafetensorsFile first;
  if (!is_accepted([&] { first = parse_safetensors(bytes, "fuzz"); })) return false;
  int64_t data_bytes = 0;
  for (const NamedTensor& entry : first.tensors) data_bytes += entry.tensor.nbytes();
  require(data_bytes < static_cast<int64_t>(bytes.size()), "safetensors: more data than file");
  const SafetensorsFile second =
      parse_safetensors(to_safetensors(first.tensors, first.metadata), "written");
  require(first.metadata == second.metadata, "safetensors: metadata changes");
  require(first.tensors.size() == second.tensors.size(), "safetensors: entries are lost");
  for (size_t i = 0; i < first.tensors.size(); ++i) {
    require(is_same(first.tensors[i], second.tensors[i]), "safetensors: an entry changes");
  }
  return true;
}

bool command_line(Input input) {
  const std::vector<std::string> arguments = lines_of(input);
  CommandLine parsed;
  const bool is_read = is_accepted([&] { parsed = parse_command_line(arguments); });
  if (is_read) {
    validate(parsed.config);
    const auto json = config_to_json(parsed.config);
    require(json.is_object() && !json.empty(), "command line: a configuration without fields");
    json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  for (const std::string& text : arguments) {
    is_accepted([&] { parse_integer("--n", text); });
    is_accepted([&] { parse_unsigned("--n", text); });
    is_accepted([&] { parse_real("--x", text); });
    is_accepted([&] { parse_device(text); });
    int64_t size = 0;
    is_accepted([&] { size = parse_bytes("--size", text); });
    require(size >= 0 && size <= int64_t{1} << 62, "command line: an impossible size");
    RandomDataSpec spec;
    if (is_accepted([&] { spec = parse_random_spec(text); })) {
      require(spec.count > 0 && spec.classes > 0 && spec.shape.bytes() > 0, "command line: data");
    }
  }
  return is_read;
}

}  // namespace headroom::fuzz
