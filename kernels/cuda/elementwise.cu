// Unary ops, their backward, and binary ops on CUDA. The rules themselves stand in scalar_ops.h.
#include <array>

#include "core/ops/contract.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/map.cuh"
#include "kernels/scalar_ops.h"

namespace headroom {
namespace {

using namespace cuda;

template <UnaryOp op, class T>
struct UnaryFn {
  float alpha;
  __device__ T operator()(T x) const { return from_float<T>(unary_value<op>(to_float(x), alpha)); }
};

template <UnaryOp op>
struct UnaryBody {  // offsets: y, x
  AnyArray y, x;
  float alpha;
  __device__ void operator()(const int64_t (&at)[2]) const {
    y.store(at[0], unary_value<op>(x.load(at[1]), alpha));
  }
};

void unary(UnaryOp op, double alpha, const View& x, const View& y) {
  const auto loop = make_strided_loop<2>(y.shape, {y.strides, x.strides});
  if (loop.numel == 0) return;
  const auto a = static_cast<float>(alpha);
  dispatch_unary(op, [&](auto constant) {
    constexpr UnaryOp kOp = decltype(constant)::value;
    const bool done = dispatch_cuda_floating(x.dtype, "unary", [&](auto element) {
      using T = decltype(element);
      constexpr int kWidth = kPackWidth<T>;
      if (!loop.flat() || y.dtype != x.dtype) return false;
      if (!pack_aligned<kWidth>(x.as<T>()) || !pack_aligned<kWidth>(y.as<T>())) return false;
      launch("unary", &flat_map1_kernel<kWidth, T, T, UnaryFn<kOp, T>>,
             flat_blocks(loop.numel / kWidth), kMapThreads, 0, x.as<T>(), y.as<T>(), loop.numel,
             UnaryFn<kOp, T>{a});
      return true;
    });
    if (done) return;
    launch_strided("unary", loop, UnaryBody<kOp>{any_array(y, "unary"), any_array(x, "unary"), a});
  });
}

template <UnaryOp op, class T>
struct UnaryGradientFn {
  float alpha;
  __device__ T operator()(T saved, T dy) const {
    return from_float<T>(unary_gradient<op>(to_float(saved), alpha, to_float(dy)));
  }
};

template <UnaryOp op>
struct UnaryGradientBody {  // offsets: dx, saved, dy
  AnyArray dx, saved, dy;
  float alpha;
  __device__ void operator()(const int64_t (&at)[3]) const {
    dx.store(at[0], unary_gradient<op>(saved.load(at[1]), alpha, dy.load(at[2])));
  }
};

void unary_backward(UnaryOp op, double alpha, const View& saved_or_none, const View& dy,
                    const View& dx) {
  // Where the derivative is constant nothing was saved; any readable operand then serves.
  const View& saved = saved_or_none.defined ? saved_or_none : dy;
  const auto loop = make_strided_loop<3>(dx.shape, {dx.strides, saved.strides, dy.strides});
  if (loop.numel == 0) return;
  const auto a = static_cast<float>(alpha);
  dispatch_unary(op, [&](auto constant) {
    constexpr UnaryOp kOp = decltype(constant)::value;
    const bool done = dispatch_cuda_floating(dx.dtype, "unary_backward", [&](auto element) {
      using T = decltype(element);
      constexpr int kWidth = kPackWidth<T>;
      if (!loop.flat() || saved.dtype != dx.dtype || dy.dtype != dx.dtype) return false;
      for (const View* view : {&saved, &dy, &dx}) {
        if (!pack_aligned<kWidth>(view->as<T>())) return false;
      }
      launch("unary_backward", &flat_map2_kernel<kWidth, T, T, T, UnaryGradientFn<kOp, T>>,
             flat_blocks(loop.numel / kWidth), kMapThreads, 0, saved.as<T>(), dy.as<T>(),
             dx.as<T>(), loop.numel, UnaryGradientFn<kOp, T>{a});
      return true;
    });
    if (done) return;
    launch_strided(
        "unary_backward", loop,
        UnaryGradientBody<kOp>{any_array(dx, "unary_backward"), any_array(saved, "unary_backward"),
                               any_array(dy, "unary_backward"), a});
  });
}

template <BinaryOp op, class A, class B, class Y>
struct BinaryFn {
  __device__ Y operator()(A a, B b) const {
    return from_float<Y>(binary_value<op>(to_float(a), to_float(b)));
  }
};

template <BinaryOp op>
struct BinaryBody {  // offsets: y, a, b
  AnyArray y, a, b;
  __device__ void operator()(const int64_t (&at)[3]) const {
    y.store(at[0], binary_value<op>(a.load(at[1]), b.load(at[2])));
  }
};

// Packs over dense views or dense rows. Returns false where neither fits.
template <BinaryOp op, class A, class B, class Y>
bool binary_packs(const View& a, const View& b, const View& y, const StridedLoop<3>& loop) {
  constexpr int kWidth = kPackWidth<A, B, Y>;
  if (!pack_aligned<kWidth>(y.as<Y>())) return false;
  using Fn = BinaryFn<op, A, B, Y>;
  const bool a_aligned = pack_aligned<kWidth>(a.as<A>());
  const bool b_aligned = pack_aligned<kWidth>(b.as<B>());
  if (loop.flat() && a_aligned && b_aligned) {
    launch("binary", &flat_map2_kernel<kWidth, A, B, Y, Fn>, flat_blocks(loop.numel / kWidth),
           kMapThreads, 0, a.as<A>(), b.as<B>(), y.as<Y>(), loop.numel, Fn{});
    return true;
  }
  StridedLoop<3> packs = loop;
  if (!make_pack_loop(packs, kWidth) || packs.wide()) return false;
  if (!(a_aligned || packs.stride[1][0] == 0) || !(b_aligned || packs.stride[2][0] == 0)) {
    return false;
  }
  launch("binary", &row_map2_kernel<kWidth, A, B, Y, Fn>, grid_stride_blocks(packs.numel),
         kMapThreads, 0, a.as<A>(), b.as<B>(), y.as<Y>(), packs, Fn{});
  return true;
}

void binary(BinaryOp op, const View& a, const View& b, const View& y) {
  const auto loop = make_strided_loop<3>(y.shape, {y.strides, a.strides, b.strides});
  if (loop.numel == 0) return;
  dispatch_binary(op, [&](auto constant) {
    constexpr BinaryOp kOp = decltype(constant)::value;
    // One type throughout, or an f32 accumulator that a half operand is merged into.
    const bool done = dispatch_cuda_floating(b.dtype, "binary", [&](auto element) {
      using T = decltype(element);
      if (a.dtype == b.dtype && y.dtype == b.dtype) {
        return binary_packs<kOp, T, T, T>(a, b, y, loop);
      }
      if constexpr (sizeof(T) == 2) {
        if (a.dtype == DType::f32 && y.dtype == DType::f32) {
          return binary_packs<kOp, float, T, float>(a, b, y, loop);
        }
      }
      return false;
    });
    if (done) return;
    launch_strided(
        "binary", loop,
        BinaryBody<kOp>{any_array(y, "binary"), any_array(a, "binary"), any_array(b, "binary")});
  });
}

}  // namespace

void register_cuda_elementwise_kernels() {
  slots::unary.set(DeviceType::cuda, &unary);
  slots::unary_backward.set(DeviceType::cuda, &unary_backward);
  slots::binary.set(DeviceType::cuda, &binary);
  register_cuda_copy_kernels();
  register_cuda_random_kernels();
}

}  // namespace headroom
