// Conversion of runs of half-precision numbers to f32 and back, with the F16C instructions where
// the CPU kernels are compiled for them. Only for files of kernels/cpu: they share one -march.
#pragma once

#include <cstdint>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "core/base/dtype.h"

namespace headroom::cpu {

// dst[i] = src[i] for i in [0, count). Source and destination do not overlap.
inline void convert_run(const Half* src, float* dst, int64_t count) {
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i));
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(bits));
  }
#endif
  for (; i < count; ++i) dst[i] = static_cast<float>(src[i]);
}

// Rounds to nearest even, overflows to infinity.
inline void convert_run(const float* src, Half* dst, int64_t count) {
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i), bits);
  }
#endif
  for (; i < count; ++i) dst[i] = Half(src[i]);
}

// Shifts and integer rounding alone: the compiler vectorises both directions.
inline void convert_run(const BFloat16* src, float* dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dst[i] = static_cast<float>(src[i]);
}
inline void convert_run(const float* src, BFloat16* dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dst[i] = BFloat16(src[i]);
}

// The same type, so that code over T needs no case of its own.
inline void convert_run(const float* src, float* dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dst[i] = src[i];
}
inline void convert_run(const double* src, double* dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dst[i] = src[i];
}

}  // namespace headroom::cpu
