// Sums and means over any axes, maxima with their places, and the scatter that reverses those.
#include <vector>

#include "core/ops/contract.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"

namespace headroom {
namespace {

using namespace cpu;  // NOLINT: the helpers of this folder

// Kept in f64 whatever the input: a sum of 1e7 f32 numbers is then good to the last digit of its
// f32 result, and memory, not arithmetic, stays the limit.
using Sum = double;
constexpr int kLanes = 16;
// Outputs that one task accumulates side by side.
constexpr int64_t kWidth = 512;
// A long reduction is cut into so many segments at most, by its shape alone.
constexpr int64_t kMaxSegments = 64;

// One reduction. Output o is the sum of `elements` elements of x, at kept's offset of o
// plus reduced's offset of each.
struct ReducePlan {
  Operand kept, reduced;  // of x
  Operand y;              // in kept's order
  int64_t outputs = 0, elements = 0;
  // Whether x's fastest axis is kept: then neighbouring outputs are accumulated side by side, else
  // one output after the other.
  bool columns = false;
  // Tasks are blocks of at most `width` outputs that do not cross multiples of `period`.
  int64_t period = 1, width = 1, blocks = 0, segments = 1;

  int64_t blocks_per_period() const { return (period + width - 1) / width; }
  int64_t block_begin(int64_t block) const {
    return block / blocks_per_period() * period + block % blocks_per_period() * width;
  }
  int64_t block_size(int64_t block) const {
    return std::min(width, period - block % blocks_per_period() * width);
  }
};

ReducePlan plan_reduce(const View& x, const View& y) {
  CHECK(x.rank() == y.rank(), "reduce: ranks of ", x.shape, " and ", y.shape, " differ");
  std::array<bool, kMaxRank> keep{}, drop{};
  int fastest = -1;
  for (int axis = 0; axis < x.rank(); ++axis) {
    keep[axis] = x.shape[axis] == y.shape[axis];
    drop[axis] = !keep[axis];
    CHECK(keep[axis] || y.shape[axis] == 1, "reduce: shapes ", x.shape, " and ", y.shape);
    if (x.shape[axis] == 1) continue;
    if (fastest < 0 || x.strides[axis] <= x.strides[fastest]) fastest = axis;
  }
  ReducePlan plan;
  plan.kept = plan_operand(x, x, keep);
  plan.reduced = plan_operand(x, x, drop);
  plan.y = plan_operand(y, x, keep);
  plan.outputs = cpu::numel_of(plan.kept);
  plan.elements = cpu::numel_of(plan.reduced);
  if (plan.outputs == 0) return plan;
  plan.columns = fastest >= 0 && keep[fastest];
  if (plan.columns) {
    plan.period = plan.kept.extent[plan.kept.rank - 1];
    plan.width = std::min(plan.period, kWidth);
  } else {
    plan.period = plan.outputs;
    plan.width = std::clamp<int64_t>(kGrain / std::max<int64_t>(1, plan.elements), 1, kWidth);
  }
  plan.blocks = plan.outputs / plan.period * plan.blocks_per_period();
  plan.segments = std::clamp<int64_t>(plan.elements * plan.width / kGrain, 1,
                                      std::max<int64_t>(1, kMaxSegments / plan.blocks));
  return plan;
}

// One output's elements [from, from + count).
template <class C, class T>
Sum reduce_row(const ReducePlan& plan, const T* x, int64_t from, int64_t count) {
  Sum lanes[kLanes];
  std::fill_n(lanes, kLanes, Sum(0));
  for_each_run(plan.reduced, from, count, [&](int64_t offset, int64_t stride, int64_t run) {
    C buffer[kChunk];
    for (int64_t at = 0; at < run; at += kChunk) {
      const int64_t size = std::min(kChunk, run - at);
      const C* values = load_run(x + offset + at * stride, stride, size, buffer);
      int64_t i = 0;
      for (; i + kLanes <= size; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) lanes[j] += values[i + j];
      }
      for (int j = 0; i < size; ++i, ++j) lanes[j] += values[i];
    }
  });
  Sum out = lanes[0];
  for (int j = 1; j < std::min<int64_t>(kLanes, count); ++j) out += lanes[j];
  return out;
}

// Elements [from, from + count) of `size` outputs that lie `step` apart in x, side by side.
template <class C, class T>
void reduce_columns(const ReducePlan& plan, const T* x, int64_t step, int64_t size, int64_t from,
                    int64_t count, Sum* out) {
  Sum sums[kWidth];
  std::fill_n(sums, kWidth, Sum(0));
  C buffer[kWidth];
  const auto add = [&](const T* row, int64_t width) {
    const C* values = load_run(row, step, width, buffer);
    for (int64_t j = 0; j < width; ++j) sums[j] += values[j];
  };
  // Rows that follow each other without a gap are taken several at a time, so that few columns
  // still fill vectors.
  const int64_t together = std::max<int64_t>(1, kWidth / size);
  for_each_run(plan.reduced, from, count, [&](int64_t offset, int64_t stride, int64_t run) {
    const int64_t rows = step == 1 && stride == size ? together : 1;
    for (int64_t row = 0; row < run; row += rows) {
      add(x + offset + row * stride, std::min(rows, run - row) * size);
    }
  });
  std::copy_n(sums, size, out);
  for (int64_t i = size; i < together * size; ++i) {
    out[i % size] += sums[i];
  }
}

// One segment of one block, into out[block_size].
template <class C, class T>
void reduce_block(const ReducePlan& plan, int64_t block, int64_t segment, Sum* out) {
  const T* x = static_cast<const T*>(plan.kept.data);
  const int64_t size = plan.block_size(block);
  const int64_t length = (plan.elements + plan.segments - 1) / plan.segments;
  const int64_t from = segment * length;
  const int64_t count = std::max<int64_t>(0, std::min(length, plan.elements - from));
  if (count == 0) {
    std::fill_n(out, size, Sum(0));
    return;
  }
  for_each_run(plan.kept, plan.block_begin(block), size,
               [&](int64_t offset, int64_t stride, int64_t run) {
                 if (plan.columns) {
                   reduce_columns<C>(plan, x + offset, stride, run, from, count, out);
                 } else {
                   for (int64_t i = 0; i < run; ++i) {
                     out[i] = reduce_row<C>(plan, x + offset + i * stride, from, count);
                   }
                 }
                 out += run;
               });
}

template <class C, class T>
void reduce_typed(const ReducePlan& plan, double divisor) {
  const auto finish = [&](int64_t block, Sum* values) {
    const int64_t size = plan.block_size(block);
    for (int64_t i = 0; i < size; ++i) values[i] /= divisor;
    store(plan.y, plan.block_begin(block), size, values);
  };
  if (plan.segments == 1) {
    const int64_t work = std::max<int64_t>(1, plan.elements * plan.width);
    parallel_ranges(plan.blocks, std::max<int64_t>(1, kGrain / work),
                    [&](int64_t begin, int64_t end) {
                      Sum values[kWidth];
                      for (int64_t block = begin; block < end; ++block) {
                        reduce_block<C, T>(plan, block, 0, values);
                        finish(block, values);
                      }
                    });
    return;
  }
  std::vector<Sum> partial(static_cast<size_t>(plan.blocks * plan.segments * plan.width));
  parallel_for(plan.blocks * plan.segments, [&](int64_t task) {
    reduce_block<C, T>(plan, task / plan.segments, task % plan.segments,
                       partial.data() + task * plan.width);
  });
  for (int64_t block = 0; block < plan.blocks; ++block) {
    Sum* first = partial.data() + block * plan.segments * plan.width;
    for (int64_t segment = 1; segment < plan.segments; ++segment) {
      const Sum* next = first + segment * plan.width;
      for (int64_t i = 0; i < plan.block_size(block); ++i) {
        first[i] += next[i];
      }
    }
    finish(block, first);
  }
}

void reduce(ReduceOp op, const View& x, const View& y) {
  const ReducePlan plan = plan_reduce(x, y);
  if (plan.outputs == 0) return;
  const double divisor = op == ReduceOp::mean ? static_cast<double>(plan.elements) : 1.0;
  dispatch_floating(x.dtype, "reduce", [&](auto tag) {
    using T = decltype(tag);
    using C = compute_t<T>;
    reduce_typed<C, T>(plan, divisor);
  });
}

// Every axis but one, numbered alike in the operands.
struct LinePlan {
  std::array<bool, kMaxRank> keep;
  int64_t lines = 0, length = 0;
};

LinePlan plan_lines(const View& full, int axis) {
  LinePlan plan;
  plan.keep.fill(true);
  plan.keep[axis] = false;
  plan.length = full.shape[axis];
  plan.lines = 1;
  for (int i = 0; i < full.rank(); ++i) plan.lines *= i == axis ? 1 : full.shape[i];
  return plan;
}

// Calls fn(first line, count, offsets in `full` of those lines) for chunks of lines, in parallel.
template <class Fn>
void for_each_line(const LinePlan& plan, const Operand& full, Fn&& fn) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, plan.length));
  parallel_ranges(plan.lines, grain, [&](int64_t begin, int64_t end) {
    int64_t offsets[kChunk];
    for (int64_t at = begin; at < end; at += kChunk) {
      const int64_t count = std::min(kChunk, end - at);
      int64_t* out = offsets;
      for_each_run(full, at, count, [&](int64_t offset, int64_t stride, int64_t run) {
        for (int64_t i = 0; i < run; ++i) *out++ = offset + i * stride;
      });
      fn(at, count, offsets);
    }
  });
}

void max_along(const View& x, int axis, const View& values, const View& indices) {
  const LinePlan plan = plan_lines(x, axis);
  CHECK(plan.length > 0 || plan.lines == 0, "max_along: axis ", axis, " of ", x.shape, " is empty");
  const Operand from = plan_operand(x, x, plan.keep);
  const Operand places = plan_operand(indices, x, plan.keep);
  const Operand best_values = values.defined ? plan_operand(values, x, plan.keep) : Operand{};
  const int64_t step = x.strides[axis];
  dispatch_floating(x.dtype, "max_along", [&](auto tag) {
    using T = decltype(tag);
    using C = compute_t<T>;
    for_each_line(plan, from, [&](int64_t first, int64_t count, const int64_t* offsets) {
      C best[kChunk];
      int64_t place[kChunk];
      for (int64_t i = 0; i < count; ++i) {
        const T* line = x.as<T>() + offsets[i];
        best[i] = static_cast<C>(line[0]);
        place[i] = 0;
        for (int64_t j = 1; j < plan.length; ++j) {
          const C value = static_cast<C>(line[j * step]);
          if (beats(value, best[i])) {
            best[i] = value;
            place[i] = j;
          }
        }
      }
      scatter<int64_t>(places, first, count, place);
      if (values.defined) store(best_values, first, count, best);
    });
  });
}

void scatter_along(const View& dy, const View& indices, int axis, const View& dx) {
  const LinePlan plan = plan_lines(dx, axis);
  const Operand to = plan_operand(dx, dx, plan.keep);
  const Operand places = plan_operand(indices, dx, plan.keep);
  const Operand from = plan_operand(dy, dx, plan.keep);
  const int64_t step = dx.strides[axis];
  dispatch_floating(dx.dtype, "scatter_along", [&](auto tag) {
    using T = decltype(tag);
    using C = compute_t<T>;
    for_each_line(plan, to, [&](int64_t first, int64_t count, const int64_t* offsets) {
      C gradients[kChunk];
      int64_t place[kChunk];
      const C* gradient = load(from, first, count, gradients);
      gather<int64_t>(places, first, count, place);
      for (int64_t i = 0; i < count; ++i) {
        T* line = dx.as<T>() + offsets[i];
        for (int64_t j = 0; j < plan.length; ++j) line[j * step] = T(0.0f);
        CHECK(place[i] >= 0 && place[i] < plan.length, "scatter_along: index ", place[i],
              " on an axis of ", plan.length);
        line[place[i] * step] = T(gradient[i]);
      }
    });
  });
}

}  // namespace

void register_cpu_reduce_kernels() {
  slots::reduce.set(DeviceType::cpu, &reduce);
  slots::max_along.set(DeviceType::cpu, &max_along);
  slots::scatter_along.set(DeviceType::cpu, &scatter_along);
}

}  // namespace headroom
