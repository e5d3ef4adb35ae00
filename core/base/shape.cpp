// Shape arithmetic.
#include "core/base/shape.h"

namespace headroom {

int64_t numel_of(const Shape& shape) {
  constexpr int64_t kLimit = int64_t{1} << 60;
  int64_t count = 1;
  bool empty = false;
  for (const int64_t extent : shape) {
    CHECK_ARG(extent >= 0, "shape: extents must not be negative, got ", to_string(shape));
    if (extent == 0) {
      empty = true;
      continue;
    }
    CHECK_ARG(count <= kLimit / extent, "shape: more than 2^60 elements in ", to_string(shape));
    count *= extent;
  }
  return empty ? 0 : count;
}

std::string to_string(const Axes& axes) {
  std::string out = "[";
  for (int i = 0; i < axes.rank(); ++i) {
    if (i) out += ",";
    out += std::to_string(axes[i]);
  }
  return out + "]";
}

int normalize_axis(int axis, int rank, const char* op) {
  const int out = axis < 0 ? axis + rank : axis;
  CHECK_ARG(out >= 0 && out < rank, op, ": axis ", axis, " is out of range for rank ", rank);
  return out;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op) {
  const int rank = a.rank() > b.rank() ? a.rank() : b.rank();
  Shape out = Axes::filled(rank, 1);
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const int64_t ea = ia < 0 ? 1 : a[ia], eb = ib < 0 ? 1 : b[ib];
    CHECK_ARG(ea == eb || ea == 1 || eb == 1, op, ": shapes ", to_string(a), " and ", to_string(b),
              " do not broadcast");
    out[i] = ea == 1 ? eb : ea;
  }
  return out;
}

Strides dense_strides(const Shape& shape, MemoryFormat format) {
  Strides out = Axes::filled(shape.rank(), 1);
  int64_t step = 1;
  if (format == MemoryFormat::channels_last && shape.rank() == 4) {
    for (const int axis : {1, 3, 2, 0}) {
      out[axis] = step;
      step *= shape[axis] > 1 ? shape[axis] : 1;
    }
    return out;
  }
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    out[axis] = step;
    step *= shape[axis] > 1 ? shape[axis] : 1;
  }
  return out;
}

}  // namespace headroom
