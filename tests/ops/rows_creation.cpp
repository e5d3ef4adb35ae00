// Rows of creation, copies, casts, layout changes and random fills.
#include <cmath>

#include "core/ops/elementwise.h"
#include "tests/ops/reference_ops.h"
#include "tests/ops/row_run.h"

namespace headroom::testing_ops {
namespace {

const Shape kImage{2, 3, 5, 7};

Array same(const Arrays& in) { return in[0]; }

// A row that makes a tensor from nothing.
Row maker(const std::string& name, const Shape& shape, std::function<Tensor(const Call&)> op,
          std::function<Array()> reference, const Tolerance& tolerance = kExact) {
  // The one-element input only makes images appear in both formats.
  Row row = make_row(
      name, {{.shape = {1, 1, 1, 1}, .wants_grad = false}}, std::move(op),
      [reference = std::move(reference)](const Arrays&) { return reference(); }, tolerance);
  row.differentiable = false;
  row.keeps_format = true;
  if (shape.rank() != 4) row.inputs.clear();
  return row;
}

void add_makers(std::vector<Row>& rows) {
  for (const auto& [tag, shape] : {std::pair<std::string, Shape>{"image", kImage},
                                   {"empty", Shape{0, 4}},
                                   {"one_element", Shape{1}},
                                   {"scalar", Shape{}}}) {
    rows.push_back(maker(
        "zeros__" + tag, shape, [=](const Call& c) { return zeros(shape, c.options); },
        [=] { return reference::filled(shape, 0); }));
    rows.push_back(maker(
        "ones__" + tag, shape, [=](const Call& c) { return ones(shape, c.options); },
        [=] { return reference::filled(shape, 1); }));
    rows.push_back(maker(
        "full__" + tag, shape, [=](const Call& c) { return full(shape, -1.7, c.options); },
        [=] { return reference::filled(shape, -1.7); }));
    rows.push_back(maker(
        "from_vector__" + tag, shape,
        [=](const Call& c) {
          std::vector<float> values(static_cast<size_t>(numel_of(shape)));
          for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 3;
          return from_vector(values, shape, c.options);
        },
        [=] {
          Array out = reference::filled(shape, 0);
          for (size_t i = 0; i < out.values.size(); ++i) {
            out.values[i] = static_cast<double>(static_cast<float>(i) / 3);
          }
          return out;
        }));
  }
  rows.push_back(maker(
      "scalar__value", {}, [](const Call& c) { return scalar(0.3, c.options); },
      [] { return reference::filled({}, 0.3); }));
  for (const DType dtype : {DType::i64, DType::u8}) {
    const std::string name = name_of(dtype);
    rows.push_back(maker(
        "full__" + name, {3, 5},
        [=](const Call& c) {
          return full({3, 5}, 200, {dtype, c.options.device});
        },
        [] {
          return reference::filled({3, 5}, 200);
        }));
  }
}

void add_fills(std::vector<Row>& rows) {
  rows.push_back(maker(
      "fill___image", kImage,
      [](const Call& c) {
        Tensor x = empty(kImage, c.options);
        return fill_(x, 2.6);
      },
      [] { return reference::filled(kImage, 2.6); }));
  rows.push_back(maker(
      "zero___image", kImage,
      [](const Call& c) {
        Tensor x = ones(kImage, c.options);
        return zero_(x);
      },
      [] { return reference::filled(kImage, 0); }));
  // Draws depend on the logical index alone, so every format and view gives the same numbers.
  Row uniform = maker(
      "uniform___image", kImage,
      [](const Call& c) {
        Tensor x = empty(kImage, c.options);
        return uniform_(x, -0.5, 2);
      },
      [] { return reference::uniform(kImage, kSeed, 0, -0.5, 2); }, kRounded);
  uniform.exact_on_cuda = true;
  rows.push_back(uniform);
  Row transposed = make_row(
      "uniform___transposed",
      {{.shape = {7, 5}, .layout = Layout::transposed, .wants_grad = false, .written = true}},
      [](const Call& c) {
        Tensor x = c[0];
        return uniform_(x);
      },
      [](const Arrays&) {
        return reference::uniform({7, 5}, kSeed, 0, 0, 1);
      },
      kRounded);
  transposed.differentiable = false;
  transposed.exact_on_cuda = true;
  rows.push_back(transposed);
  rows.push_back(maker(
      "normal___image", kImage,
      [](const Call& c) {
        Tensor x = empty(kImage, c.options);
        return normal_(x, 1, 3);
      },
      [] { return reference::normal(kImage, kSeed, 0, 1, 3); },
      // Sine and logarithm err relative to the draw, before the mean is added.
      {1, 8, Scale::largest}));
  rows.push_back(maker(
      "normal___odd_count_second_draw", {13},
      [](const Call& c) {
        Tensor x = empty({13}, c.options);
        uniform_(x);
        return normal_(x);
      },
      [] { return reference::normal({13}, kSeed, 1, 0, 1); }, {1, 8, Scale::largest}));
}

void add_copies(std::vector<Row>& rows) {
  const auto copied = [&](const std::string& name, const Input& input,
                          std::function<Tensor(const Call&)> op) {
    rows.push_back(make_row(name, {input}, std::move(op), same, kExact));
  };
  const auto do_clone = [](const Call& c) { return clone(c[0]); };
  const auto to_nhwc = [](const Call& c) { return contiguous(c[0], MemoryFormat::channels_last); };
  const auto to_nchw = [](const Call& c) { return contiguous(c[0]); };
  const auto copy_over = [](const Call& c) {
    Tensor x = zeros(c[0].shape(), c.options);
    return copy_(x, c[0]);
  };
  const Input image{.shape = kImage}, sliced{.shape = kImage, .layout = Layout::sliced};
  const Input turned{.shape = {9, 6}, .layout = Layout::transposed};
  const Input repeated{.shape = {4, 3, 2, 5}, .layout = Layout::repeated};
  const Input none{.shape = {0, 3, 2, 2}}, one{.shape = {1}};
  copied("clone__image", image, do_clone);
  copied("clone__sliced", sliced, do_clone);
  copied("clone__transposed", turned, do_clone);
  copied("clone__repeated", repeated, do_clone);
  copied("clone__empty", none, do_clone);
  copied("contiguous__to_nhwc", image, to_nhwc);
  copied("contiguous__to_nchw", image, to_nchw);
  copied("contiguous__sliced_to_nhwc", sliced, to_nhwc);
  copied("contiguous__transposed", turned, to_nchw);
  copied("contiguous__repeated", repeated, to_nhwc);
  copied("contiguous__empty", none, to_nhwc);
  copied("contiguous__wide", {.shape = {2, 65, 33, 5}}, to_nhwc);
  copied("copy___image", image, copy_over);
  copied("copy___sliced", sliced, copy_over);
  copied("copy___repeated", repeated, copy_over);
  copied("copy___one_element", one, copy_over);
  copied("copy___empty", none, copy_over);
  copied("copy___into_a_slice", {.shape = {3, 4}}, [](const Call& c) {
    const Tensor wide = zeros({3, 9}, c.options);
    Tensor x = Tensor::make(wide.storage(), 2, {3, 4}, wide.strides(), wide.dtype(), {});
    return copy_(x, c[0]);
  });
  copied("clone__wide_transposed", {.shape = {131, 70}, .layout = Layout::transposed}, do_clone);
  rows.back().difference_samples = 2;

  rows.push_back(make_row(
      "empty_like__image", {{.shape = kImage, .wants_grad = false}},
      [](const Call& c) {
        Tensor x = empty_like(c[0]);
        return fill_(x, 4);
      },
      [](const Arrays&) { return reference::filled(kImage, 4); }, kExact));
  rows.back().differentiable = false;
  rows.push_back(maker(
      "empty__image", kImage,
      [](const Call& c) {
        Tensor x = empty(kImage, c.options);
        return fill_(x, 4);
      },
      [] { return reference::filled(kImage, 4); }));
  rows.push_back(maker(
      "to_device__from_the_host", kImage,
      [](const Call& c) {
        const Tensor host = full(kImage, 0.7, {c.options.dtype, Device::cpu(), c.options.format});
        return to_device(host, c.options.device);
      },
      [] { return reference::filled(kImage, 0.7); }));
}

// y is x as the target dtype stores it; the gradient comes back unchanged.
void add_casts(std::vector<Row>& rows) {
  for (const DType to : {DType::f16, DType::bf16, DType::f32, DType::f64, DType::i64, DType::u8}) {
    const std::string name = std::string("cast__to_") + name_of(to);
    const bool floating = is_floating(to);
    for (const auto& [tag, layout] : {std::pair{"", Layout::dense}, {"_sliced", Layout::sliced}}) {
      Row row = make_row(
          name + tag,
          {{.shape = kImage, .low = floating ? -300. : 0, .high = 300, .layout = layout}},
          [to](const Call& c) { return cast(c[0], to); },
          [to](const Arrays& in) { return reference::stored(in[0], to); }, kExact);
      row.differentiable = floating;
      row.gradient = [](const Arrays&, const Array& dy) { return Arrays{dy}; };
      // The gradient is rounded to x's dtype on its way back.
      row.tolerance.gradient = 1;
      rows.push_back(std::move(row));
    }
  }
  for (const auto& [tag, kind] : {std::pair{"i64", Kind::label}, {"u8", Kind::byte}}) {
    Row row = make_row(
        std::string("cast__from_") + tag,
        {{.shape = {3, 7}, .low = 0, .high = 255, .kind = kind, .wants_grad = false}},
        [](const Call& c) { return cast(c[0], c.options.dtype); }, same, kExact);
    row.differentiable = false;
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<Row> creation_rows() {
  std::vector<Row> rows;
  add_makers(rows);
  add_fills(rows);
  add_copies(rows);
  add_casts(rows);
  return rows;
}

}  // namespace headroom::testing_ops
