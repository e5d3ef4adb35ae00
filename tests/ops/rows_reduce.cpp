// Rows of sums, means, maxima and their places.
#include <cmath>

#include "core/ops/reduce.h"
#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops {
namespace {

const Shape kImage{2, 3, 5, 7};

struct Reduction {
  std::string tag;
  Input input;
  ReduceOptions options = {};
};

std::vector<Reduction> reductions() {
  return {
      {"all", {.shape = kImage}},
      {"all_kept", {.shape = kImage}, {{}, true}},
      {"batch", {.shape = kImage}, {{0}}},
      {"channels", {.shape = kImage}, {{1}}},
      {"rows", {.shape = kImage}, {{-1}}},
      {"pixels", {.shape = kImage}, {{2, 3}}},
      {"pixels_kept", {.shape = kImage}, {{2, 3}, true}},
      {"per_channel", {.shape = kImage}, {{0, 2, 3}}},
      {"outer_axes", {.shape = kImage}, {{0, -1}, true}},
      {"sliced", {.shape = kImage, .layout = Layout::sliced}, {{1, 3}}},
      {"transposed", {.shape = {9, 6}, .layout = Layout::transposed}, {{0}}},
      {"transposed_last", {.shape = {9, 6}, .layout = Layout::transposed}, {{1}}},
      {"repeated", {.shape = {4, 6}, .layout = Layout::repeated}, {{0}}},
      {"long_rows", {.shape = {3, 1031}}, {{1}}},
      {"long_columns", {.shape = {1031, 3}}, {{0}}},
      {"rank_6", {.shape = {2, 3, 2, 1, 3, 2}}, {{0, 2, 4}}},
      {"many_rows", {.shape = {2, 5, 64, 64}}, {{0, 2, 3}}},
      {"scalar", {.shape = {}}},
      {"one_element", {.shape = {1, 1}}, {{1}}},
      {"unit_axis", {.shape = {4, 1, 3}}, {{1}}},
  };
}

void add_sums(std::vector<Row>& rows) {
  for (const bool average : {false, true}) {
    const std::string name = average ? "mean__" : "sum__";
    std::vector<Reduction> cases = reductions();
    cases.push_back({"empty_axis_kept", {.shape = {0, 4}}, {{1}}});
    // The sum of nothing is 0, its mean NaN.
    cases.push_back({"of_nothing", {.shape = {0, 4}}, {{0}}});
    cases.push_back({"of_nothing_at_all", {.shape = {2, 0}}});
    for (const Reduction& it : cases) {
      rows.push_back(make_row(
          name + it.tag, {it.input},
          [average, options = it.options](const Call& c) {
            return average ? mean(c[0], options) : sum(c[0], options);
          },
          [average, options = it.options](const Arrays& in) {
            return reference::sum(in[0], options.axes, options.keep_dims, average);
          },
          kSum));
      rows.back().difference_samples = numel_of(it.input.shape) > 10000 ? 2 : 40;
    }
  }
}

void add_maxima(std::vector<Row>& rows) {
  struct Case {
    std::string tag;
    Input input;
    int axis;
    bool keep_dims = false;
  };
  const Case cases[] = {
      {"batch", {.shape = kImage}, 0},
      {"channels", {.shape = kImage}, 1},
      {"channels_kept", {.shape = kImage}, 1, true},
      {"rows", {.shape = kImage}, -1},
      {"sliced", {.shape = kImage, .layout = Layout::sliced}, 3},
      {"transposed", {.shape = {9, 6}, .layout = Layout::transposed}, 1},
      {"repeated", {.shape = {4, 6}, .layout = Layout::repeated}, 1},
      {"long_rows", {.shape = {3, 515}}, 1},
      {"one_element", {.shape = {1}}, 0},
      {"no_rows", {.shape = {0, 4}}, 1},
      // The first of equals is taken and gets the whole gradient.
      {"ties", {.shape = {2, 4}, .values = {1, 3, 3, 0, 2, 2, 2, 2}}, 1},
      {"nan", {.shape = {2, 4}, .values = {1, NAN, 3, NAN, 2, 5, -INFINITY, INFINITY}}, 1},
  };
  for (const Case& it : cases) {
    Row row;
    row.name = "max__along_" + it.tag;
    row.covers = {"max"};
    row.inputs = {it.input};
    row.op = [=](const Call& c) {
      const MaxResult out = max(c[0], it.axis, it.keep_dims);
      return std::vector<Tensor>{out.values, out.indices};
    };
    row.reference = [=](const Arrays& in) {
      return reference::max_along(in[0], it.axis, it.keep_dims);
    };
    row.tolerance = kExact;
    row.exact_on_cuda = row.exact_gradient_on_cuda = true;
    if (!it.input.values.empty()) {
      row.gradient = [=](const Arrays& in, const Array& dy) {
        const Array places = reference::max_along(in[0], it.axis, false)[1];
        Array dx = reference::filled(in[0].shape, 0);
        for (size_t i = 0; i < places.values.size(); ++i) {
          dx.values[i * 4 + static_cast<size_t>(places.values[i])] = dy.values[i];
        }
        return Arrays{dx};
      };
    }
    rows.push_back(row);

    Row places = make_row(
        "argmax__" + it.tag, {it.input},
        [=](const Call& c) { return argmax(c[0], it.axis, it.keep_dims); },
        [=](const Arrays& in) { return reference::max_along(in[0], it.axis, it.keep_dims)[1]; },
        kExact);
    places.differentiable = false;
    rows.push_back(std::move(places));
  }
  for (const auto& [tag, input] : {std::pair<std::string, Input>{"image", {.shape = kImage}},
                                   {"sliced", {.shape = kImage, .layout = Layout::sliced}},
                                   {"transposed", {.shape = {4, 5}, .layout = Layout::transposed}},
                                   {"scalar", {.shape = {}}}}) {
    rows.push_back(make_row(
        "max__of_all_" + tag, {input}, [](const Call& c) { return max(c[0]); },
        [](const Arrays& in) {
          Array out = reference::filled({}, in[0].values[0]);
          for (const double value : in[0].values) out.values[0] = std::max(out.values[0], value);
          return out;
        },
        kExact));
  }
}

}  // namespace

std::vector<Row> reduce_rows() {
  std::vector<Row> rows;
  add_sums(rows);
  add_maxima(rows);
  return rows;
}

}  // namespace headroom::testing_ops
