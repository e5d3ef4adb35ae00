// Softmax and losses.
#include "core/ops/loss.h"

#include "core/autograd/autocast.h"
#include "core/ops/elementwise.h"
#include "core/ops/op_helpers.h"
#include "core/ops/reduce.h"
#include "core/ops/shape_ops.h"

namespace headroom {
namespace {

constexpr MemoryFormat kPlain = MemoryFormat::contiguous;

// Rows of the last axis as a matrix.
Tensor rows_of(const Tensor& dense) {
  const int64_t columns = dense.rank() == 0 ? 1 : dense.size(-1);
  const int64_t rows = columns > 0 ? dense.numel() / columns : 0;
  return detail::alias(dense, dense.storage_offset(), {rows, columns}, {columns, 1}, kPlain);
}

// y = exp(x - max x) / sum exp(x - max x) along the last axis, or its logarithm.
// dx = y * (dy - sum(y * dy));  logarithm: dx = dy - exp(y) * sum(dy).
struct Softmax : Node {
  bool logarithm;
  SavedTensor y;

  explicit Softmax(bool logarithm) : logarithm(logarithm) {}
  const char* name() const override { return logarithm ? "log_softmax" : "softmax"; }

  Tensor forward(const Tensor& x) {
    detail::check_floating(name(), {&x});
    const Tensor in = detail::dense_in(x, kPlain);
    Tensor out = empty_like(in);
    if (logarithm) {
      slots::log_softmax(rows_of(in), rows_of(out));
    } else {
      slots::softmax(rows_of(in), rows_of(out));
    }
    y = save(out);
    return out;
  }

  Grads backward(Tensor dy) override {
    const Tensor gradient = detail::dense_in(dy, kPlain);
    Tensor dx = empty_like(gradient);
    const Tensor out = y.get();
    if (logarithm) {
      slots::log_softmax_backward(rows_of(out), rows_of(gradient), rows_of(dx));
    } else {
      slots::softmax_backward(rows_of(out), rows_of(gradient), rows_of(dx));
    }
    return {dx};
  }
};

Tensor along_axis(const Tensor& x_in, int axis, bool logarithm) {
  const Tensor x = autocast::to_float(x_in);
  const int at =
      x.rank() == 0 ? 0 : normalize_axis(axis, x.rank(), logarithm ? "log_softmax" : "softmax");
  if (x.rank() == 0 || at == x.rank() - 1) return apply(Softmax{logarithm}, x);
  return transpose(apply(Softmax{logarithm}, transpose(x, at, -1)), at, -1);
}

// loss = sum of row losses / divisor; dlogits = dloss / divisor * (softmax - target).
struct CrossEntropy : Node {
  CrossEntropyParams params;
  SavedTensor logits, labels, lse, counted;

  explicit CrossEntropy(const CrossEntropyParams& params) : params(params) {}
  const char* name() const override { return "cross_entropy"; }

  Tensor forward(const Tensor& in_logits, const Tensor& in_labels) {
    const Tensor z = detail::dense_in(in_logits, kPlain);
    const Tensor targets = detail::dense_in(in_labels, kPlain);
    const TensorOptions wide{z.dtype() == DType::f64 ? DType::f64 : DType::f32, z.device()};
    const Tensor row_loss = empty({z.size(0)}, wide), row_lse = empty({z.size(0)}, wide);
    const Tensor rows = empty({}, wide);
    Tensor loss = empty({}, wide);
    slots::cross_entropy(z, targets, params, row_loss, row_lse, loss, rows);
    logits = save(z);
    labels = save(targets);
    lse = save(row_lse);
    counted = save(rows);
    return loss;
  }

  Grads backward(Tensor dloss) override {
    const Tensor z = logits.take();
    Tensor dz = empty_like(z);
    slots::cross_entropy_backward(z, labels.take(), lse.take(), counted.take(), dloss, params, dz);
    return {dz, Tensor()};
  }
};

void check_rows(const char* op, const Tensor& logits, const Tensor& labels) {
  detail::check_floating(op, {&logits});
  CHECK_ARG(logits.rank() == 2 && labels.rank() == 1 && labels.size(0) == logits.size(0) &&
                labels.dtype() == DType::i64,
            op, ": needs logits [n,c] and labels i64[n] but got ", logits.describe(), " and ",
            labels.describe());
  CHECK_ARG(logits.size(1) > 0, op, ": logits have no classes: ", logits.describe());
}

}  // namespace

Tensor softmax(const Tensor& x, int axis) { return along_axis(x, axis, false); }
Tensor log_softmax(const Tensor& x, int axis) { return along_axis(x, axis, true); }

Tensor cross_entropy(const Tensor& logits, const Tensor& labels,
                     const CrossEntropyOptions& options) {
  check_rows("cross_entropy", logits, labels);
  CHECK_ARG(options.label_smoothing >= 0 && options.label_smoothing <= 1,
            "cross_entropy: label smoothing must be in [0, 1], got ", options.label_smoothing);
  const CrossEntropyParams params{options.reduction, options.label_smoothing,
                                  options.ignored_label};
  // The kernel computes in f32 from half logits, so no f32 copy of them is needed.
  return apply(CrossEntropy{params}, logits, labels);
}

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  detail::check_floating("mse_loss", {&x, &target});
  CHECK_ARG(x.shape() == target.shape(), "mse_loss: shapes differ: ", x.describe(), " and ",
            target.describe());
  CHECK_ARG(x.device() == target.device(), "mse_loss: operands lie on ", x.device(), " and ",
            target.device());
  const Tensor difference = sub(autocast::to_float(x), autocast::to_float(target));
  const Tensor squares = mul(difference, difference);
  return reduction == Reduction::mean ? mean(squares) : sum(squares);
}

void count_correct(const Tensor& logits, const Tensor& labels, Tensor& count,
                   int64_t ignored_label) {
  check_rows("count_correct", logits, labels);
  CHECK_ARG(count.dtype() == DType::i64 && count.numel() == 1,
            "count_correct: needs an i64 counter of one element but got ", count.describe());
  const OpScope op("count_correct");
  slots::count_correct(detail::dense_in(logits, kPlain), detail::dense_in(labels, kPlain),
                       ignored_label, count);
  count.storage()->bump_version();
}

}  // namespace headroom
