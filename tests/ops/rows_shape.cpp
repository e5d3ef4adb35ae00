// Rows of views and concatenation. All of them move numbers without changing them.
#include "core/ops/elementwise.h"
#include "core/ops/shape_ops.h"
#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops {
namespace {

const Shape kImage{2, 3, 4, 5};

Row moved(const std::string& name, const Input& input, std::function<Tensor(const Tensor&)> op,
          std::function<Array(const Array&)> reference) {
  return make_row(
      name, {input}, [op = std::move(op)](const Call& c) { return op(c[0]); },
      [reference = std::move(reference)](const Arrays& in) { return reference(in[0]); }, kExact);
}

void add_reshapes(std::vector<Row>& rows) {
  struct Case {
    std::string tag;
    Input x;
    std::vector<int64_t> wanted;
    Shape shape;
  };
  const Case cases[] = {
      {"to_matrix", {.shape = kImage}, {2, -1}, {2, 60}},
      {"to_vector", {.shape = kImage}, {-1}, {120}},
      {"to_more_axes", {.shape = {6, 10}}, {2, 3, 2, 5}, {2, 3, 2, 5}},
      {"same_shape", {.shape = {6, 10}}, {6, 10}, {6, 10}},
      {"one_pixel_image", {.shape = {4, 6, 1, 1}}, {4, 6}, {4, 6}},
      {"sliced", {.shape = kImage, .layout = Layout::sliced}, {6, 20}, {6, 20}},
      {"transposed", {.shape = {6, 4}, .layout = Layout::transposed}, {3, 8}, {3, 8}},
      {"repeated", {.shape = {6, 4}, .layout = Layout::repeated}, {-1}, {24}},
      {"to_scalar", {.shape = {1, 1}}, {}, {}},
      {"from_scalar", {.shape = {}}, {1, 1}, {1, 1}},
      {"empty", {.shape = {0, 4}}, {2, 0}, {2, 0}},
  };
  for (const Case& it : cases) {
    rows.push_back(moved(
        "reshape__" + it.tag, it.x,
        // mul takes the place of whatever reads the view.
        [wanted = it.wanted](const Tensor& x) { return mul(reshape(x, wanted), 1.); },
        [shape = it.shape](const Array& x) { return reference::reshape(x, shape); }));
  }
  const auto flattened = [&](const std::string& tag, const Input& x, int first, int last,
                             const Shape& shape) {
    rows.push_back(moved(
        "flatten__" + tag, x, [=](const Tensor& t) { return mul(flatten(t, first, last), 1.); },
        [=](const Array& array) { return reference::reshape(array, shape); }));
  };
  flattened("all", {.shape = kImage}, 0, -1, {120});
  flattened("features", {.shape = kImage}, 1, -1, {2, 60});
  flattened("middle", {.shape = kImage}, 1, 2, {2, 12, 5});
  flattened("sliced", {.shape = kImage, .layout = Layout::sliced}, 1, 3, {2, 60});
  flattened("scalar", {.shape = {}}, 0, -1, {1});
  flattened("empty", {.shape = {0, 3, 2, 2}}, 1, -1, {0, 12});
}

void add_permutations(std::vector<Row>& rows) {
  const auto permuted = [&](const std::string& tag, const Input& x, std::vector<int> axes) {
    rows.push_back(moved(
        "permute__" + tag, x, [=](const Tensor& t) { return permute(t, axes); },
        [=](const Array& array) { return reference::permute(array, axes); }));
  };
  permuted("nchw_to_nhwc", {.shape = kImage}, {0, 2, 3, 1});
  permuted("negative_axes", {.shape = kImage}, {-1, 0, -2, 1});
  permuted("identity", {.shape = kImage}, {0, 1, 2, 3});
  permuted("rank_5", {.shape = {2, 1, 3, 2, 2}}, {4, 2, 0, 3, 1});
  permuted("rank_6", {.shape = {2, 1, 3, 2, 2, 3}}, {5, 2, 0, 4, 3, 1});
  permuted("sliced", {.shape = kImage, .layout = Layout::sliced}, {3, 1, 0, 2});
  permuted("empty", {.shape = {0, 3, 2}}, {2, 0, 1});
  const auto transposed = [&](const std::string& tag, const Input& x, int a, int b) {
    std::vector<int> axes;
    for (int i = 0; i < x.shape.rank(); ++i) axes.push_back(i);
    std::swap(axes[static_cast<size_t>(a)], axes[static_cast<size_t>(b)]);
    rows.push_back(moved(
        "transpose__" + tag, x, [=](const Tensor& t) { return transpose(t, a, b); },
        [=](const Array& array) { return reference::permute(array, axes); }));
  };
  transposed("matrix", {.shape = {4, 7}}, 0, 1);
  transposed("matrix_twice", {.shape = {4, 7}, .layout = Layout::transposed}, 0, 1);
  transposed("batch_and_channels", {.shape = kImage}, 0, 1);
  rows.push_back(moved(
      "permute__then_read", {.shape = kImage},
      [](const Tensor& t) {
        return contiguous(permute(t, {0, 2, 3, 1}));
      },
      [](const Array& array) {
        return reference::permute(array, {0, 2, 3, 1});
      }));
}

void add_slices(std::vector<Row>& rows) {
  struct Case {
    std::string tag;
    Input x;
    int axis;
    int64_t begin, end, from, to;  // as asked, and counted from the front
  };
  const Case cases[] = {
      {"batch", {.shape = {5, 3, 2, 4}}, 0, 1, 4, 1, 4},
      {"channels", {.shape = {2, 7, 3, 4}}, 1, 2, 5, 2, 5},
      {"columns", {.shape = {2, 3, 4, 7}}, -1, 0, 3, 0, 3},
      {"negative", {.shape = {4, 9}}, 1, -5, -1, 4, 8},
      {"all", {.shape = {4, 9}}, 0, 0, 4, 0, 4},
      {"nothing", {.shape = {4, 9}}, 1, 3, 3, 3, 3},
      {"sliced", {.shape = {2, 3, 4, 7}, .layout = Layout::sliced}, 3, 2, 6, 2, 6},
      {"transposed", {.shape = {6, 5}, .layout = Layout::transposed}, 0, 1, 3, 1, 3},
      {"repeated", {.shape = {6, 5}, .layout = Layout::repeated}, 0, 2, 4, 2, 4},
  };
  for (const Case& it : cases) {
    rows.push_back(moved(
        "slice__" + it.tag, it.x,
        [=](const Tensor& t) { return slice(t, it.axis, it.begin, it.end); },
        [=](const Array& array) { return reference::slice(array, it.axis, it.from, it.to); }));
    rows.back().keeps_format = true;
  }
  // Two slices of one tensor: their gradients meet in the engine.
  rows.push_back(make_row(
      "slice__overlapping", {{.shape = {3, 6}}},
      [](const Call& c) { return mul(slice(c[0], 1, 0, 4), slice(c[0], 1, 2, 6)); },
      [](const Arrays& in) {
        return reference::zip(reference::slice(in[0], 1, 0, 4), reference::slice(in[0], 1, 2, 6),
                              [](double a, double b) { return a * b; });
      }));
}

void add_expansions(std::vector<Row>& rows) {
  // meant: what a shape with -1 in it comes to.
  const auto expanded = [&](const std::string& tag, const Input& x, std::vector<int64_t> shape,
                            std::vector<int64_t> meant = {}) {
    if (meant.empty()) meant = shape;
    Row row = moved(
        "expand__" + tag, x, [=](const Tensor& t) { return expand(t, shape); },
        [=](const Array& array) { return reference::expand(array, Shape(meant)); });
    // The gradient is a sum over the copies.
    row.tolerance.scale = Scale::terms;
    row.tolerance.gradient = 4;
    row.exact_gradient_on_cuda = false;
    rows.push_back(std::move(row));
  };
  expanded("rows", {.shape = {1, 5}}, {4, 5});
  expanded("columns", {.shape = {5, 1}}, {5, 3});
  expanded("new_axes", {.shape = {5}}, {2, 3, 5});
  expanded("channels_of_an_image", {.shape = {1, 3, 1, 1}}, {2, 3, 4, 5});
  expanded("images", {.shape = {1, 3, 4, 5}}, {3, 3, 4, 5});
  expanded("scalar", {.shape = {}}, {2, 3});
  expanded("same_shape", {.shape = {4, 5}}, {4, 5});
  expanded("to_nothing", {.shape = {1, 5}}, {0, 5});
  expanded("sliced", {.shape = {1, 5}, .layout = Layout::sliced}, {3, 5});
  expanded("axes_kept", {.shape = {3, 1, 1}}, {2, -1, 4, -1}, {2, 3, 4, 1});
}

void add_concats(std::vector<Row>& rows) {
  const auto joined = [&](const std::string& tag, const std::vector<Input>& parts, int axis) {
    rows.push_back(make_row(
        "concat__" + tag, parts, [=](const Call& c) { return concat(c.inputs, axis); },
        [=](const Arrays& in) { return reference::concat(in, axis); }, kExact));
    rows.back().keeps_format = true;
  };
  const Input image{.shape = kImage};
  joined("channels", {image, {.shape = {2, 1, 4, 5}}, image}, 1);
  joined("batch", {image, {.shape = {1, 3, 4, 5}}}, 0);
  joined("columns", {image, {.shape = {2, 3, 4, 2}}}, -1);
  joined("one_part", {image}, 1);
  joined("vectors", {{.shape = {3}}, {.shape = {4}}}, 0);
  joined("with_an_empty_part", {{.shape = {3, 2}}, {.shape = {3, 0}}, {.shape = {3, 1}}}, 1);
  joined("of_nothing", {{.shape = {0, 2}}, {.shape = {0, 3}}}, 1);
  joined("views",
         {{.shape = {4, 6}, .layout = Layout::transposed},
          {.shape = {4, 6}, .layout = Layout::sliced},
          {.shape = {4, 6}, .layout = Layout::repeated}},
         0);
  joined("formats", {image, {.shape = kImage, .format = Format::nhwc}}, 1);
}

}  // namespace

std::vector<Row> shape_rows() {
  std::vector<Row> rows;
  add_reshapes(rows);
  add_permutations(rows);
  add_slices(rows);
  add_expansions(rows);
  add_concats(rows);
  return rows;
}

}  // namespace headroom::testing_ops
