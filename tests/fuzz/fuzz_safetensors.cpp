// Fuzzes the reader of safetensors files.
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/targets.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  return headroom::fuzz::mutate_safetensors(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headroom::fuzz::safetensors({data, size});
  return 0;
}
