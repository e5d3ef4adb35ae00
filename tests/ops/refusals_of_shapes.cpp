// Refusals of shapes, axes, windows and labels.
#include "tests/ops/refusals.h"

namespace headroom::testing_ops {

std::vector<Refusal> shape_refusals() {
  const Pool2dOptions wide{.kernel = {9, 9}}, padded{.kernel = {2, 2}, .padding = {2, 2}};
  const Pool2dOptions dilated{.dilation = {2, 2}}, empty_kernel{.kernel = {0, 2}};
  return {
      {"add_shapes", "add", "[2,3]",
       [] {
         add(f32({2, 3}), f32({4}));
       }},
      {"div_shapes", "div", "[2,3]",
       [] {
         div(f32({2, 3}), f32({3, 3}));
       }},
      {"maximum_shapes", "maximum", "[2]", [] { maximum(f32({2}), f32({3})); }},
      {"add_in_place_wider", "add_", "broadcast",
       on(f32, {3},
          [](Tensor& x) {
            add_(x, f32({2, 3}));
          })},
      {"mul_in_place_shapes", "mul_", "[3]", on(f32, {3}, [](Tensor& x) { mul_(x, f32({2})); })},
      {"copy_shapes", "copy_", "[3]", on(f32, {3}, [](Tensor& x) { copy_(x, f32({1})); })},
      {"sum_axis", "sum", "axis",
       [] {
         sum(f32({2, 3}), {.axes = {2}});
       }},
      {"mean_axis", "mean", "axis",
       [] {
         mean(f32({2, 3}), {.axes = {-3}});
       }},
      {"max_axis", "max", "axis",
       [] {
         max(f32({2, 3}), 5);
       }},
      {"max_of_nothing", "max", "[0,3]",
       [] {
         max(f32({0, 3}));
       }},
      {"max_empty_axis", "max", "empty",
       [] {
         max(f32({0, 3}), 0);
       }},
      {"argmax_empty_axis", "argmax", "empty",
       [] {
         argmax(f32({3, 0}), 1);
       }},
      {"argmax_axis", "argmax", "axis", [] { argmax(f32({3}), 1); }},
      {"matmul_inner", "matmul", "[2,3]",
       [] {
         matmul(f32({2, 3}), f32({2, 3}));
       }},
      {"matmul_rank", "matmul", "[2,3,1]",
       [] {
         matmul(f32({2, 3, 1}), f32({2, 3}));
       }},
      {"linear_inner", "linear", "weight",
       [] {
         linear(f32({2, 3}), f32({3, 2}));
       }},
      {"linear_bias", "linear", "bias",
       [] {
         linear(f32({2, 3}), f32({4, 3}), f32({3}));
       }},
      {"conv2d_rank", "conv2d", "[3,8,8]",
       [] {
         conv2d(f32({3, 8, 8}), f32({4, 3, 3, 3}));
       }},
      {"conv2d_channels", "conv2d", "weight takes 3 channels but x has 4",
       [] {
         conv2d(f32({2, 4, 8, 8}), f32({16, 3, 3, 3}));
       }},
      {"conv2d_groups", "conv2d", "groups",
       [] {
         conv2d(f32({2, 4, 8, 8}), f32({6, 1, 3, 3}), {}, {.groups = 3});
       }},
      {"conv2d_kernel", "conv2d", "reaches",
       [] {
         conv2d(f32({2, 4, 2, 8}), f32({6, 4, 3, 3}));
       }},
      {"conv2d_stride", "conv2d", "stride",
       [] {
         conv2d(f32({2, 4, 8, 8}), f32({6, 4, 3, 3}), {}, {.stride = {0, 1}});
       }},
      {"conv2d_bias", "conv2d", "bias",
       [] {
         conv2d(f32({2, 4, 8, 8}), f32({6, 4, 3, 3}), f32({4}));
       }},
      {"max_pool2d_rank", "max_pool2d", "[4,4]",
       [] {
         max_pool2d(f32({4, 4}));
       }},
      {"max_pool2d_window", "max_pool2d", "window",
       [=] {
         max_pool2d(f32({1, 1, 4, 4}), wide);
       }},
      {"max_pool2d_padding", "max_pool2d", "half",
       [=] {
         max_pool2d(f32({1, 1, 4, 4}), padded);
       }},
      {"max_pool2d_kernel", "max_pool2d", "at least 1",
       [=] {
         max_pool2d(f32({1, 1, 4, 4}), empty_kernel);
       }},
      {"avg_pool2d_dilation", "avg_pool2d", "dilation",
       [=] {
         avg_pool2d(f32({1, 1, 4, 4}), dilated);
       }},
      {"avg_pool2d_window", "avg_pool2d", "window",
       [=] {
         avg_pool2d(f32({1, 1, 4, 4}), wide);
       }},
      {"global_avg_pool2d_empty", "global_avg_pool2d", "[1,2,0,3]",
       [] {
         global_avg_pool2d(f32({1, 2, 0, 3}));
       }},
      {"batch_norm_rank", "batch_norm", "[2,3,4]",
       [] {
         batch_norm(f32({2, 3, 4}), {});
       }},
      {"batch_norm_gamma", "batch_norm", "gamma",
       [] {
         batch_norm(f32({2, 3, 4, 4}), {.gamma = f32({4})});
       }},
      {"batch_norm_one_value", "batch_norm", "more than one value",
       [] {
         batch_norm(f32({1, 3, 1, 1}), {});
       }},
      {"batch_norm_eval", "batch_norm", "running",
       [] {
         batch_norm(f32({2, 3, 4, 4}), {}, {.training = false});
       }},
      {"batch_norm_residual", "batch_norm", "residual",
       [] {
         batch_norm(f32({2, 3, 4, 4}), {}, {}, f32({2, 3, 4, 5}));
       }},
      {"softmax_axis", "softmax", "axis",
       [] {
         softmax(f32({2, 3}), 2);
       }},
      {"log_softmax_axis", "log_softmax", "axis",
       [] {
         log_softmax(f32({2, 3}), -4);
       }},
      {"cross_entropy_rows", "cross_entropy", "[3]",
       [] {
         cross_entropy(f32({2, 3}), i64({3}));
       }},
      {"cross_entropy_rank", "cross_entropy", "[2,3,1]",
       [] {
         cross_entropy(f32({2, 3, 1}), i64({2}));
       }},
      {"cross_entropy_no_classes", "cross_entropy", "classes",
       [] {
         cross_entropy(f32({2, 0}), i64({2}));
       }},
      {"cross_entropy_label", "cross_entropy", "3",
       [] {
         cross_entropy(f32({2, 3}), full({2}, 3, {DType::i64}));
       }},
      {"cross_entropy_negative_label", "cross_entropy", "-1",
       [] {
         cross_entropy(f32({2, 3}), full({2}, -1, {DType::i64}));
       }},
      {"mse_loss_shapes", "mse_loss", "[3]",
       [] {
         mse_loss(f32({2, 3}), f32({3}));
       }},
      {"reshape_count", "reshape", "[2,3]",
       [] {
         reshape(f32({2, 3}), {4});
       }},
      {"reshape_two_open", "reshape", "-1",
       [] {
         reshape(f32({2, 3}), {-1, -1});
       }},
      {"reshape_negative", "reshape", "-2",
       [] {
         reshape(f32({2, 3}), {-2, 3});
       }},
      {"reshape_does_not_divide", "reshape", "divide",
       [] {
         reshape(f32({2, 3}), {4, -1});
       }},
      {"flatten_order", "flatten", "after",
       [] {
         flatten(f32({2, 3, 4}), 2, 1);
       }},
      {"flatten_axis", "flatten", "axis",
       [] {
         flatten(f32({2, 3, 4}), 0, 3);
       }},
      {"permute_count", "permute", "rank 2",
       [] {
         permute(f32({2, 3}), {0});
       }},
      {"permute_twice", "permute", "twice",
       [] {
         permute(f32({2, 3}), {0, 0});
       }},
      {"transpose_axis", "transpose", "axis",
       [] {
         transpose(f32({2, 3}), 0, 2);
       }},
      {"slice_range", "slice", "[1, 5)",
       [] {
         slice(f32({2, 3}), 1, 1, 5);
       }},
      {"slice_order", "slice", "[2, 1)",
       [] {
         slice(f32({2, 3}), 1, 2, 1);
       }},
      {"expand_shape", "expand", "[2,3]",
       [] {
         expand(f32({2, 3}), {4, 3});
       }},
      {"expand_new_axis_kept", "expand", "-1",
       [] {
         expand(f32({3}), {-1, 3});
       }},
      {"expand_negative", "expand", "-2",
       [] {
         expand(f32({1, 3}), {-2, 3});
       }},
      {"concat_nothing", "concat", "at least one", [] { concat({}, 0); }},
      {"concat_shapes", "concat", "[2,4]",
       [] {
         concat({f32({2, 3}), f32({2, 4})}, 0);
       }},
      {"concat_ranks", "concat", "[2]",
       [] {
         concat({f32({2, 3}), f32({2})}, 0);
       }},
      {"from_vector_count", "from_vector", "3 values",
       [] {
         from_vector(std::vector<float>{1, 2, 3}, {2, 2});
       }},
      {"checkpoint_undefined", "checkpoint", "undefined",
       [] { checkpoint([](const Tensor& x) { return x; }, {}); }},
  };
}

}  // namespace headroom::testing_ops
