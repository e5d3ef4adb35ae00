// How the CPU kernels walk tensors of any layout. A loop numbers the elements of one shape in the
// order of its output's strides; each operand can then load or store any range of that numbering as
// a flat run in the type arithmetic is done in. Dense operands of that type are used in place.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "core/base/dtype.h"
#include "core/base/parallel.h"
#include "core/tensor/view.h"
#include "kernels/cpu/half_convert.h"
#include "kernels/scalar_ops.h"

namespace headroom::cpu {

// Elements handled at a time: one operand's run takes 4 KiB in f32, so that all stay in L1.
constexpr int64_t kChunk = 1024;
// The least number of elements worth a task of its own.
constexpr int64_t kGrain = int64_t{1} << 15;
constexpr int kMaxOperands = 6;

// One operand in the loop's order: axes outermost first, merged where its own strides allow, at
// least one axis.
struct Operand {
  void* data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  std::array<int64_t, kMaxRank> extent{};
  std::array<int64_t, kMaxRank> stride{};  // elements

  bool is_flat() const { return rank == 1 && stride[0] == 1; }
};

struct Loop {
  int64_t numel = 0;
  std::array<Operand, kMaxOperands> operand;
};

// All views have the shape; the last one is the output, whose strides decide the order.
Loop plan_loop(const Shape& shape, std::initializer_list<View> views);

// The operand over the axes of `view` that `keep` marks, in order of falling stride of `order_by`
// (of the same rank; its extents of 1 do not count).
Operand plan_operand(const View& view, const View& order_by,
                     const std::array<bool, kMaxRank>& keep);
int64_t numel_of(const Operand& operand);

// Where element `index` of the operand's numbering lies, in elements from data.
int64_t offset_of(const Operand& operand, int64_t index);

// A view with the row-major index of each element as its address: offsets in it are logical
// indices, whatever the layout of the others.
View logical_index_view(const Shape& shape);

// Calls fn(offset, stride, count) for the pieces of [begin, begin + count) that lie on the
// innermost axis, in order; offset and stride in elements.
template <class Fn>
void for_each_run(const Operand& operand, int64_t begin, int64_t count, Fn&& fn) {
  if (operand.rank == 1) {
    fn(begin * operand.stride[0], operand.stride[0], count);
    return;
  }
  const int inner = operand.rank - 1;
  std::array<int64_t, kMaxRank> at{};
  int64_t rest = begin, offset = 0;
  for (int i = inner; i >= 0; --i) {
    at[i] = rest % operand.extent[i];
    rest /= operand.extent[i];
    offset += at[i] * operand.stride[i];
  }
  while (count > 0) {
    const int64_t run = std::min(count, operand.extent[inner] - at[inner]);
    fn(offset, operand.stride[inner], run);
    count -= run;
    offset -= at[inner] * operand.stride[inner];
    at[inner] = 0;
    for (int i = inner - 1; i >= 0; --i) {
      offset += operand.stride[i];
      if (++at[i] < operand.extent[i]) break;
      offset -= operand.extent[i] * operand.stride[i];
      at[i] = 0;
    }
  }
}

// One element from one type to another: half types through f32, floating to integer as to_integer.
template <class To, class From>
To convert_element(From value) {
  constexpr bool from_half = std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>;
  constexpr bool to_half = std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>;
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (from_half) {
    return convert_element<To>(static_cast<float>(value));
  } else if constexpr (to_half) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class From, class To>
constexpr bool kHasConvertRun = requires(const From* src, To* dst) {
  convert_run(src, dst, 0);
};

// A run of `count` elements of type T as a flat run of C: in place when it is one already, else in
// `buffer`.
template <class T, class C>
const C* load_run(const T* src, int64_t stride, int64_t count, C* buffer) {
  if (stride == 1) {
    if constexpr (std::is_same_v<T, C>) {
      return src;
    } else if constexpr (kHasConvertRun<T, C>) {
      convert_run(src, buffer, count);
    } else {
      for (int64_t i = 0; i < count; ++i) buffer[i] = convert_element<C>(src[i]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) buffer[i] = convert_element<C>(src[i * stride]);
  }
  return buffer;
}

// The reverse.
template <class T, class C>
void store_run(const C* src, int64_t count, T* dst, int64_t stride) {
  if (stride == 1) {
    if constexpr (kHasConvertRun<C, T>) {
      convert_run(src, dst, count);
    } else {
      for (int64_t i = 0; i < count; ++i) dst[i] = convert_element<T>(src[i]);
    }
  } else {
    for (int64_t i = 0; i < count; ++i) dst[i * stride] = convert_element<T>(src[i]);
  }
}

// buffer[i] = the operand's element begin + i, of storage type T, as a C.
template <class T, class C>
void gather(const Operand& operand, int64_t begin, int64_t count, C* buffer) {
  const T* data = static_cast<const T*>(operand.data);
  for_each_run(operand, begin, count, [&](int64_t offset, int64_t stride, int64_t run) {
    const C* loaded = load_run(data + offset, stride, run, buffer);
    if (loaded != buffer) std::copy_n(loaded, run, buffer);
    buffer += run;
  });
}

// The reverse.
template <class T, class C>
void scatter(const Operand& operand, int64_t begin, int64_t count, const C* buffer) {
  T* data = static_cast<T*>(operand.data);
  for_each_run(operand, begin, count, [&](int64_t offset, int64_t stride, int64_t run) {
    store_run(buffer, run, data + offset, stride);
    buffer += run;
  });
}

// The elements [begin, begin + count) as a flat run of C: in place when they are one already, else
// in `buffer` (room for count).
template <class C>
const C* load(const Operand& operand, int64_t begin, int64_t count, C* buffer) {
  if (operand.dtype == dtype_of<C>() && operand.is_flat()) {
    return static_cast<const C*>(operand.data) + begin;
  }
  dispatch_all(operand.dtype, "load",
               [&](auto tag) { gather<decltype(tag)>(operand, begin, count, buffer); });
  return buffer;
}

// Where to write the elements [begin, begin + count) before store(): in place or `buffer`.
template <class C>
C* store_target(const Operand& operand, int64_t begin, C* buffer) {
  if (operand.dtype == dtype_of<C>() && operand.is_flat()) {
    return static_cast<C*>(operand.data) + begin;
  }
  return buffer;
}

// Writes what was put at store_target(); nothing to do when that was in place.
template <class C>
void store(const Operand& operand, int64_t begin, int64_t count, const C* target) {
  if (operand.dtype == dtype_of<C>() && operand.is_flat() &&
      target == static_cast<const C*>(operand.data) + begin) {
    return;
  }
  dispatch_all(operand.dtype, "store",
               [&](auto tag) { scatter<decltype(tag)>(operand, begin, count, target); });
}

// Calls fn(begin, count) for chunks of at most kChunk elements of [0, numel), in parallel.
template <class Fn>
void parallel_chunks(int64_t numel, Fn&& fn) {
  parallel_ranges(numel, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kChunk) fn(at, std::min(kChunk, end - at));
  });
}

// Calls fn with the type to compute in: double when any view is f64, else float.
template <class Fn>
decltype(auto) dispatch_compute(std::initializer_list<DType> dtypes, Fn&& fn) {
  for (const DType dtype : dtypes) {
    if (dtype == DType::f64) return fn(double{});
  }
  return fn(float{});
}

}  // namespace headroom::cpu
