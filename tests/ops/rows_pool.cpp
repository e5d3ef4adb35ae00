// Rows of max, average and global average pooling.
#include <cmath>

#include "core/ops/pool.h"
#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops {
namespace {

const Shape kImage{2, 3, 7, 8};

struct PoolCase {
  std::string tag;
  Input x;
  Pool2dOptions options = {};
};

// For both kinds of pooling.
std::vector<PoolCase> shared_cases() {
  return {
      {"2x2", {.shape = kImage}},
      {"3x3_stride_2_padded",
       {.shape = kImage},
       {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}},
      {"overlapping", {.shape = kImage}, {.kernel = {3, 3}, .stride = {1, 1}}},
      {"gaps_between_windows", {.shape = kImage}, {.kernel = {2, 2}, .stride = {3, 3}}},
      {"height_and_width_differ",
       {.shape = kImage},
       {.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 0}}},
      {"ceil", {.shape = kImage}, {.kernel = {2, 2}, .ceil_mode = true}},
      {"ceil_stride_3",
       {.shape = {1, 2, 8, 6}},
       {.kernel = {2, 2}, .stride = {3, 3}, .ceil_mode = true}},
      {"ceil_padded",
       {.shape = kImage},
       {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true}},
      {"ceil_wide_stride_padded",
       {.shape = {1, 2, 6, 5}},
       {.kernel = {3, 3}, .stride = {3, 4}, .padding = {1, 1}, .ceil_mode = true}},
      {"window_of_input_size", {.shape = kImage}, {.kernel = {7, 8}}},
      {"1x1", {.shape = kImage}, {.kernel = {1, 1}}},
      {"one_element", {.shape = {1, 1, 1, 1}}, {.kernel = {1, 1}}},
      {"no_images", {.shape = {0, 3, 4, 4}}},
      {"odd_channels", {.shape = {2, 5, 4, 6}}},
      {"many_channels", {.shape = {1, 40, 4, 4}}},
      {"large", {.shape = {2, 16, 96, 96}}, {.kernel = {3, 3}, .stride = {2, 2}}},
      {"sliced", {.shape = kImage, .layout = Layout::sliced}},
      {"transposed", {.shape = kImage, .layout = Layout::transposed}},
      {"repeated", {.shape = kImage, .layout = Layout::repeated}},
  };
}

void add_max(std::vector<Row>& rows) {
  std::vector<PoolCase> cases = shared_cases();
  cases.push_back({"dilated", {.shape = kImage}, {.kernel = {3, 2}, .dilation = {2, 3}}});
  cases.push_back({"dilated_overlapping",
                   {.shape = kImage},
                   {.kernel = {2, 3}, .stride = {1, 1}, .padding = {1, 1}, .dilation = {2, 2}}});
  cases.push_back({"dilated_ceil",
                   {.shape = kImage},
                   {.kernel = {2, 2}, .stride = {2, 3}, .dilation = {2, 2}, .ceil_mode = true}});
  // Beyond 255 elements the offsets take eight bytes each.
  cases.push_back(
      {"window_of_256", {.shape = {1, 2, 17, 18}}, {.kernel = {16, 16}, .stride = {1, 1}}});
  cases.push_back({"below_zero",
                   {.shape = kImage, .low = -9, .high = -8},
                   {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}});
  for (const PoolCase& it : cases) {
    rows.push_back(make_row(
        "max_pool2d__" + it.tag, {it.x},
        [options = it.options](const Call& c) { return max_pool2d(c[0], options); },
        [options = it.options](const Arrays& in) { return reference::max_pool2d(in[0], options); },
        // Overlapping windows sum their gradients, in an order of their own.
        {0, 0}));
  }
  // Of equals the first in row-major order gets the gradient; NaN wins.
  Row ties = make_row(
      "max_pool2d__ties_and_nan",
      {{.shape = {1, 1, 2, 6}, .values = {1, 1, 0, 4, NAN, 9, 1, 1, 4, 4, 2, NAN}}},
      [](const Call& c) { return max_pool2d(c[0]); },
      [](const Arrays& in) { return reference::max_pool2d(in[0], {}); }, kExact);
  ties.gradient = [](const Arrays&, const Array& dy) {
    const double a = dy.values[0], b = dy.values[1], c = dy.values[2];
    return Arrays{{{1, 1, 2, 6}, {a, 0, 0, b, c, 0, 0, 0, 0, 0, 0, 0}}};
  };
  rows.push_back(std::move(ties));
}

void add_average(std::vector<Row>& rows) {
  std::vector<PoolCase> cases = shared_cases();
  for (const PoolCase& it : shared_cases()) {
    if (it.options.padding == std::array<int64_t, 2>{0, 0} && !it.options.ceil_mode) continue;
    PoolCase without = it;
    without.tag += "_real_elements_only";
    without.options.count_padding = false;
    cases.push_back(std::move(without));
  }
  for (const PoolCase& it : cases) {
    rows.push_back(make_row(
        "avg_pool2d__" + it.tag, {it.x},
        [options = it.options](const Call& c) { return avg_pool2d(c[0], options); },
        [options = it.options](const Arrays& in) { return reference::avg_pool2d(in[0], options); },
        kSum));
  }
  for (const auto& [tag, x] : {std::pair<std::string, Input>{"image", {.shape = kImage}},
                               {"one_pixel", {.shape = {3, 4, 1, 1}}},
                               {"no_images", {.shape = {0, 4, 3, 3}}},
                               {"many_channels", {.shape = {2, 70, 7, 7}}},
                               {"sliced", {.shape = kImage, .layout = Layout::sliced}}}) {
    rows.push_back(make_row(
        "global_avg_pool2d__" + tag, {x}, [](const Call& c) { return global_avg_pool2d(c[0]); },
        [](const Arrays& in) {
          return reference::sum(in[0], {2, 3}, true, true);
        },
        kSum));
    rows.back().difference_samples = 20;
  }
}

}  // namespace

std::vector<Row> pool_rows() {
  std::vector<Row> rows;
  add_max(rows);
  add_average(rows);
  for (Row& row : rows) {
    row.keeps_format = true;
    if (numel_of(row.inputs[0].shape) > 10000) row.difference_samples = 1;
  }
  return rows;
}

}  // namespace headroom::testing_ops
