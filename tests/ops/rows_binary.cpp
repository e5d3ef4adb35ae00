// Rows of binary ops, with broadcasting, of mixed layouts and dtypes, and in place.
#include <cmath>

#include "core/ops/elementwise.h"
#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops {
namespace {

struct BinaryCase {
  std::string name;
  std::function<Tensor(const Tensor&, const Tensor&)> op;
  std::function<double(double, double)> value;
  Tolerance tolerance = kRounded;
  double low_b = -2, high_b = 2;
};

// NaN wins on either side.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double smaller(double a, double b) { return std::isnan(a) || a < b ? a : b; }

std::vector<BinaryCase> out_of_place() {
  using Two = Tensor (*)(const Tensor&, const Tensor&);
  return {
      {"add", static_cast<Two>(add), [](double a, double b) { return a + b; }},
      {"sub", sub, [](double a, double b) { return a - b; }},
      {"mul", static_cast<Two>(mul), [](double a, double b) { return a * b; }},
      {"div", div, [](double a, double b) { return a / b; }, kRounded, 0.4, 3},
      {"maximum", maximum, larger, {0, 0}},
      {"minimum", minimum, smaller, {0, 0}},
  };
}

std::vector<BinaryCase> in_place() {
  const auto on_copy = [](Tensor& (*op)(Tensor&, const Tensor&)) {
    return [op](const Tensor& a, const Tensor& b) {
      Tensor y = clone(a);
      op(y, b);
      return y;
    };
  };
  return {
      {"add_", on_copy(add_), [](double a, double b) { return a + b; }},
      {"sub_", on_copy(sub_), [](double a, double b) { return a - b; }},
      {"mul_", on_copy(mul_), [](double a, double b) { return a * b; }},
      {"div_", on_copy(div_), [](double a, double b) { return a / b; }, kRounded, 0.4, 3},
  };
}

Row binary_row(const BinaryCase& binary, const std::string& tag, const Input& a, Input b) {
  b.low = binary.low_b;
  b.high = binary.high_b;
  Row row = make_row(
      binary.name + "__" + tag, {a, b}, [op = binary.op](const Call& c) { return op(c[0], c[1]); },
      [value = binary.value](const Arrays& in) { return reference::zip(in[0], in[1], value); },
      binary.tolerance);
  row.keeps_format = true;
  if (numel_of(a.shape) > 10000) row.difference_samples = 1;
  return row;
}

struct Pair {
  std::string tag;
  Input a, b;
};

std::vector<Pair> operands() {
  const Input image{.shape = {2, 3, 5, 4}};
  return {
      {"images", image, image},
      {"channel_vector", image, {.shape = {3, 1, 1}}},
      {"channel_vector_first", {.shape = {1, 3, 1, 1}}, image},
      {"row", image, {.shape = {4}}},
      {"batch", image, {.shape = {2, 1, 1, 1}}},
      {"scalar", {.shape = {5, 3}}, {.shape = {}}},
      {"outer", {.shape = {6, 1}}, {.shape = {5}}},
      {"transposed", {.shape = {5, 6}}, {.shape = {5, 6}, .layout = Layout::transposed}},
      {"sliced", {.shape = {2, 3, 4, 3}, .layout = Layout::sliced}, {.shape = {2, 3, 4, 3}}},
      {"repeated", {.shape = {5, 6}, .layout = Layout::repeated}, {.shape = {5, 6}}},
      {"formats", image, {.shape = {2, 3, 5, 4}, .format = Format::nhwc}},
      {"one_element", {.shape = {1}}, {.shape = {1}}},
      {"empty", {.shape = {0, 4}}, {.shape = {1, 4}}},
      {"rank_6", {.shape = {2, 3, 1, 2, 1, 2}}, {.shape = {2, 1, 2, 1, 2, 2}}},
      {"large", {.shape = {2, 5, 131, 97}}, {.shape = {5, 1, 1}}},
      {"half_with_f32", image, {.shape = {3, 1, 1}, .kind = Kind::statistic}},
  };
}

void add_special(std::vector<Row>& rows) {
  // One tensor on both sides: its gradient is the sum of both.
  rows.push_back(make_row(
      "mul__with_itself", {{.shape = {3, 5}}}, [](const Call& c) { return mul(c[0], c[0]); },
      [](const Arrays& in) { return reference::map(in[0], [](double x) { return x * x; }); }));
  rows.push_back(make_row(
      "add___itself", {{.shape = {3, 5}}},
      [](const Call& c) {
        Tensor y = clone(c[0]);
        return add_(y, y);
      },
      [](const Arrays& in) { return reference::map(in[0], [](double x) { return 2 * x; }); }));
  for (const BinaryCase& binary : out_of_place()) {
    const Values a{NAN, 1, INFINITY, INFINITY, 0, 1}, b{1, NAN, INFINITY, -INFINITY, 0, 0};
    Row row = binary_row(binary, "specials", {.shape = {6}, .wants_grad = false, .values = a},
                         {.shape = {6}, .wants_grad = false, .values = b});
    row.differentiable = false;
    rows.push_back(std::move(row));
  }
  // Ties of maximum and minimum share the gradient in halves.
  for (const bool larger : {true, false}) {
    Row row = make_row(
        larger ? "maximum__ties" : "minimum__ties",
        {{.shape = {4}, .values = {1, -2, 0, 3}}, {.shape = {4}, .values = {1, -2, 0, 3}}},
        [larger](const Call& c) { return larger ? maximum(c[0], c[1]) : minimum(c[0], c[1]); },
        [](const Arrays& in) { return in[0]; }, {0, 0});
    row.gradient = [](const Arrays&, const Array& dy) {
      const Array half = reference::map(dy, [](double v) { return v / 2; });
      return Arrays{half, half};
    };
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<Row> binary_rows() {
  std::vector<Row> rows;
  for (const BinaryCase& binary : out_of_place()) {
    for (const Pair& pair : operands()) {
      rows.push_back(binary_row(binary, pair.tag, pair.a, pair.b));
    }
  }
  for (const BinaryCase& binary : in_place()) {
    for (const Pair& pair : operands()) {
      // b broadcasts to x, not the reverse.
      if (pair.tag == "channel_vector_first" || pair.tag == "outer" || pair.tag == "rank_6")
        continue;
      rows.push_back(binary_row(binary, pair.tag, pair.a, pair.b));
    }
  }
  add_special(rows);
  return rows;
}

}  // namespace headroom::testing_ops
