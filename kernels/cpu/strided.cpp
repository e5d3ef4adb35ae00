// Ordering and merging the axes of a loop.
#include "kernels/cpu/strided.h"

namespace headroom::cpu {
namespace {

// The kept axes in order of falling stride of `view`, those of extent 1 left out. Stable, so that
// axes of equal stride (0 in a broadcast) keep their logical order.
int order_axes(const View& view, const std::array<bool, kMaxRank>& keep,
               std::array<int, kMaxRank>& order) {
  int count = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (keep[axis] && view.shape[axis] != 1) order[count++] = axis;
  }
  std::stable_sort(order.begin(), order.begin() + count,
                   [&](int a, int b) { return view.strides[a] > view.strides[b]; });
  return count;
}

Operand merge_axes(const View& view, const std::array<int, kMaxRank>& order, int count) {
  Operand out;
  out.data = view.data;
  out.dtype = view.dtype;
  for (int i = 0; i < count; ++i) {
    const int64_t extent = view.shape[order[i]], stride = view.strides[order[i]];
    const int last = out.rank - 1;
    if (out.rank > 0 && out.stride[last] == extent * stride) {
      out.extent[last] *= extent;
      out.stride[last] = stride;
    } else {
      out.extent[out.rank] = extent;
      out.stride[out.rank] = stride;
      ++out.rank;
    }
  }
  if (out.rank == 0) {
    out.rank = 1;
    out.extent[0] = 1;
    out.stride[0] = 1;
  }
  return out;
}

}  // namespace

Loop plan_loop(const Shape& shape, std::initializer_list<View> views) {
  CHECK(views.size() >= 1 && views.size() <= static_cast<size_t>(kMaxOperands), "loop: takes 1 to ",
        kMaxOperands, " operands");
  std::array<bool, kMaxRank> all;
  all.fill(true);
  std::array<int, kMaxRank> order{};
  const int count = order_axes(*(views.end() - 1), all, order);
  Loop loop;
  loop.numel = headroom::numel_of(shape);
  int i = 0;
  for (const View& view : views) {
    CHECK(view.shape == shape, "loop: operand ", i, " has shape ", view.shape, ", not ", shape);
    loop.operand[i++] = merge_axes(view, order, count);
  }
  return loop;
}

Operand plan_operand(const View& view, const View& order_by,
                     const std::array<bool, kMaxRank>& keep) {
  std::array<int, kMaxRank> order{};
  const int count = order_axes(order_by, keep, order);
  return merge_axes(view, order, count);
}

int64_t numel_of(const Operand& operand) {
  int64_t numel = 1;
  for (int i = 0; i < operand.rank; ++i) numel *= operand.extent[i];
  return numel;
}

int64_t offset_of(const Operand& operand, int64_t index) {
  int64_t offset = 0;
  for (int i = operand.rank - 1; i >= 0; --i) {
    offset += index % operand.extent[i] * operand.stride[i];
    index /= operand.extent[i];
  }
  return offset;
}

View logical_index_view(const Shape& shape) {
  View view;
  view.shape = shape;
  view.strides = dense_strides(shape, MemoryFormat::contiguous);
  view.defined = true;
  return view;
}

}  // namespace headroom::cpu
