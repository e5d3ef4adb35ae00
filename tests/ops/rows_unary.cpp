// Rows of unary ops, their in-place forms, and dropout.
#include <cmath>

#include "core/ops/elementwise.h"
#include "core/ops/shape_ops.h"
#include "tests/ops/reference_ops.h"
#include "tests/ops/row_run.h"

namespace headroom::testing_ops {
namespace {

const Shape kImage{2, 3, 5, 7};

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

struct UnaryCase {
  std::string name;
  std::function<Tensor(const Tensor&)> op;
  std::function<double(double)> value;
  Tolerance tolerance = kFunction;
  double low = -2, high = 2;
};

std::vector<UnaryCase> out_of_place() {
  // Gradients of selections are copies, but for the factor.
  const Tolerance sign{0, 0, Scale::value, 0};
  return {
      {"neg", neg, [](double x) { return -x; }, sign},
      {"exp", exp, [](double x) { return std::exp(x); }},
      {"log", log, [](double x) { return std::log(x); }, kFunction, 0.1, 4},
      {"sqrt", sqrt, [](double x) { return std::sqrt(x); }, kRounded, 0.1, 4},
      {"abs", abs, [](double x) { return std::abs(x); }, sign},
      {"relu", relu, [](double x) { return std::max(x, 0.); }, sign},
      {"leaky_relu",
       [](const Tensor& x) { return leaky_relu(x); },
       // The slope is 0.01 as f32 knows it, off by half a unit.
       [](double x) { return x > 0 ? x : 0.01 * x; },
       {1, 2, Scale::value}},
      {"leaky_relu__slope", [](const Tensor& x) { return leaky_relu(x, 0.25); },
       [](double x) { return x > 0 ? x : 0.25 * x; }},
      {"leaky_relu__negative_slope", [](const Tensor& x) { return leaky_relu(x, -0.5); },
       [](double x) { return x > 0 ? x : -0.5 * x; }},
      {"sigmoid", sigmoid, logistic, kFunction, -6, 6},
      {"tanh", tanh, [](double x) { return std::tanh(x); }, kFunction, -3, 3},
      {"silu", silu, [](double x) { return x * logistic(x); }, kFunction, -6, 6},
      {"pow__square", [](const Tensor& x) { return pow(x, 2); }, [](double x) { return x * x; }},
      {"pow__cube", [](const Tensor& x) { return pow(x, 3); }, [](double x) { return x * x * x; }},
      {"pow__root", [](const Tensor& x) { return pow(x, 0.5); },
       [](double x) { return std::pow(x, 0.5); }, kFunction, 0.2, 4},
      {"pow__inverse", [](const Tensor& x) { return pow(x, -1); }, [](double x) { return 1 / x; },
       kFunction, 0.3, 3},
      {"pow__zero", [](const Tensor& x) { return pow(x, 0); }, [](double) { return 1; }},
      // The addend is rounded to f32 first, which counts against the addend, not the sum.
      {"add__number",
       [](const Tensor& x) { return add(x, 1.3); },
       [](double x) { return x + 1.3; },
       {1, 2, Scale::largest}},
      {"mul__number",
       [](const Tensor& x) { return mul(x, -0.7); },
       [](double x) { return -0.7 * x; },
       {1, 2, Scale::value}},
  };
}

std::function<Tensor(const Tensor&)> on_copy(Tensor& (*op)(Tensor&)) {
  return [op](const Tensor& x) {
    Tensor y = clone(x);
    op(y);
    return y;
  };
}

std::vector<UnaryCase> in_place() {
  return {
      {"relu_", on_copy(relu_), [](double x) { return std::max(x, 0.); }, kExact},
      {"sigmoid_", on_copy(sigmoid_), logistic},
      {"tanh_", on_copy(tanh_), [](double x) { return std::tanh(x); }},
      {"neg_", on_copy(neg_), [](double x) { return -x; }, kExact},
      {"exp_", on_copy(exp_), [](double x) { return std::exp(x); }},
      {"sqrt_", on_copy(sqrt_), [](double x) { return std::sqrt(x); }, kRounded, 0.1, 4},
      {"leaky_relu_",
       [](const Tensor& x) {
         Tensor y = clone(x);
         return leaky_relu_(y, 0.1);
       },
       [](double x) { return x > 0 ? x : 0.1 * x; },
       {1, 2, Scale::value}},
      {"add___number",
       [](const Tensor& x) {
         Tensor y = clone(x);
         return add_(y, -0.6);
       },
       [](double x) { return x - 0.6; },
       {1, 2, Scale::largest}},
      {"mul___number",
       [](const Tensor& x) {
         Tensor y = clone(x);
         return mul_(y, 1.9);
       },
       [](double x) { return 1.9 * x; },
       {1, 2, Scale::value}},
      // In place on the result of another op: relu_ keeps its output, which is what exp kept.
      {"relu___after_mul",
       [](const Tensor& x) {
         Tensor y = mul(x, 2.);
         return relu_(y);
       },
       [](double x) { return std::max(2 * x, 0.); }, kExact},
      {"fill___forgets_its_input",
       [](const Tensor& x) {
         Tensor y = clone(x);
         fill_(y, 3);
         return mul(y, x);
       },
       [](double x) { return 3 * x; }, kRounded},
  };
}

// In-place forms that overwrite what their derivative needs, and so take no recorded gradient.
std::vector<UnaryCase> in_place_without_gradient() {
  return {
      {"log_", on_copy(log_), [](double x) { return std::log(x); }, kFunction, 0.1, 4},
      {"abs_", on_copy(abs_), [](double x) { return std::abs(x); }, kExact},
      {"silu_", on_copy(silu_), [](double x) { return x * logistic(x); }, kFunction, -6, 6},
      {"pow___cube",
       [](const Tensor& x) {
         Tensor y = clone(x);
         return pow_(y, 3);
       },
       [](double x) { return x * x * x; }},
      {"leaky_relu___negative_slope",
       [](const Tensor& x) {
         Tensor y = clone(x);
         return leaky_relu_(y, -0.5);
       },
       [](double x) { return x > 0 ? x : -0.5 * x; }},
  };
}

Row unary_row(const UnaryCase& unary, const std::string& tag, Input input) {
  input.low = unary.low;
  input.high = unary.high;
  const bool has_tag =
      unary.name.find("__") != std::string::npos && unary.name.find("___") == std::string::npos;
  Row row = make_row(
      unary.name + (has_tag ? "_" : "__") + tag, {input},
      [op = unary.op](const Call& c) { return op(c[0]); },
      [value = unary.value](const Arrays& in) { return reference::map(in[0], value); },
      unary.tolerance);
  row.keeps_format = true;
  if (numel_of(input.shape) > 10000) row.difference_samples = 1;
  return row;
}

// Infinities and NaN: what the mathematics says, and NaN in, NaN out.
Row special_row(const UnaryCase& unary) {
  Row row =
      unary_row(unary, "specials",
                {.shape = {5}, .wants_grad = false, .values = {NAN, INFINITY, -INFINITY, 0, -0.0}});
  row.differentiable = false;
  return row;
}

// At the kink itself, where PyTorch's choice of derivative holds.
void add_kinks(std::vector<Row>& rows) {
  const auto add = [&](const std::string& name, std::function<Tensor(const Call&)> op,
                       double derivative) {
    Row row = make_row(name, {{.shape = {3}, .values = {0, -0.0, 0}}}, std::move(op),
                       [](const Arrays& in) { return in[0]; }, {0, 0});
    row.gradient = [derivative](const Arrays&, const Array& dy) {
      return Arrays{reference::map(dy, [derivative](double v) { return derivative * v; })};
    };
    rows.push_back(std::move(row));
  };
  add(
      "abs__at_0", [](const Call& c) { return abs(c[0]); }, 0);
  add(
      "relu__at_0", [](const Call& c) { return relu(c[0]); }, 0);
  add(
      "leaky_relu__at_0", [](const Call& c) { return leaky_relu(c[0], 0.25); }, 0.25);
  add(
      "leaky_relu___at_0",
      [](const Call& c) {
        Tensor y = clone(c[0]);
        return leaky_relu_(y, 0);
      },
      0);
}

// In place on a part of a tensor: the rest stays. No gradients, which views do not take.
void add_parts(std::vector<Row>& rows) {
  const auto add = [&](const std::string& name, std::function<void(Tensor&)> write,
                       std::function<double(double)> value) {
    Row row = make_row(
        name, {{.shape = {2, 3, 4, 6}, .wants_grad = false}},
        [write = std::move(write)](const Call& c) {
          const Tensor whole = clone(c[0]);
          Tensor part = slice(slice(whole, 3, 1, 4), 1, 1, 3);
          write(part);
          return whole;
        },
        [value = std::move(value)](const Arrays& in) {
          const auto cut = [&](int axis, int64_t begin, int64_t end, const Array& of) {
            return reference::slice(of, axis, begin, end);
          };
          const Array& x = in[0];
          const Array below = cut(1, 1, 3, x);
          const Array inside = reference::map(cut(3, 1, 4, below), value);
          const Array row =
              reference::concat({cut(3, 0, 1, below), inside, cut(3, 4, 6, below)}, 3);
          return reference::concat({cut(1, 0, 1, x), row}, 1);
        },
        kRounded);
    row.differentiable = false;
    row.keeps_format = true;
    rows.push_back(std::move(row));
  };
  add(
      "relu___on_a_part", [](Tensor& x) { relu_(x); }, [](double v) { return std::max(v, 0.); });
  add(
      "fill___on_a_part", [](Tensor& x) { fill_(x, 7); }, [](double) { return 7; });
  add(
      "mul___on_a_part", [](Tensor& x) { mul_(x, 2.); }, [](double v) { return 2 * v; });
  add(
      "add___on_a_part", [](Tensor& x) { add_(x, x); }, [](double v) { return 2 * v; });
}

void add_dropout(std::vector<Row>& rows) {
  const auto add = [&](const std::string& name, const Input& input, double p,
                       std::function<Tensor(const Call&)> op) {
    Row row = make_row(name, {input}, std::move(op),
                       [p](const Arrays& in) { return reference::dropout(in[0], p, kSeed, 0); },
                       {1, 2, Scale::value});
    row.exact_on_cuda = row.exact_gradient_on_cuda = true;
    rows.push_back(std::move(row));
  };
  const auto drop = [](double p) { return [p](const Call& c) { return dropout(c[0], {.p = p}); }; };
  add("dropout__half", {.shape = kImage}, 0.5, drop(0.5));
  add("dropout__third", {.shape = {7, 5}}, 0.3, drop(0.3));
  add("dropout__transposed", {.shape = {7, 5}, .layout = Layout::transposed}, 0.3, drop(0.3));
  add("dropout__sliced", {.shape = kImage, .layout = Layout::sliced}, 0.3, drop(0.3));
  add("dropout__none", {.shape = {7, 5}}, 0,
      [](const Call& c) { return mul(dropout(c[0], {.p = 0}), 1.); });
  add("dropout__evaluation", {.shape = {7, 5}}, 0,
      [](const Call& c) { return mul(dropout(c[0], {.p = 0.4, .training = false}), 1.); });
  add("dropout__empty", {.shape = {0, 5}}, 0.5, drop(0.5));
  rows.push_back(make_row(
      "dropout__all", {{.shape = {7, 5}}}, drop(1),
      [](const Arrays& in) { return reference::filled(in[0].shape, 0); }, kExact));
}

}  // namespace

std::vector<Row> unary_rows() {
  std::vector<Row> rows;
  const std::pair<std::string, Input> inputs[] = {
      {"image", {.shape = kImage}},
      {"sliced_image", {.shape = {1, 3, 5, 3}, .layout = Layout::sliced}},
      {"transposed", {.shape = {7, 5}, .layout = Layout::transposed}},
      {"repeated", {.shape = {3, 11}, .layout = Layout::repeated}},
      {"scalar", {.shape = {}}},
      {"empty", {.shape = {3, 0}}},
      {"large", {.shape = {2, 3, 131, 97}}},
  };
  for (const UnaryCase& unary : out_of_place()) {
    for (const auto& [tag, input] : inputs) rows.push_back(unary_row(unary, tag, input));
    rows.push_back(special_row(unary));
  }
  for (const UnaryCase& unary : in_place()) {
    for (const auto& [tag, input] : {inputs[0], inputs[1], inputs[4], inputs[5]}) {
      rows.push_back(unary_row(unary, tag, input));
    }
  }
  for (const UnaryCase& unary : in_place_without_gradient()) {
    for (auto [tag, input] : {inputs[0], inputs[1], inputs[4], inputs[5]}) {
      input.wants_grad = false;
      rows.push_back(unary_row(unary, tag, input));
      rows.back().differentiable = false;
    }
  }
  add_kinks(rows);
  add_parts(rows);
  add_dropout(rows);
  return rows;
}

}  // namespace headroom::testing_ops
