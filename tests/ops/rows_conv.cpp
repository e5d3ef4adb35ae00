// Rows of conv2d.
#include "core/ops/conv.h"
#include "core/ops/elementwise.h"
#include "core/ops/shape_ops.h"
#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops {
namespace {

struct ConvCase {
  std::string tag;
  Input x, w;
  Conv2dOptions options = {};
  bool bias = false;
  int samples = 40;
};

std::vector<ConvCase> cases() {
  const Conv2dOptions same{.padding = {1, 1}};
  return {
      {"3x3", {.shape = {2, 4, 6, 5}}, {.shape = {3, 4, 3, 3}}},
      {"3x3_padded", {.shape = {2, 4, 6, 5}}, {.shape = {5, 4, 3, 3}}, same},
      {"3x3_bias", {.shape = {2, 4, 6, 5}}, {.shape = {5, 4, 3, 3}}, same, true},
      {"1x1", {.shape = {2, 6, 4, 5}}, {.shape = {7, 6, 1, 1}}},
      {"1x1_bias", {.shape = {2, 8, 4, 4}}, {.shape = {16, 8, 1, 1}}, {}, true},
      {"1x1_stride_2", {.shape = {2, 6, 5, 7}}, {.shape = {4, 6, 1, 1}}, {.stride = {2, 2}}},
      {"1x1_padded", {.shape = {1, 3, 3, 4}}, {.shape = {2, 3, 1, 1}}, same},
      {"stride_2", {.shape = {2, 3, 7, 8}}, {.shape = {4, 3, 3, 3}}, {{2, 2}, {1, 1}}},
      {"stride_3_leaves_a_rest", {.shape = {1, 2, 9, 7}}, {.shape = {3, 2, 2, 2}}, {{3, 3}}},
      {"height_and_width_differ",
       {.shape = {2, 3, 9, 5}},
       {.shape = {4, 3, 5, 2}},
       {{2, 1}, {2, 1}, {1, 2}},
       true},
      {"dilated", {.shape = {2, 4, 9, 8}}, {.shape = {3, 4, 3, 3}}, {{1, 1}, {2, 2}, {2, 2}}},
      {"dilated_stride_2",
       {.shape = {1, 2, 11, 9}},
       {.shape = {3, 2, 3, 3}},
       {{2, 2}, {1, 2}, {2, 1}}},
      {"groups",
       {.shape = {2, 6, 5, 5}},
       {.shape = {4, 3, 3, 3}},
       {.padding = {1, 1}, .groups = 2},
       true},
      {"groups_of_three",
       {.shape = {1, 9, 5, 4}},
       {.shape = {6, 3, 1, 3}},
       {.stride = {1, 2}, .groups = 3}},
      {"depthwise",
       {.shape = {2, 8, 6, 5}},
       {.shape = {8, 1, 3, 3}},
       {.padding = {1, 1}, .groups = 8}},
      {"depthwise_bias_stride_2",
       {.shape = {2, 5, 7, 7}},
       {.shape = {5, 1, 3, 3}},
       {.stride = {2, 2}, .padding = {1, 1}, .groups = 5},
       true},
      {"depthwise_two_each",
       {.shape = {1, 3, 5, 6}},
       {.shape = {6, 1, 3, 3}},
       {.padding = {1, 1}, .groups = 3}},
      {"odd_channels", {.shape = {2, 7, 5, 5}}, {.shape = {5, 7, 3, 3}}, same, true},
      {"rgb_stem_3x3", {.shape = {2, 3, 8, 8}}, {.shape = {8, 3, 3, 3}}, same},
      {"rgb_stem_7x7_stride_2",
       {.shape = {1, 3, 13, 13}},
       {.shape = {4, 3, 7, 7}},
       {{2, 2}, {3, 3}},
       false,
       10},
      {"one_channel_5x5", {.shape = {2, 1, 9, 9}}, {.shape = {6, 1, 5, 5}}, {}, true},
      {"one_channel_5x5_padded",
       {.shape = {2, 1, 7, 8}},
       {.shape = {4, 1, 5, 5}},
       {.padding = {2, 2}}},
      {"two_channels", {.shape = {2, 2, 6, 6}}, {.shape = {3, 2, 3, 3}}, same},
      {"kernel_of_input_size", {.shape = {2, 3, 4, 5}}, {.shape = {4, 3, 4, 5}}},
      {"kernel_2x2_padded", {.shape = {1, 3, 4, 4}}, {.shape = {2, 3, 2, 2}}, same},
      {"padding_beyond_the_kernel",
       {.shape = {1, 2, 3, 3}},
       {.shape = {2, 2, 2, 2}},
       {.padding = {3, 2}}},
      {"one_element", {.shape = {1, 1, 1, 1}}, {.shape = {1, 1, 1, 1}}, {}, true},
      {"one_pixel_padded", {.shape = {2, 3, 1, 1}}, {.shape = {4, 3, 3, 3}}, same},
      {"one_row", {.shape = {1, 4, 1, 9}}, {.shape = {3, 4, 1, 3}}, {.padding = {0, 1}}},
      {"no_images", {.shape = {0, 4, 5, 5}}, {.shape = {3, 4, 3, 3}}, same, true},
      {"sliced",
       {.shape = {2, 4, 6, 5}, .layout = Layout::sliced},
       {.shape = {3, 4, 3, 3}, .layout = Layout::sliced},
       same,
       true},
      {"transposed",
       {.shape = {2, 4, 6, 5}, .layout = Layout::transposed},
       {.shape = {3, 4, 3, 3}}},
      {"nchw_input_nhwc_weight",
       {.shape = {2, 4, 6, 5}, .format = Format::nchw},
       {.shape = {3, 4, 3, 3}, .format = Format::nhwc},
       same},
      {"nhwc_input_nchw_weight",
       {.shape = {2, 4, 6, 5}, .format = Format::nhwc},
       {.shape = {3, 4, 3, 3}, .format = Format::nchw},
       same},
      // Wide enough for tiles, and for tensor cores on CUDA.
      {"wide_3x3", {.shape = {2, 32, 8, 8}}, {.shape = {40, 32, 3, 3}}, same, true, 2},
      {"large_1x1", {.shape = {2, 24, 96, 80}}, {.shape = {8, 24, 1, 1}}, {}, true, 1},
      {"wide_1x1", {.shape = {2, 64, 7, 7}}, {.shape = {72, 64, 1, 1}}, {}, false, 2},
      {"wide_1x1_stride_2",
       {.shape = {2, 64, 8, 8}},
       {.shape = {32, 64, 1, 1}},
       {{2, 2}},
       false,
       2},
      {"wide_3x3_stride_2",
       {.shape = {2, 16, 9, 9}},
       {.shape = {64, 16, 3, 3}},
       {{2, 2}, {1, 1}},
       false,
       2},
      {"wide_depthwise",
       {.shape = {2, 64, 8, 8}},
       {.shape = {64, 1, 3, 3}},
       {.padding = {1, 1}, .groups = 64},
       false,
       2},
      {"wide_groups",
       {.shape = {1, 64, 7, 7}},
       {.shape = {64, 16, 3, 3}},
       {.padding = {1, 1}, .groups = 4},
       false,
       2},
  };
}

}  // namespace

std::vector<Row> conv_rows() {
  std::vector<Row> rows;
  for (const ConvCase& it : cases()) {
    std::vector<Input> inputs{it.x, it.w};
    if (it.bias) inputs.push_back({.shape = {it.w.shape[0]}});
    rows.push_back(make_row(
        "conv2d__" + it.tag, inputs,
        [bias = it.bias, options = it.options](const Call& c) {
          return conv2d(c[0], c[1], bias ? c[2] : Tensor(), options);
        },
        [bias = it.bias, options = it.options](const Arrays& in) {
          return reference::conv2d(in[0], in[1], bias ? &in[2] : nullptr, options);
        },
        kSum));
    rows.back().difference_samples = it.samples;
  }
  const Conv2dOptions same{.padding = {1, 1}};
  // A bias that stays in f32 beside half operands.
  rows.push_back(make_row(
      "conv2d__f32_bias",
      {{.shape = {2, 3, 4, 5}}, {.shape = {4, 3, 3, 3}}, {.shape = {4}, .kind = Kind::statistic}},
      [same](const Call& c) { return conv2d(c[0], c[1], c[2], same); },
      [same](const Arrays& in) { return reference::conv2d(in[0], in[1], &in[2], same); }, kSum));
  rows.back().wide_bias = true;
  // The gradient arrives as a view that is not dense.
  rows.push_back(make_row(
      "conv2d__sliced_gradient", {{.shape = {2, 3, 4, 5}}, {.shape = {4, 3, 3, 3}}},
      [same](const Call& c) {
        const Tensor y = conv2d(c[0], c[1], {}, same);
        return slice(concat({y, y}, 1), 1, 2, 7);
      },
      [same](const Arrays& in) {
        const Array y = reference::conv2d(in[0], in[1], nullptr, same);
        return reference::slice(reference::concat({y, y}, 1), 1, 2, 7);
      },
      kSum));
  for (Row& row : rows) row.convolution = row.keeps_format = true;
  return rows;
}

}  // namespace headroom::testing_ops
