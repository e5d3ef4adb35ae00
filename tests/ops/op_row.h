// The op table is data: a row says how one op is used once, on which inputs, and what the result
// must be, as plain loops over f64 arrays. row_run.h and op_table_test.cpp turn each row into five
// tests over every dtype and memory format.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace headroom::testing_ops {

using Values = std::vector<double>;

// A tensor of the references: f64 values in logical (row-major n, c, h, w) order.
struct Array {
  Shape shape;
  Values values;
};
using Arrays = std::vector<Array>;

// How an input lies in memory. dense: one block, in the format of the run if its rank is 4 (see
// Format). The others are views that no kernel may take for a dense block: `transposed` has its
// last two axes swapped in memory, `sliced` is cut out of a tensor longer on both sides of its last
// axis, `repeated` has stride 0 along its first axis.
enum class Layout : uint8_t { dense, transposed, sliced, repeated };

// of_run: images are checked in both formats. The others are fixed, to let formats meet.
enum class Format : uint8_t { of_run, nchw, nhwc };

// The dtype that an input has. of_run: the dtype that is tested; statistic: f32 (f64 in f64), as
// batch norm's parameters; label: i64; byte: u8.
enum class Kind : uint8_t { of_run, statistic, label, byte };

struct Input {
  Shape shape = {};
  double low = -2, high = 2;  // values lie in between; integers are drawn in [low, high)
  Layout layout = Layout::dense;
  Kind kind = Kind::of_run;
  Format format = Format::of_run;
  bool wants_grad = true;  // false: not differentiable, or a part of the state
  bool written = false;    // by the op; all other inputs must stay as they are
  Values values = {};      // exactly these instead of drawn ones
};

// The inputs of one run and the dtype, device and image format that it is about.
struct Call {
  std::vector<Tensor> inputs;
  TensorOptions options;
  const Tensor& operator[](size_t i) const { return inputs[i]; }
};

// What a rounding error is measured against.
enum class Scale : uint8_t {
  value,    // the value itself: elementwise ops
  terms,    // the same sum over the absolute values of inputs: whatever is linear in each input
  largest,  // the largest value of the output: ops that go through intermediate results
};

// |value - reference| <= rounding * unit(dtype) * |reference|          (storing the result)
//                        + arithmetic * unit(f32, or f64) * scale      (computing it)
// where unit is half the distance between neighbouring numbers near 1: 2^-53 for f64, 2^-24 for
// f32, 2^-11 for f16, 2^-8 for bf16. With Scale::largest the first line takes the scale as well.
struct Tolerance {
  double rounding = 1;
  double arithmetic = 0;
  Scale scale = Scale::value;
  // Of gradients, in units of the input's dtype against its largest value, or against the sum of
  // absolute terms for Scale::terms.
  double gradient = 4;
};
// Whether values must be the reference's, rounded to the output's dtype once.
constexpr bool is_exact(const Tolerance& tolerance) {
  return tolerance.rounding == 0 && tolerance.arithmetic == 0;
}
// Data moved or selected, and integers: the very numbers.
constexpr Tolerance kExact{0, 0, Scale::value, 0};
// One correctly rounded operation in f32; storing it in a half type rounds a second time.
constexpr Tolerance kRounded{1, 1, Scale::value};
// exp, log, tanh, pow and what is made of them: glibc promises 1 unit in the last place (2 of ours)
// for each, CUDA 2; sigmoid and silu chain three, and their derivatives subtract from 1.
constexpr Tolerance kFunction{1, 8, Scale::value, 8};
// Sums of products in f32. n terms in sequence err by at most n units of the sum of their absolute
// values; in blocks, and with errors of both signs, by a few.
constexpr Tolerance kSum{1, 8, Scale::terms};
// Statistics, then an expression of them.
constexpr Tolerance kStatistics{2, 32, Scale::largest, 8};

using Op = std::function<std::vector<Tensor>(const Call&)>;
using Reference = std::function<Arrays(const Arrays&)>;
using Gradient = std::function<Arrays(const Arrays& inputs, const Array& dy)>;

struct Row {
  std::string name;                 // unique; letters, digits and '_'
  std::vector<std::string> covers;  // functions of the headers that this row stands for
  std::vector<Input> inputs;
  Op op;  // the first output is the one that is differentiated
  Reference reference;
  Tolerance tolerance = kRounded;
  std::vector<DType> dtypes = {DType::f64, DType::f32, DType::f16, DType::bf16};
  // False for ops without a gradient, and for casts, whose steps have no derivative.
  bool differentiable = true;
  // Given where finite differences cannot tell: ties, kinks, casts.
  Gradient gradient = {};
  bool keeps_format = false;  // outputs of rank 4 have the memory format of the first input
  bool convolution = false;   // on CUDA with cuDNN and without
  bool exact_on_cuda = false;
  // CUDA's libraries take a bias in the output's type, or add it to the rounded product.
  bool wide_bias = false;
  bool exact_gradient_on_cuda = false;
  int difference_samples = 60;  // elements per input whose derivative is taken by differences
};

// A row of one output. It covers the function whose name stands before "__": relu for
// "relu__image", relu_ for "relu___image".
Row make_row(const std::string& name, std::vector<Input> inputs,
             std::function<Tensor(const Call&)> op, std::function<Array(const Arrays&)> reference,
             const Tolerance& tolerance = kRounded);

// The families, one file each.
std::vector<Row> creation_rows();
std::vector<Row> unary_rows();
std::vector<Row> binary_rows();
std::vector<Row> reduce_rows();
std::vector<Row> linalg_rows();
std::vector<Row> conv_rows();
std::vector<Row> pool_rows();
std::vector<Row> norm_rows();
std::vector<Row> loss_rows();
std::vector<Row> shape_rows();

// All of them, in that order; made once.
const std::vector<Row>& op_table();

}  // namespace headroom::testing_ops
