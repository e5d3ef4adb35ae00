// Turns the number of a piece of work into the image, row, column and group of channels that it
// stands for. Plain C++, so that tests check it without a GPU.
#pragma once

#include <cstdint>

#include "core/base/philox.h"
#include "kernels/cuda/strided_loop.h"

namespace headroom::cuda {

struct Pixel {
  int64_t plane, row, column, group;
};

// Numbers run over groups first, then columns, rows and planes.
struct PixelIndex {
  int64_t planes = 0, rows = 0, columns = 0, groups = 0;
  FastDivisor row_divisor, column_divisor, group_divisor;
  bool wide = false;  // more than 2^31 - 1 numbers

  static PixelIndex of(int64_t planes, int64_t rows, int64_t columns, int64_t groups) {
    PixelIndex out;
    out.planes = planes;
    out.rows = rows;
    out.columns = columns;
    out.groups = groups;
    out.wide = out.count() > 0x7fffffff;
    if (out.count() > 0 && !out.wide) {
      out.row_divisor = FastDivisor::of(rows);
      out.column_divisor = FastDivisor::of(columns);
      out.group_divisor = FastDivisor::of(groups);
    }
    return out;
  }
  HEADROOM_HOST_DEVICE int64_t count() const { return planes * rows * columns * groups; }

  HEADROOM_HOST_DEVICE Pixel at(int64_t number) const {
    if (wide) {
      const int64_t pixel = number / groups, line = pixel / columns, plane = line / rows;
      return {plane, line - plane * rows, pixel - line * columns, number - pixel * groups};
    }
    const auto n = static_cast<uint32_t>(number);
    const uint32_t pixel = group_divisor.divide(n);
    const uint32_t line = column_divisor.divide(pixel);
    const uint32_t plane = row_divisor.divide(line);
    return {plane, line - plane * row_divisor.divisor, pixel - line * column_divisor.divisor,
            n - pixel * group_divisor.divisor};
  }
};

}  // namespace headroom::cuda
