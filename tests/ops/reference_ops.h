// What the ops compute, as plain loops over f64 arrays in logical order. Written from the formulas
// of the headers and from PyTorch's conventions, and sharing no code with the kernels. Slow, for
// small arrays. Shapes are taken to fit; the library's checks have tests of their own.
#pragma once

#include <functional>

#include "core/ops/conv.h"
#include "core/ops/loss.h"
#include "core/ops/norm.h"
#include "core/ops/pool.h"
#include "tests/ops/op_row.h"

namespace headroom::testing_ops::reference {

Array filled(const Shape& shape, double value);

// Elementwise, and with NumPy's broadcasting.
Array map(const Array& x, const std::function<double(double)>& f);
Array zip(const Array& a, const Array& b, const std::function<double(double, double)>& f);

// The number that a tensor of the dtype keeps of a value: rounded to nearest even, or for integers
// cut towards zero, saturated, and 0 for NaN.
double stored(double value, DType dtype);
Array stored(const Array& x, DType dtype);

// Sum or mean over the axes (none: all); kept axes have extent 1.
Array sum(const Array& x, const std::vector<int>& axes, bool keep_dims, bool average);
// The largest along an axis and its place; the first of equals, NaN above all.
Arrays max_along(const Array& x, int axis, bool keep_dims);

// a[m,k] * b[k,n] (or b[n,k] transposed) + bias[n], which may be empty.
Array matmul(const Array& a, const Array& b, bool transpose_b, const Array* bias = nullptr);

Array conv2d(const Array& x, const Array& w, const Array* bias, const Conv2dOptions& options);
Array max_pool2d(const Array& x, const Pool2dOptions& options);
Array avg_pool2d(const Array& x, const Pool2dOptions& options);

struct NormInputs {
  const Array* gamma = nullptr;
  const Array* beta = nullptr;
  const Array* residual = nullptr;
  const Array* running_mean = nullptr;
  const Array* running_var = nullptr;
};
// y, and when training with running averages those two after the step.
Arrays batch_norm(const Array& x, const NormInputs& with, const BatchNormOptions& options);

Array softmax(const Array& x, int axis, bool logarithm);
Array cross_entropy(const Array& logits, const Array& labels, const CrossEntropyOptions& options);

Array reshape(const Array& x, const Shape& shape);
Array permute(const Array& x, const std::vector<int>& axes);
Array slice(const Array& x, int axis, int64_t begin, int64_t end);
Array expand(const Array& x, const Shape& shape);
Array concat(const Arrays& parts, int axis);

// The draws of the op that comes `offset`-th after manual_seed(seed), by logical element index.
Array uniform(const Shape& shape, uint64_t seed, uint64_t offset, double low, double high);
Array normal(const Shape& shape, uint64_t seed, uint64_t offset, double mean, double deviation);
Array dropout(const Array& x, double p, uint64_t seed, uint64_t offset);

}  // namespace headroom::testing_ops::reference
