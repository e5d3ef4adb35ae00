// Copies between any types and layouts, and fills.
#include <cstring>

#include "core/ops/contract.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"

namespace headroom {
namespace {

using namespace cpu;  // NOLINT: the helpers of this folder

// A copy whose two sides run along different axes: y is dense along `inner`, x along `across`.
struct Transposition {
  int inner = -1;
  int across = -1;
};

// Below it, rows are too short for tiles to pay.
constexpr int64_t kMinTransposed = 8;

bool find_transposition(const View& x, const View& y, Transposition& found) {
  for (int axis = 0; axis < y.rank(); ++axis) {
    if (y.shape[axis] < kMinTransposed) continue;
    if (y.strides[axis] == 1 && x.strides[axis] != 1) found.inner = axis;
    if (x.strides[axis] == 1 && y.strides[axis] != 1) found.across = axis;
  }
  return found.inner >= 0 && found.across >= 0;
}

// Raw: an unsigned integer of the elements' size. Tiles are one cache line of x wide and 8 rows
// high: with rows a power of two apart, more of them would fall on one set of the L1 cache.
template <class Raw>
void copy_transposed(const View& x, const View& y, const Transposition& axes) {
  constexpr int64_t kHigh = 8;
  constexpr int64_t kWide = 64 / static_cast<int64_t>(sizeof(Raw));
  std::array<bool, kMaxRank> outer;
  outer.fill(true);
  outer[axes.inner] = outer[axes.across] = false;
  // The outer axes of both views in one order: y's.
  View x_outer = x, y_outer = y;
  for (View* view : {&x_outer, &y_outer}) view->shape[axes.inner] = view->shape[axes.across] = 1;
  const Loop loop = plan_loop(y_outer.shape, {x_outer, y_outer});
  const int64_t high = y.shape[axes.inner], wide = y.shape[axes.across];
  const int64_t x_step = x.strides[axes.inner], y_step = y.strides[axes.across];
  const int64_t bands = (wide + kWide - 1) / kWide;
  const int64_t band_elements = high * std::min(wide, kWide);
  parallel_ranges(loop.numel * bands, std::max<int64_t>(1, kGrain / band_elements),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t task = begin; task < end; ++task) {
                      const int64_t from = task % bands * kWide, to = std::min(wide, from + kWide);
                      const Raw* src = x.as<Raw>() + offset_of(loop.operand[0], task / bands);
                      Raw* dst = y.as<Raw>() + offset_of(loop.operand[1], task / bands);
                      for (int64_t row = 0; row < high; row += kHigh) {
                        const int64_t row_end = std::min(high, row + kHigh);
                        for (int64_t column = from; column < to; ++column) {
                          for (int64_t i = row; i < row_end; ++i) {
                            dst[column * y_step + i] = src[i * x_step + column];
                          }
                        }
                      }
                    }
                  });
}

// Both sides of one type: bits move unchanged.
template <class Raw>
void copy_same(const View& x, const View& y) {
  Transposition axes;
  if (find_transposition(x, y, axes)) {
    copy_transposed<Raw>(x, y, axes);
    return;
  }
  const Loop loop = plan_loop(y.shape, {x, y});
  const Operand &from = loop.operand[0], &to = loop.operand[1];
  if (from.is_flat() && to.is_flat()) {
    if (x.data == y.data) return;
    parallel_ranges(loop.numel, kGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(y.as<Raw>() + begin, x.as<Raw>() + begin,
                  static_cast<size_t>(end - begin) * sizeof(Raw));
    });
    return;
  }
  parallel_chunks(loop.numel, [&](int64_t begin, int64_t count) {
    Raw buffer[kChunk];
    gather<Raw>(from, begin, count, buffer);
    scatter<Raw>(to, begin, count, buffer);
  });
}

// C holds every value of both types, or as much of it as y can take.
template <class C>
void copy_converted(const View& x, const View& y) {
  const Loop loop = plan_loop(y.shape, {x, y});
  parallel_chunks(loop.numel, [&](int64_t begin, int64_t count) {
    C buffer[kChunk];
    store(loop.operand[1], begin, count, load(loop.operand[0], begin, count, buffer));
  });
}

void copy(const View& x, const View& y) {
  CHECK(x.shape == y.shape, "copy: shapes ", x.shape, " and ", y.shape, " differ");
  if (x.dtype == y.dtype) {
    switch (size_of(x.dtype)) {
      case 1:
        return copy_same<uint8_t>(x, y);
      case 2:
        return copy_same<uint16_t>(x, y);
      case 4:
        return copy_same<uint32_t>(x, y);
      default:
        return copy_same<uint64_t>(x, y);
    }
  }
  const auto is_wide = [](DType dtype) { return dtype == DType::f64 || dtype == DType::i64; };
  if (!is_floating(x.dtype) && !is_floating(y.dtype)) {
    copy_converted<int64_t>(x, y);
  } else if (is_wide(x.dtype) || is_wide(y.dtype)) {
    copy_converted<double>(x, y);
  } else {
    copy_converted<float>(x, y);
  }
}

void fill(double value, const View& y) {
  const Loop loop = plan_loop(y.shape, {y});
  dispatch_all(y.dtype, "fill", [&](auto tag) {
    using T = decltype(tag);
    const T element = convert_element<T>(value);
    parallel_ranges(loop.numel, kGrain, [&](int64_t begin, int64_t end) {
      for_each_run(loop.operand[0], begin, end - begin,
                   [&](int64_t offset, int64_t stride, int64_t run) {
                     T* dst = y.as<T>() + offset;
                     for (int64_t i = 0; i < run; ++i) dst[i * stride] = element;
                   });
    });
  });
}

}  // namespace

void register_cpu_copy_kernels() {
  slots::copy.set(DeviceType::cpu, &copy);
  slots::fill.set(DeviceType::cpu, &fill);
}

}  // namespace headroom
