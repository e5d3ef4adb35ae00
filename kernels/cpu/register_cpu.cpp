// Checks that this processor can run the CPU kernels, then registers them.
#include <string>

#include "core/base/error.h"
#include "kernels/cpu/families.h"
#include "kernels/register.h"

namespace headroom {
namespace {

#if defined(__x86_64__)
// This file is compiled for the same processor as the kernels, but the check itself must run on
// any, so it goes back to the baseline.
#define HEADROOM_BASELINE __attribute__((target("arch=x86-64"), noinline))

// The first instruction set that the kernels were compiled for and this processor lacks, or
// nullptr.
HEADROOM_BASELINE const char* missing_instructions() {
  __builtin_cpu_init();
#ifdef __AVX512F__
  if (!__builtin_cpu_supports("avx512f")) return "avx512f";
#endif
#ifdef __AVX512BW__
  if (!__builtin_cpu_supports("avx512bw")) return "avx512bw";
#endif
#ifdef __AVX512DQ__
  if (!__builtin_cpu_supports("avx512dq")) return "avx512dq";
#endif
#ifdef __AVX512VL__
  if (!__builtin_cpu_supports("avx512vl")) return "avx512vl";
#endif
#ifdef __AVX2__
  if (!__builtin_cpu_supports("avx2")) return "avx2";
#endif
#ifdef __AVX__
  if (!__builtin_cpu_supports("avx")) return "avx";
#endif
#ifdef __FMA__
  if (!__builtin_cpu_supports("fma")) return "fma";
#endif
// Clang 14 cannot ask for it. Processors with AVX2 have it.
#if defined(__F16C__) && !defined(__clang__)
  if (!__builtin_cpu_supports("f16c")) return "f16c";
#endif
#ifdef __BMI2__
  if (!__builtin_cpu_supports("bmi2")) return "bmi2";
#endif
#ifdef __SSE4_2__
  if (!__builtin_cpu_supports("sse4.2")) return "sse4.2";
#endif
  return nullptr;
}

HEADROOM_BASELINE void check_processor() {
  const char* missing = missing_instructions();
  if (missing == nullptr) return;
  throw Error(std::string("cpu kernels: were compiled for " HEADROOM_CPU_ARCH
                          ", but this processor has no ") +
              missing + "; configure with -DHEADROOM_CPU_ARCH=x86-64");
}
#else
#define HEADROOM_BASELINE
void check_processor() {}
#endif

}  // namespace

HEADROOM_BASELINE void register_cpu_kernels() {
  check_processor();
  register_cpu_copy_kernels();
  register_cpu_elementwise_kernels();
  register_cpu_relu_mask_kernels();
  register_cpu_random_kernels();
  register_cpu_reduce_kernels();
  register_cpu_pool_kernels();
  register_cpu_loss_kernels();
  register_cpu_input_kernels();
  register_cpu_optimizer_kernels();
  register_cpu_conv_kernels();
  register_cpu_matmul_kernels();
  register_cpu_batch_norm_kernels();
}

}  // namespace headroom
