// The arithmetic of batch normalisation on runs of neighbouring elements. Forward, recomputed
// forward and the sign that backward recomputes go through one function, so they agree bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/base/dtype.h"
#include "kernels/cpu/half_convert.h"

namespace headroom::cpu {

// Elements converted and computed at a time; their values stay in registers and the first cache.
constexpr int64_t kBatchNormTile = 64;

// Coefficients of the elements of a run: element i has coefficient i * step, step 1 where channels
// are neighbours and 0 where a whole run belongs to one channel.
template <class Sum>
struct Coefficients {
  const Sum* mean = nullptr;
  const Sum* rstd = nullptr;
  const Sum* scale = nullptr;  // gamma * rstd
  const Sum* beta = nullptr;
  int64_t step = 1;

  Coefficients at(int64_t i) const {
    return {mean + i * step, rstd + i * step, scale + i * step, beta + i * step, step};
  }
};

// Calls fn(constant) with whether all elements of a run have the first's coefficients, so that each
// case is a loop of its own that vectorises.
template <class Sum, class Fn>
inline void with_step(const Coefficients<Sum>& c, Fn&& fn) {
  if (c.step == 0) {
    fn(std::true_type{});
  } else {
    fn(std::false_type{});
  }
}

// out = (x - mean) * scale + beta, rounded as written whatever the compiler contracts.
template <class Sum>
inline void normalize_tile(const Sum* x, const Coefficients<Sum>& c, Sum* out, int64_t count) {
  with_step(c, [&](auto same) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = same ? 0 : i;
      out[i] = std::fma(x[i] - c.mean[k], c.scale[k], c.beta[k]);
    }
  });
}

// dy becomes dx = scale * (dy - mean_dy - xhat * mean_dy_xhat).
template <class Sum>
inline void gradient_tile(const Sum* x, const Coefficients<Sum>& c, const Sum* mean_dy,
                          const Sum* mean_dy_xhat, Sum* dy, int64_t count) {
  with_step(c, [&](auto same) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = same ? 0 : i;
      const Sum xhat = (x[i] - c.mean[k]) * c.rstd[k];
      dy[i] = c.scale[k] * (dy[i] - mean_dy[k] - xhat * mean_dy_xhat[k]);
    }
  });
}

// sums += dy, products += dy * xhat, element by element.
template <class Sum>
inline void gradient_sums_tile(const Sum* x, const Sum* dy, const Coefficients<Sum>& c, Sum* sums,
                               Sum* products, int64_t count) {
  with_step(c, [&](auto same) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = same ? 0 : i;
      sums[i] += dy[i];
      products[i] += dy[i] * ((x[i] - c.mean[k]) * c.rstd[k]);
    }
  });
}

// NaN stays NaN, as in the relu of the elementwise kernels.
template <class Sum>
inline void relu_tile(Sum* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = values[i] < 0 ? Sum(0) : values[i];
}

// A value in computing precision is stored as a positive number of T only above this: at or below
// half the smallest subnormal it rounds to 0, and the stored output has no gradient there.
template <class T>
constexpr compute_t<T> rounds_to_zero() {
  if constexpr (std::is_same_v<T, Half>) {
    return 0x1p-25f;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return 0x1p-134f;
  } else {
    return 0;
  }
}

// dy = 0 where the output is not positive; a NaN output is not.
template <class Sum>
inline void mask_tile(const Sum* output, Sum threshold, Sum* dy, int64_t count) {
  for (int64_t i = 0; i < count; ++i) dy[i] = output[i] > threshold ? dy[i] : Sum(0);
}

}  // namespace headroom::cpu
