// What the fuzzers feed and the corpus test replays: one function for each reader of files or text
// that come from outside.
//
// Each hands its input to the reader, then checks what came out of it. True: it was read; false: it
// was refused by InvalidArgument or DataError. Whatever else is thrown, Broken for a result that is
// wrong included, passes through, and is a finding like a crash.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>

namespace headroom::fuzz {

using Input = std::span<const uint8_t>;

// What was read contradicts the input or itself.
class Broken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

bool idx(Input input);           // as it is, and gzipped
bool cifar(Input input);         // a file of records
bool image(Input input);         // a JPEG or PNG file: header and pixels
bool safetensors(Input input);   // also written and read again
bool checkpoint(Input input);    // a state file, and the restoring of all that it holds
bool command_line(Input input);  // an argument per line; each also as a number, a size, a data set

}  // namespace headroom::fuzz
