// The elementwise rules, each once, for host and device: value and gradient of every unary op, the
// binary ops, the order that maxima obey, how random words become draws, and how numbers become
// integers. T is the type arithmetic is done in, float or double; loading and storing half types is
// the kernel's affair.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/ops/params.h"

namespace headroom {

template <UnaryOp op>
using UnaryConstant = std::integral_constant<UnaryOp, op>;
template <BinaryOp op>
using BinaryConstant = std::integral_constant<BinaryOp, op>;

// Calls fn(UnaryConstant<op>{}), so that a kernel is compiled for each op.
template <class Fn>
decltype(auto) dispatch_unary(UnaryOp op, Fn&& fn) {
  switch (op) {
    case UnaryOp::neg:
      return fn(UnaryConstant<UnaryOp::neg>{});
    case UnaryOp::exp:
      return fn(UnaryConstant<UnaryOp::exp>{});
    case UnaryOp::log:
      return fn(UnaryConstant<UnaryOp::log>{});
    case UnaryOp::sqrt:
      return fn(UnaryConstant<UnaryOp::sqrt>{});
    case UnaryOp::abs:
      return fn(UnaryConstant<UnaryOp::abs>{});
    case UnaryOp::relu:
      return fn(UnaryConstant<UnaryOp::relu>{});
    case UnaryOp::leaky_relu:
      return fn(UnaryConstant<UnaryOp::leaky_relu>{});
    case UnaryOp::sigmoid:
      return fn(UnaryConstant<UnaryOp::sigmoid>{});
    case UnaryOp::tanh:
      return fn(UnaryConstant<UnaryOp::tanh>{});
    case UnaryOp::silu:
      return fn(UnaryConstant<UnaryOp::silu>{});
    case UnaryOp::add_scalar:
      return fn(UnaryConstant<UnaryOp::add_scalar>{});
    case UnaryOp::mul_scalar:
      return fn(UnaryConstant<UnaryOp::mul_scalar>{});
    case UnaryOp::pow_scalar:
      return fn(UnaryConstant<UnaryOp::pow_scalar>{});
  }
  throw Error("unary: unknown op");
}

template <class Fn>
decltype(auto) dispatch_binary(BinaryOp op, Fn&& fn) {
  switch (op) {
    case BinaryOp::add:
      return fn(BinaryConstant<BinaryOp::add>{});
    case BinaryOp::sub:
      return fn(BinaryConstant<BinaryOp::sub>{});
    case BinaryOp::mul:
      return fn(BinaryConstant<BinaryOp::mul>{});
    case BinaryOp::div:
      return fn(BinaryConstant<BinaryOp::div>{});
    case BinaryOp::maximum:
      return fn(BinaryConstant<BinaryOp::maximum>{});
    case BinaryOp::minimum:
      return fn(BinaryConstant<BinaryOp::minimum>{});
  }
  throw Error("binary: unknown op");
}

// ---- unary ----

template <class T>
HEADROOM_HOST_DEVICE inline T sigmoid_value(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

// f(x; alpha). NaN in, NaN out, for every op (relu included).
template <UnaryOp op, class T>
HEADROOM_HOST_DEVICE inline T unary_value(T x, [[maybe_unused]] T alpha) {
  if constexpr (op == UnaryOp::neg) return -x;
  if constexpr (op == UnaryOp::exp) return std::exp(x);
  if constexpr (op == UnaryOp::log) return std::log(x);
  if constexpr (op == UnaryOp::sqrt) return std::sqrt(x);
  if constexpr (op == UnaryOp::abs) return std::abs(x);
  if constexpr (op == UnaryOp::relu) return x <= T(0) ? T(0) : x;
  if constexpr (op == UnaryOp::leaky_relu) return x > T(0) ? x : x * alpha;
  if constexpr (op == UnaryOp::sigmoid) return sigmoid_value(x);
  if constexpr (op == UnaryOp::tanh) return std::tanh(x);
  if constexpr (op == UnaryOp::silu) return x / (T(1) + std::exp(-x));
  if constexpr (op == UnaryOp::add_scalar) return x + alpha;
  if constexpr (op == UnaryOp::mul_scalar) return x * alpha;
  if constexpr (op == UnaryOp::pow_scalar) return alpha == T(2) ? x * x : std::pow(x, alpha);
}

// dx = dy * f'. `saved` is x or y, as unary_saves(op) says, and anything where it says nothing.
// The derivative at the kink of abs, relu and leaky_relu is 0, 0 and alpha. Where relu's is 0, dx
// is 0 even if dy is infinite.
template <UnaryOp op, class T>
HEADROOM_HOST_DEVICE inline T unary_gradient([[maybe_unused]] T saved, [[maybe_unused]] T alpha,
                                             T dy) {
  if constexpr (op == UnaryOp::neg) return -dy;
  if constexpr (op == UnaryOp::exp) return dy * saved;
  if constexpr (op == UnaryOp::log) return dy / saved;
  if constexpr (op == UnaryOp::sqrt) return dy / (T(2) * saved);
  if constexpr (op == UnaryOp::abs) {
    return saved > T(0) ? dy : saved < T(0) ? -dy : saved == T(0) ? T(0) : saved;
  }
  if constexpr (op == UnaryOp::relu) return saved <= T(0) ? T(0) : dy;
  if constexpr (op == UnaryOp::leaky_relu) return saved > T(0) ? dy : dy * alpha;
  if constexpr (op == UnaryOp::sigmoid) return dy * (T(1) - saved) * saved;
  if constexpr (op == UnaryOp::tanh) return dy * (T(1) - saved * saved);
  if constexpr (op == UnaryOp::silu) {
    const T s = sigmoid_value(saved);
    return dy * s * (T(1) + saved * (T(1) - s));
  }
  if constexpr (op == UnaryOp::add_scalar) return dy;
  if constexpr (op == UnaryOp::mul_scalar) return dy * alpha;
  if constexpr (op == UnaryOp::pow_scalar) {
    if (alpha == T(0)) return T(0);
    if (alpha == T(2)) return dy * T(2) * saved;
    return dy * alpha * std::pow(saved, alpha - T(1));
  }
}

// ---- binary, and the order of maxima ----

// maximum and minimum give NaN when either side is NaN.
template <BinaryOp op, class T>
HEADROOM_HOST_DEVICE inline T binary_value(T a, T b) {
  if constexpr (op == BinaryOp::add) return a + b;
  if constexpr (op == BinaryOp::sub) return a - b;
  if constexpr (op == BinaryOp::mul) return a * b;
  if constexpr (op == BinaryOp::div) return a / b;
  if constexpr (op == BinaryOp::maximum) return (a > b || a != a) ? a : b;
  if constexpr (op == BinaryOp::minimum) return (a < b || a != a) ? a : b;
}

// Whether a later candidate replaces the best so far: the first of equals stays, and NaN counts as
// the largest number (the first NaN stays).
template <class T>
HEADROOM_HOST_DEVICE inline bool beats(T candidate, T best) {
  return candidate > best || (candidate != candidate && best == best);
}

// ---- random draws ----

// Uniform in [low, high) from one Philox word. f64 throughout, so that every device gives the same
// number. The caller rounds it to its storage type and takes `low` if that reached `high`.
HEADROOM_HOST_DEVICE inline double uniform_draw(uint32_t bits, double low, double high) {
  return low + (high - low) * static_cast<double>(uniform_from_bits(bits));
}

// Box & Muller 1958. `even` and `odd` are the words 2*(i/2) and 2*(i/2)+1; the element takes the
// cosine when i is even and the sine when it is odd. f64, so that devices agree after rounding.
struct NormalPair {
  double cosine;
  double sine;
};
HEADROOM_HOST_DEVICE inline NormalPair normal_draw(uint32_t even, uint32_t odd) {
  constexpr double kTwoPi = 6.283185307179586476925;
  // 1 - u lies in (0, 1], so the logarithm is finite.
  const double u = 1.0 - static_cast<double>(uniform_from_bits(even));
  const double radius = std::sqrt(-2.0 * std::log(u));
  const double angle = kTwoPi * static_cast<double>(uniform_from_bits(odd));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// uniform >= p as an exact comparison of integers: keep when the word's upper 24 bits reach the
// threshold. p = 0 keeps all, p = 1 none.
inline uint32_t dropout_threshold(double p) {
  return static_cast<uint32_t>(std::ceil(p * 16777216.0));
}
HEADROOM_HOST_DEVICE inline bool dropout_keeps(uint32_t bits, uint32_t threshold) {
  return (bits >> 8) >= threshold;
}
// 1 / (1 - p), and 0 where nothing is kept.
inline double dropout_scale(double p) { return p < 1 ? 1.0 / (1.0 - p) : 0.0; }

// ---- conversion to integers ----

// Truncates; values out of range saturate and NaN gives 0, where a plain cast would be undefined.
template <class Int, class T>
HEADROOM_HOST_DEVICE inline Int to_integer(T value) {
  if (value != value) return Int(0);
  if (value <= static_cast<T>(std::numeric_limits<Int>::min())) {
    return std::numeric_limits<Int>::min();
  }
  if (value >= static_cast<T>(std::numeric_limits<Int>::max())) {
    return std::numeric_limits<Int>::max();
  }
  return static_cast<Int>(value);
}

}  // namespace headroom
