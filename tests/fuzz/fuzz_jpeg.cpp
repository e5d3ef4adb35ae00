// Fuzzes the JPEG decoder.
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headroom::fuzz::image({data, size});
  return 0;
}
