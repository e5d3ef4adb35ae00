// Elementwise, reducing, multiplying, moving and drawing references.
#include "tests/ops/reference_ops.h"

#include <cmath>
#include <limits>

#include "core/base/philox.h"

namespace headroom::testing_ops::reference {
namespace {

// The place of element `flat` along each axis, and back.
Axes place_of(int64_t flat, const Shape& shape) {
  Axes place = Axes::filled(shape.rank(), 0);
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    place[axis] = flat % shape[axis];
    flat /= shape[axis];
  }
  return place;
}

int64_t flat_of(const Axes& place, const Shape& shape) {
  int64_t flat = 0;
  for (int axis = 0; axis < shape.rank(); ++axis) flat = flat * shape[axis] + place[axis];
  return flat;
}

// Where an element of the broadcast result comes from.
int64_t source_of(const Axes& place, const Shape& shape) {
  const int lead = place.rank() - shape.rank();
  Axes own = Axes::filled(shape.rank(), 0);
  for (int axis = 0; axis < shape.rank(); ++axis) {
    own[axis] = shape[axis] == 1 ? 0 : place[axis + lead];
  }
  return flat_of(own, shape);
}

Shape broadcast(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape out = Axes::filled(rank, 1);
  for (int i = 0; i < rank; ++i) {
    const int in_a = i - (rank - a.rank()), in_b = i - (rank - b.rank());
    const int64_t extent_a = in_a < 0 ? 1 : a[in_a], extent_b = in_b < 0 ? 1 : b[in_b];
    out[i] = extent_a == 1 ? extent_b : extent_a;
  }
  return out;
}

// out[i] = x[source(place of i)] over a new shape.
template <class Source>
Array gather(const Array& x, const Shape& shape, const Source& source) {
  Array out = filled(shape, 0);
  for (size_t i = 0; i < out.values.size(); ++i) {
    const Axes from = source(place_of(static_cast<int64_t>(i), shape));
    out.values[i] = x.values[static_cast<size_t>(flat_of(from, x.shape))];
  }
  return out;
}

int from_front(int axis, int rank) { return axis < 0 ? axis + rank : axis; }

template <class Int>
double truncated(double value) {
  if (std::isnan(value)) return 0;
  const double low = static_cast<double>(std::numeric_limits<Int>::min());
  const double high = static_cast<double>(std::numeric_limits<Int>::max());
  return std::trunc(std::min(std::max(value, low), high));
}

uint32_t word(uint64_t seed, uint64_t offset, size_t index) {
  return philox_word(seed, offset, index);
}
double unit_interval(uint32_t bits) { return static_cast<double>(bits >> 8) / 16777216.0; }

}  // namespace

Array filled(const Shape& shape, double value) {
  return {shape, Values(static_cast<size_t>(numel_of(shape)), value)};
}

Array map(const Array& x, const std::function<double(double)>& f) {
  Array out = x;
  for (double& value : out.values) value = f(value);
  return out;
}

Array zip(const Array& a, const Array& b, const std::function<double(double, double)>& f) {
  Array out = filled(broadcast(a.shape, b.shape), 0);
  for (size_t i = 0; i < out.values.size(); ++i) {
    const Axes place = place_of(static_cast<int64_t>(i), out.shape);
    out.values[i] = f(a.values[static_cast<size_t>(source_of(place, a.shape))],
                      b.values[static_cast<size_t>(source_of(place, b.shape))]);
  }
  return out;
}

double stored(double value, DType dtype) {
  switch (dtype) {
    case DType::f16:
      return static_cast<double>(static_cast<float>(Half(static_cast<float>(value))));
    case DType::bf16:
      return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(value))));
    case DType::f32:
      return static_cast<double>(static_cast<float>(value));
    case DType::f64:
      return value;
    case DType::i64:
      return truncated<int64_t>(value);
    case DType::u8:
      return truncated<uint8_t>(value);
  }
  return value;
}

Array stored(const Array& x, DType dtype) {
  return map(x, [dtype](double value) { return stored(value, dtype); });
}

Array sum(const Array& x, const std::vector<int>& axes, bool keep_dims, bool average) {
  const int rank = x.shape.rank();
  std::vector<bool> reduced(static_cast<size_t>(rank), axes.empty());
  for (const int axis : axes) reduced[static_cast<size_t>(from_front(axis, rank))] = true;
  Shape kept = x.shape, dropped;
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) {
    if (reduced[static_cast<size_t>(i)]) {
      count *= x.shape[i];
      kept[i] = 1;
    } else {
      dropped.push_back(x.shape[i]);
    }
  }
  Array out = filled(kept, 0);
  for (size_t i = 0; i < x.values.size(); ++i) {
    const Axes place = place_of(static_cast<int64_t>(i), x.shape);
    out.values[static_cast<size_t>(source_of(place, kept))] += x.values[i];
  }
  if (average) out = map(out, [count](double v) { return v / static_cast<double>(count); });
  if (!keep_dims) out.shape = dropped;
  return out;
}

Arrays max_along(const Array& x, int axis, bool keep_dims) {
  axis = from_front(axis, x.shape.rank());
  Shape kept = x.shape, dropped;
  kept[axis] = 1;
  for (int i = 0; i < x.shape.rank(); ++i) {
    if (i != axis) dropped.push_back(x.shape[i]);
  }
  Array largest = filled(kept, 0), index = filled(kept, 0);
  for (size_t i = 0; i < largest.values.size(); ++i) {
    Axes place = place_of(static_cast<int64_t>(i), kept);
    double best = 0;
    for (int64_t at = 0; at < x.shape[axis]; ++at) {
      place[axis] = at;
      const double value = x.values[static_cast<size_t>(flat_of(place, x.shape))];
      if (at == 0 || value > best || (std::isnan(value) && !std::isnan(best))) {
        best = value;
        index.values[i] = static_cast<double>(at);
      }
    }
    largest.values[i] = best;
  }
  if (!keep_dims) largest.shape = index.shape = dropped;
  return {largest, index};
}

Array matmul(const Array& a, const Array& b, bool transpose_b, const Array* bias) {
  const int64_t m = a.shape[0], inner = a.shape[1], n = transpose_b ? b.shape[0] : b.shape[1];
  Array out = filled({m, n}, 0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double total = bias ? bias->values[static_cast<size_t>(j)] : 0;
      for (int64_t k = 0; k < inner; ++k) {
        total += a.values[static_cast<size_t>(i * inner + k)] *
                 b.values[static_cast<size_t>(transpose_b ? j * inner + k : k * n + j)];
      }
      out.values[static_cast<size_t>(i * n + j)] = total;
    }
  }
  return out;
}

Array reshape(const Array& x, const Shape& shape) { return {shape, x.values}; }

Array permute(const Array& x, const std::vector<int>& axes) {
  Shape shape;
  for (const int axis : axes) shape.push_back(x.shape[from_front(axis, x.shape.rank())]);
  return gather(x, shape, [&](const Axes& place) {
    Axes from = place;
    for (size_t i = 0; i < axes.size(); ++i) {
      from[from_front(axes[i], x.shape.rank())] = place[static_cast<int>(i)];
    }
    return from;
  });
}

Array slice(const Array& x, int axis, int64_t begin, int64_t end) {
  axis = from_front(axis, x.shape.rank());
  Shape shape = x.shape;
  shape[axis] = end - begin;
  return gather(x, shape, [&](Axes place) {
    place[axis] += begin;
    return place;
  });
}

Array expand(const Array& x, const Shape& shape) {
  return zip(x, filled(shape, 0), [](double value, double) { return value; });
}

Array concat(const Arrays& parts, int axis) {
  axis = from_front(axis, parts[0].shape.rank());
  Shape shape = parts[0].shape;
  shape[axis] = 0;
  for (const Array& part : parts) shape[axis] += part.shape[axis];
  Array out = filled(shape, 0);
  int64_t begin = 0;
  for (const Array& part : parts) {
    for (size_t i = 0; i < part.values.size(); ++i) {
      Axes place = place_of(static_cast<int64_t>(i), part.shape);
      place[axis] += begin;
      out.values[static_cast<size_t>(flat_of(place, shape))] = part.values[i];
    }
    begin += part.shape[axis];
  }
  return out;
}

Array uniform(const Shape& shape, uint64_t seed, uint64_t offset, double low, double high) {
  Array out = filled(shape, 0);
  for (size_t i = 0; i < out.values.size(); ++i) {
    out.values[i] = low + (high - low) * unit_interval(word(seed, offset, i));
  }
  return out;
}

Array normal(const Shape& shape, uint64_t seed, uint64_t offset, double mean, double deviation) {
  const double two_pi = 2 * std::acos(-1.0);
  Array out = filled(shape, 0);
  for (size_t i = 0; i < out.values.size(); ++i) {
    const size_t even = i / 2 * 2;
    const double radius = std::sqrt(-2 * std::log(1 - unit_interval(word(seed, offset, even))));
    const double angle = two_pi * unit_interval(word(seed, offset, even + 1));
    const double draw = radius * (i == even ? std::cos(angle) : std::sin(angle));
    out.values[i] = mean + deviation * draw;
  }
  return out;
}

Array dropout(const Array& x, double p, uint64_t seed, uint64_t offset) {
  Array out = x;
  for (size_t i = 0; i < out.values.size(); ++i) {
    const bool kept = unit_interval(word(seed, offset, i)) >= p;
    out.values[i] = kept ? x.values[i] / (1 - p) : 0;
  }
  return out;
}

}  // namespace headroom::testing_ops::reference
