// Fuzzes the reader of IDX files, plain and gzipped.
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headroom::fuzz::idx({data, size});
  return 0;
}
