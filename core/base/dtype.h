// Element types and their host representations. Half types are storage only on the host: arithmetic
// happens in f32 after conversion.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/error.h"

namespace headroom {

enum class DType : uint8_t { f16, bf16, f32, f64, i64, u8 };

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
  }
  return "?";
}

constexpr bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
constexpr bool is_floating(DType dtype) {
  return is_half(dtype) || dtype == DType::f32 || dtype == DType::f64;
}

inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }

// IEEE binary16 stored as bits. Conversion rounds to nearest even, keeps NaN, overflows to
// infinity.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  explicit Half(float value);
  explicit operator float() const;
};

// The upper half of an f32. Conversion rounds to nearest even and keeps NaN.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t f = std::bit_cast<uint32_t>(value);
    if ((f & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((f >> 16) | 0x40u);
    } else {
      bits = static_cast<uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

inline Half::Half(float value) {
  const uint32_t f = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (f >> 16) & 0x8000u;
  const uint32_t mag = f & 0x7fffffffu;
  uint32_t out;
  if (mag > 0x7f800000u) {
    out = 0x7e00u;
  } else if (mag >= 0x477ff000u) {  // 65520 and above round to infinity
    out = 0x7c00u;
  } else if (mag >= 0x38800000u) {  // normal halves
    out = (mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13;
  } else if (mag >= 0x33000000u) {  // subnormal halves
    const uint32_t shift = 126u - (mag >> 23);
    const uint32_t mantissa = (mag & 0x7fffffu) | 0x800000u;
    const uint32_t kept = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1u);
    const uint32_t half = 1u << (shift - 1u);
    out = kept + ((rest > half || (rest == half && (kept & 1u))) ? 1u : 0u);
  } else {
    out = 0;
  }
  bits = static_cast<uint16_t>(sign | out);
}

inline Half::operator float() const {
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1fu) {
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  }
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  }
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<Half>() {
  return DType::f16;
}
template <>
constexpr DType dtype_of<BFloat16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}

// Calls fn with a value-initialised element of the dtype's host type: dispatch_floating(x.dtype,
// "softmax", [&](auto tag) { using T = decltype(tag); ... }). Throws InvalidArgument naming the op.
template <class Fn>
decltype(auto) dispatch_floating(DType dtype, std::string_view op, Fn&& fn) {
  switch (dtype) {
    case DType::f16:
      return fn(Half{});
    case DType::bf16:
      return fn(BFloat16{});
    case DType::f32:
      return fn(float{});
    case DType::f64:
      return fn(double{});
    default:
      throw InvalidArgument(
          detail::concat(op, ": needs a floating dtype but got ", name_of(dtype)));
  }
}

template <class Fn>
decltype(auto) dispatch_all(DType dtype, std::string_view op, Fn&& fn) {
  switch (dtype) {
    case DType::i64:
      return fn(int64_t{});
    case DType::u8:
      return fn(uint8_t{});
    default:
      return dispatch_floating(dtype, op, static_cast<Fn&&>(fn));
  }
}

// The type arithmetic is done in: f32 for half types, the type itself otherwise.
template <class T>
struct ComputeType {
  using type = T;
};
template <>
struct ComputeType<Half> {
  using type = float;
};
template <>
struct ComputeType<BFloat16> {
  using type = float;
};
template <class T>
using compute_t = typename ComputeType<T>::type;

}  // namespace headroom
