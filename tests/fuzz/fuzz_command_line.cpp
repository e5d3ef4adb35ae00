// Fuzzes the command line of `train` and the readers of numbers, sizes and data names.
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headroom::fuzz::command_line({data, size});
  return 0;
}
