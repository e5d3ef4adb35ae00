// The safetensors format: eight bytes of header length (little-endian), a JSON header that gives
// each tensor's dtype, shape and byte range, then the bytes.
// https://github.com/huggingface/safetensors
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nn/module.h"

namespace headroom {

struct SafetensorsFile {
  std::vector<NamedTensor> tensors;  // on the CPU, contiguous; in the order of their bytes
  std::map<std::string, std::string> metadata;  // the header's "__metadata__"
};

// The file's bytes, tensors in the given order, each aligned to 8 bytes. Tensors of any device and
// layout are written in logical order. Throws InvalidArgument for a name that appears twice.
std::string to_safetensors(const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata = {});

// Parses a file's bytes; `name` is for messages. Throws InvalidArgument for anything that is not a
// whole, consistent safetensors file: a header longer than the file, ranges that overlap, leave
// gaps, lie outside or do not fit dtype and shape. Nothing is allocated before its size was checked
// against the bytes that are there. Of a name that appears twice the last entry counts.
SafetensorsFile parse_safetensors(const std::string& bytes, const std::string& name);

// Reads a file; throws InvalidArgument naming it when it cannot be read or parsed.
SafetensorsFile read_safetensors(const std::string& path);

}  // namespace headroom
