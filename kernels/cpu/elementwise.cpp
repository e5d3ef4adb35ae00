// Unary and binary ops over any layout.
#include "core/ops/contract.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"

namespace headroom {
namespace {

using namespace cpu;  // NOLINT: the helpers of this folder

// Each output element depends on the inputs' elements of the same index alone, so the pragma holds
// even where the output is an input.
template <class C, class F>
void map_one(const Loop& loop, F f) {
  const Operand &x = loop.operand[0], &y = loop.operand[1];
  parallel_chunks(loop.numel, [&](int64_t begin, int64_t count) {
    C x_buffer[kChunk], y_buffer[kChunk];
    const C* from = load(x, begin, count, x_buffer);
    C* to = store_target(y, begin, y_buffer);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) to[i] = f(from[i]);
    store(y, begin, count, to);
  });
}

template <class C, class F>
void map_two(const Loop& loop, F f) {
  const Operand &a = loop.operand[0], &b = loop.operand[1], &y = loop.operand[2];
  parallel_chunks(loop.numel, [&](int64_t begin, int64_t count) {
    C a_buffer[kChunk], b_buffer[kChunk], y_buffer[kChunk];
    const C* left = load(a, begin, count, a_buffer);
    const C* right = load(b, begin, count, b_buffer);
    C* to = store_target(y, begin, y_buffer);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) to[i] = f(left[i], right[i]);
    store(y, begin, count, to);
  });
}

void unary(UnaryOp op, double alpha, const View& x, const View& y) {
  dispatch_compute({x.dtype, y.dtype}, [&](auto tag) {
    using C = decltype(tag);
    const Loop loop = plan_loop(y.shape, {x, y});
    const C a = static_cast<C>(alpha);
    dispatch_unary(op, [&](auto constant) {
      map_one<C>(loop, [a](C value) { return unary_value<decltype(constant)::value>(value, a); });
    });
  });
}

void unary_backward(UnaryOp op, double alpha, const View& saved, const View& dy, const View& dx) {
  // Ops that save nothing pass dy twice: its values stand in for the unused ones.
  const View& kept = saved.defined ? saved : dy;
  dispatch_compute({kept.dtype, dy.dtype, dx.dtype}, [&](auto tag) {
    using C = decltype(tag);
    const Loop loop = plan_loop(dx.shape, {kept, dy, dx});
    const C a = static_cast<C>(alpha);
    dispatch_unary(op, [&](auto constant) {
      map_two<C>(loop, [a](C value, C gradient) {
        return unary_gradient<decltype(constant)::value>(value, a, gradient);
      });
    });
  });
}

void binary(BinaryOp op, const View& a, const View& b, const View& y) {
  dispatch_compute({a.dtype, b.dtype, y.dtype}, [&](auto tag) {
    using C = decltype(tag);
    const Loop loop = plan_loop(y.shape, {a, b, y});
    dispatch_binary(op, [&](auto constant) {
      map_two<C>(loop, [](C left, C right) {
        return binary_value<decltype(constant)::value>(left, right);
      });
    });
  });
}

}  // namespace

void register_cpu_elementwise_kernels() {
  slots::unary.set(DeviceType::cpu, &unary);
  slots::unary_backward.set(DeviceType::cpu, &unary_backward);
  slots::binary.set(DeviceType::cpu, &binary);
}

}  // namespace headroom
