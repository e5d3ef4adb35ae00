// ReLU masks of one bit per element.
#include "core/base/parallel.h"
#include "core/ops/contract.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/half_convert.h"
#include "kernels/scalar_ops.h"

namespace headroom {
namespace {

constexpr int64_t kBits = 8;
constexpr int64_t kGrain = int64_t{1} << 14;  // elements; a multiple of kBits

template <class T>
bool passes(T y) {
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  return unary_gradient<UnaryOp::relu>(static_cast<C>(y), C(0), C(1)) != C(0);
}

void relu_mask(const View& y, const View& mask) {
  const int64_t numel = y.numel();
  uint8_t* bits = mask.as<uint8_t>();
  dispatch_floating(y.dtype, "relu_mask", [&](auto tag) {
    using T = decltype(tag);
    const T* values = y.as<T>();
    parallel_ranges(mask.numel(), kGrain / kBits, [&](int64_t begin, int64_t end) {
      for (int64_t byte = begin; byte < end; ++byte) {
        const int64_t first = byte * kBits, count = std::min(kBits, numel - first);
        uint8_t packed = 0;
        for (int64_t i = 0; i < count; ++i) {
          packed = static_cast<uint8_t>(packed | uint8_t{passes(values[first + i])} << i);
        }
        bits[byte] = packed;
      }
    });
  });
}

void relu_mask_backward(const View& mask, const View& dy, const View& dx) {
  const int64_t numel = dy.numel();
  const uint8_t* bits = mask.as<uint8_t>();
  dispatch_floating(dy.dtype, "relu_mask_backward", [&](auto tag) {
    using T = decltype(tag);
    const T* from = dy.as<T>();
    T* to = dx.as<T>();
    parallel_ranges(numel, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = bits[i / kBits] >> (i % kBits) & 1 ? from[i] : T{};
      }
    });
  });
}

}  // namespace

void register_cpu_relu_mask_kernels() {
  slots::relu_mask.set(DeviceType::cpu, &relu_mask);
  slots::relu_mask_backward.set(DeviceType::cpu, &relu_mask_backward);
}

}  // namespace headroom
