// Which elements a pooling window covers along one axis, and which windows cover an element, for
// host and device. The output's extent decides floor or ceil mode; nothing here depends on it.
#pragma once

#include <cstdint>

#include "core/base/philox.h"

namespace headroom {

// One axis of a pooling op. All quantities are elements.
struct PoolAxis {
  int64_t input = 0;   // extent of x
  int64_t output = 0;  // extent of y
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t dilation = 1;
};

// The half-open range [begin, end).
struct PoolRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Position of the first tap of window `out`; negative inside the padding.
HEADROOM_HOST_DEVICE inline int64_t window_start(const PoolAxis& axis, int64_t out) {
  return out * axis.stride - axis.padding;
}

// The taps r of window `out` that fall on real elements, window_start + r * dilation in [0, input).
HEADROOM_HOST_DEVICE inline PoolRange window_taps(const PoolAxis& axis, int64_t out) {
  const int64_t start = window_start(axis, out);
  PoolRange taps;
  taps.begin = start >= 0 ? 0 : (-start + axis.dilation - 1) / axis.dilation;
  const int64_t room = axis.input - start;  // taps beyond it overhang
  taps.end = room <= 0 ? 0 : (room + axis.dilation - 1) / axis.dilation;
  if (taps.end > axis.kernel) taps.end = axis.kernel;
  if (taps.begin > taps.end) taps.begin = taps.end;
  return taps;
}

// How many positions of window `out` lie on the padded input: the divisor of an average that counts
// padding. What a ceil-mode window overhangs beyond the padding is never counted.
HEADROOM_HOST_DEVICE inline int64_t padded_extent(const PoolAxis& axis, int64_t out) {
  const int64_t start = window_start(axis, out);
  const int64_t end = start + axis.kernel;
  const int64_t limit = axis.input + axis.padding;
  return (end < limit ? end : limit) - start;
}

// The windows that may cover element `in`; with dilation some of them have no tap there, see
// tap_at.
HEADROOM_HOST_DEVICE inline PoolRange windows_over(const PoolAxis& axis, int64_t in) {
  const int64_t position = in + axis.padding;
  const int64_t reach = (axis.kernel - 1) * axis.dilation;
  PoolRange windows;
  windows.begin = position <= reach ? 0 : (position - reach + axis.stride - 1) / axis.stride;
  windows.end = position / axis.stride + 1;
  if (windows.end > axis.output) windows.end = axis.output;
  if (windows.begin > windows.end) windows.begin = windows.end;
  return windows;
}

// The tap r with which window `out` of windows_over(in) covers element `in`, or -1.
HEADROOM_HOST_DEVICE inline int64_t tap_at(const PoolAxis& axis, int64_t in, int64_t out) {
  const int64_t distance = in - window_start(axis, out);
  return distance % axis.dilation == 0 ? distance / axis.dilation : -1;
}

}  // namespace headroom
