// Shapes and strides: up to six axes, no heap.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace headroom {

constexpr int kMaxRank = 6;

// A short list of axis values (extents or strides, in elements). Making one of more than kMaxRank
// throws InvalidArgument; operator[] checks nothing.
class Axes {
 public:
  Axes() = default;
  Axes(std::initializer_list<int64_t> values) : Axes(values.begin(), values.end()) {}
  explicit Axes(const std::vector<int64_t>& values) : Axes(values.begin(), values.end()) {}
  static Axes filled(int rank, int64_t value) {
    Axes out;
    CHECK_ARG(rank >= 0 && rank <= kMaxRank, "shape: takes at most ", kMaxRank, " axes but got ",
              rank);
    out.rank_ = rank;
    for (int i = 0; i < rank; ++i) out.value_[i] = value;
    return out;
  }

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return value_[axis]; }
  int64_t& operator[](int axis) { return value_[axis]; }
  const int64_t* begin() const { return value_.data(); }
  const int64_t* end() const { return value_.data() + rank_; }
  bool operator==(const Axes& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if (value_[i] != other.value_[i]) return false;
    }
    return true;
  }
  void push_back(int64_t value) {
    CHECK_ARG(rank_ < kMaxRank, "shape: takes at most ", kMaxRank, " axes");
    value_[rank_++] = value;
  }

 private:
  template <class It>
  Axes(It first, It last) {
    CHECK_ARG(last - first <= kMaxRank, "shape: takes at most ", kMaxRank, " axes but got ",
              last - first);
    for (; first != last; ++first) value_[rank_++] = *first;
  }

  std::array<int64_t, kMaxRank> value_{};
  int rank_ = 0;
};

using Shape = Axes;
using Strides = Axes;

// The product of the extents; 1 for a scalar (rank 0). Throws InvalidArgument on a negative extent
// or when the product exceeds 2^60.
int64_t numel_of(const Shape& shape);

// "[8,3,32,32]"
std::string to_string(const Axes& axes);
inline std::ostream& operator<<(std::ostream& out, const Axes& axes) {
  return out << to_string(axes);
}

// The axis counted from the end when negative; throws InvalidArgument naming the op if out of
// range.
int normalize_axis(int axis, int rank, const char* op);

// NumPy's broadcasting rule; throws InvalidArgument naming the op and both shapes.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);

// How a dense rank-4 tensor lies in memory. Shapes are always in n, c, h, w order; the format says
// which axis varies fastest: contiguous = w (NCHW), channels_last = c (NHWC). Tensors of any other
// rank are contiguous. The format is carried explicitly because with c = 1 or h = w = 1 strides
// cannot tell.
enum class MemoryFormat : uint8_t { contiguous, channels_last };
constexpr const char* name_of(MemoryFormat format) {
  return format == MemoryFormat::contiguous ? "nchw" : "nhwc";
}

// Strides of a dense tensor. channels_last with a rank other than 4 means contiguous.
Strides dense_strides(const Shape& shape, MemoryFormat format);

}  // namespace headroom
