// Fuzzes the reader of CIFAR-10's binary files.
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headroom::fuzz::cifar({data, size});
  return 0;
}
