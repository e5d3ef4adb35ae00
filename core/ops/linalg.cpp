// Matrix products on one slot.
#include "core/ops/linalg.h"

#include "core/autograd/autocast.h"
#include "core/ops/op_helpers.h"
#include "core/ops/scratch.h"

namespace headroom {
namespace {

constexpr MemoryFormat kPlain = MemoryFormat::contiguous;

// y = op(a) * op(b) + bias, with the workspace that the shape entitles it to.
void multiply(const Tensor& a, const Tensor& b, const Tensor& bias, const MatmulParams& params,
              const Tensor& y) {
  const int64_t k = params.transpose_a ? a.size(0) : a.size(1);
  const Tensor workspace = detail::scratch(
      y.device(), matmul_workspace_bytes(y.device(), y.size(0), y.size(1), k, a.dtype()));
  slots::matmul(a, b, bias, params, workspace, y);
}

// y[m,n] = a[m,k] * op(b) + bias[n], op(b) = b[k,n] or, transposed, b[n,k]^T.
// da = dy * op(b)^T, db = a^T * dy (or dy^T * a), dbias = column sums of dy.
struct Matmul : Node {
  bool transpose_b;
  const char* op_name;
  SavedTensor a, b;
  DType bias_dtype = DType::f32;

  Matmul(bool transpose_b, const char* op_name) : transpose_b(transpose_b), op_name(op_name) {}
  const char* name() const override { return op_name; }

  Tensor forward(const Tensor& in_a, const Tensor& in_b, const Tensor& bias) {
    check(in_a, in_b, bias);
    const int64_t n = transpose_b ? in_b.size(0) : in_b.size(1);
    Tensor y = empty({in_a.size(0), n}, {in_a.dtype(), in_a.device()});
    MatmulParams params;
    params.transpose_b = transpose_b;
    multiply(detail::dense_in(in_a, kPlain), detail::dense_in(in_b, kPlain), bias, params, y);
    if (bias.defined()) bias_dtype = bias.dtype();
    if (wants(1)) a = save(in_a);
    if (wants(0)) b = save(in_b);
    return y;
  }

  Grads backward(Tensor dy_in) override {
    const Tensor dy = detail::dense_in(dy_in, kPlain);
    Tensor da, db, dbias;
    if (wants(2)) {
      dbias = empty({dy.size(1)}, {bias_dtype, dy.device()});
      slots::reduce(ReduceOp::sum, dy,
                    detail::alias(dbias, 0, {1, dy.size(1)}, {dy.size(1), 1}, kPlain));
    }
    if (wants(1)) {
      const Tensor x = detail::dense_in(a.take(), kPlain);
      const Shape shape = transpose_b ? Shape{dy.size(1), x.size(1)} : Shape{x.size(1), dy.size(1)};
      db = empty(shape, {dy.dtype(), dy.device()});
      MatmulParams params;
      params.transpose_a = true;
      if (transpose_b) {
        multiply(dy, x, {}, params, db);
      } else {
        multiply(x, dy, {}, params, db);
      }
    }
    if (wants(0)) {
      const Tensor w = detail::dense_in(b.take(), kPlain);
      da = empty({dy.size(0), transpose_b ? w.size(1) : w.size(0)}, {dy.dtype(), dy.device()});
      MatmulParams params;
      params.transpose_b = !transpose_b;
      multiply(dy, w, {}, params, da);
    }
    return {da, db, dbias};
  }

 private:
  void check(const Tensor& in_a, const Tensor& in_b, const Tensor& bias) const {
    detail::check_floating(op_name, {&in_a, &in_b, &bias});
    CHECK_ARG(in_a.rank() == 2 && in_b.rank() == 2, op_name, ": needs matrices but got ",
              in_a.describe(), " and ", in_b.describe());
    const int64_t inner = transpose_b ? in_b.size(1) : in_b.size(0);
    const int64_t outer = transpose_b ? in_b.size(0) : in_b.size(1);
    CHECK_ARG(in_a.size(1) == inner, op_name, ": inner sizes differ: ", in_a.describe(),
              transpose_b ? " against weight " : " times ", in_b.describe());
    CHECK_ARG(in_a.dtype() == in_b.dtype(), op_name, ": dtypes differ: ", in_a.describe(), " and ",
              in_b.describe());
    CHECK_ARG(!bias.defined() || (bias.rank() == 1 && bias.size(0) == outer), op_name,
              ": bias must have ", outer, " elements but is ", describe(bias));
  }
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, const Tensor& bias) {
  return apply(Matmul{false, "matmul"}, autocast::to_half(a), autocast::to_half(b), bias);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return apply(Matmul{true, "linear"}, autocast::to_half(x), autocast::to_half(weight), bias);
}

}  // namespace headroom
