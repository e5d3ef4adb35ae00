// What a block of memory is for. Every block carries one tag, and the bytes per tag always sum to
// the bytes allocated.
#pragma once

#include <array>
#include <cstdint>

namespace headroom {

enum class Tag : uint8_t {
  parameter,
  gradient,
  optimizer_state,
  buffer,            // running statistics and other state that is not trained
  saved_activation,  // held by a saved tensor for backward
  cast_copy,         // half copies of parameters
  workspace,         // scratch of one kernel call
  input,             // batches and labels
  temporary,         // an op's output that nothing saves
  other,
};
constexpr int kTagCount = 10;

constexpr const char* name_of(Tag tag) {
  constexpr std::array<const char*, kTagCount> kNames = {
      "parameter", "gradient",  "optimizer_state", "buffer",    "saved_activation",
      "cast_copy", "workspace", "input",           "temporary", "other"};
  return kNames[static_cast<int>(tag)];
}

}  // namespace headroom
