// Rows of matrix products and linear layers.
#include "core/ops/linalg.h"
#include "core/ops/shape_ops.h"
#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops {
namespace {

struct Product {
  std::string tag;
  int64_t m, k, n;
  Layout a = Layout::dense, b = Layout::dense;
  int samples = 60;
};

std::vector<Product> products() {
  return {
      {"small", 3, 5, 4},
      {"odd", 17, 33, 9},
      {"one_element", 1, 1, 1},
      {"row_times_column", 1, 19, 1},
      {"column_times_row", 7, 1, 6},
      {"sliced", 6, 7, 5, Layout::sliced, Layout::dense},
      {"transposed", 6, 7, 5, Layout::transposed, Layout::transposed},
      {"repeated", 6, 7, 5, Layout::repeated, Layout::dense},
      {"no_rows", 0, 4, 3},
      {"no_columns", 3, 4, 0},
      {"nothing_to_sum", 3, 0, 2},
      {"tiles", 70, 129, 66, Layout::dense, Layout::dense, 2},
      {"multiple_of_eight", 64, 128, 64, Layout::dense, Layout::dense, 2},
  };
}

}  // namespace

std::vector<Row> linalg_rows() {
  std::vector<Row> rows;
  for (const bool transpose_b : {false, true}) {
    for (const bool with_bias : {false, true}) {
      for (const Product& it : products()) {
        const Shape b = transpose_b ? Shape{it.n, it.k} : Shape{it.k, it.n};
        std::vector<Input> inputs{{.shape = {it.m, it.k}, .layout = it.a},
                                  {.shape = b, .layout = it.b}};
        if (with_bias) inputs.push_back({.shape = {it.n}});
        rows.push_back(make_row(
            std::string(transpose_b ? "linear__" : "matmul__") + it.tag +
                (with_bias ? "_bias" : ""),
            inputs,
            [=](const Call& c) {
              const Tensor bias = with_bias ? c[2] : Tensor();
              return transpose_b ? linear(c[0], c[1], bias) : matmul(c[0], c[1], bias);
            },
            [=](const Arrays& in) {
              return reference::matmul(in[0], in[1], transpose_b, with_bias ? &in[2] : nullptr);
            },
            kSum));
        rows.back().difference_samples = it.samples;
      }
    }
  }
  // A bias that stays in f32 beside half operands, as in mixed precision.
  rows.push_back(make_row(
      "linear__f32_bias",
      {{.shape = {5, 6}}, {.shape = {4, 6}}, {.shape = {4}, .kind = Kind::statistic}},
      [](const Call& c) { return linear(c[0], c[1], c[2]); },
      [](const Arrays& in) { return reference::matmul(in[0], in[1], true, &in[2]); }, kSum));
  rows.back().wide_bias = true;
  // The gradient arrives as a repeated row of stride 0 and as a transposed view.
  rows.push_back(make_row(
      "linear__repeated_gradient", {{.shape = {1, 6}}, {.shape = {4, 6}}},
      [](const Call& c) {
        return expand(linear(c[0], c[1]), {3, 4});
      },
      [](const Arrays& in) {
        return reference::expand(reference::matmul(in[0], in[1], true), {3, 4});
      },
      kSum));
  rows.push_back(make_row(
      "matmul__transposed_gradient", {{.shape = {5, 6}}, {.shape = {6, 4}}},
      [](const Call& c) { return transpose(matmul(c[0], c[1]), 0, 1); },
      [](const Arrays& in) {
        return reference::permute(reference::matmul(in[0], in[1], false), {1, 0});
      },
      kSum));
  return rows;
}

}  // namespace headroom::testing_ops
