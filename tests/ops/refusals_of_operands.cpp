// Refusals of options, dtypes, devices and in-place writes.
#include "tests/ops/refusals.h"

namespace headroom::testing_ops {

std::vector<Refusal> value_refusals() {
  return {
      {"dropout_above_1", "dropout", "1.5", [] { dropout(f32({2}), {.p = 1.5}); }},
      {"dropout_below_0", "dropout", "-0.1", [] { dropout(f32({2}), {.p = -0.1}); }},
      {"leaky_relu_in_place_slope", "leaky_relu", "no_grad",
       on(made, {2}, [](Tensor& x) { leaky_relu_(x, -1); })},
      {"log_in_place_recorded", "log", "no_grad", on(made, {2}, [](Tensor& x) { log_(x); })},
      {"abs_in_place_recorded", "abs", "no_grad", on(made, {2}, [](Tensor& x) { abs_(x); })},
      {"silu_in_place_recorded", "silu", "no_grad", on(made, {2}, [](Tensor& x) { silu_(x); })},
      {"pow_in_place_recorded", "pow_scalar", "input",
       on(made, {2}, [](Tensor& x) { pow_(x, 2); })},
      {"batch_norm_eps", "batch_norm", "eps",
       [] {
         batch_norm(f32({2, 3, 4, 4}), {}, {.eps = -1});
       }},
      {"cross_entropy_smoothing", "cross_entropy", "smoothing",
       [] {
         cross_entropy(f32({2, 3}), i64({2}), {.label_smoothing = 1.1});
       }},
      {"relu_in_place_leaf", "relu", "leaf", on(leaf, {2}, [](Tensor& x) { relu_(x); })},
      {"add_in_place_leaf", "add_", "leaf", on(leaf, {2}, [](Tensor& x) { add_(x, f32({2})); })},
      {"fill_leaf", "fill_", "leaf", on(leaf, {2}, [](Tensor& x) { fill_(x, 1); })},
      {"mul_in_place_view", "mul_", "view",
       on(leaf, {2, 2},
          [](Tensor& x) {
            Tensor row = slice(mul(x, 2.), 0, 0, 1);
            mul_(row, f32({2}));
          })},
      {"relu_in_place_viewed", "relu", "views",
       on(leaf, {2, 2},
          [](Tensor& x) {
            Tensor y = mul(x, 2.);
            const Tensor row = slice(y, 0, 0, 1);
            relu_(y);
          })},
  };
}

std::vector<Refusal> dtype_refusals() {
  return {
      {"relu_integers", "relu", "i64", [] { relu(i64({2})); }},
      {"sigmoid_in_place_integers", "sigmoid", "i64", on(i64, {2}, [](Tensor& x) { sigmoid_(x); })},
      {"add_integers", "add", "i64", [] { add(i64({2}), i64({2})); }},
      {"add_in_place_integers", "add", "i64", on(i64, {2}, [](Tensor& x) { add_(x, i64({2})); })},
      {"dropout_integers", "dropout", "i64", [] { dropout(i64({2})); }},
      {"uniform_integers", "uniform_", "i64", on(i64, {2}, [](Tensor& x) { uniform_(x); })},
      {"normal_integers", "normal_", "i64", on(i64, {2}, [](Tensor& x) { normal_(x); })},
      {"sum_integers", "sum", "i64", [] { sum(i64({2})); }},
      {"max_integers", "max", "i64", [] { max(i64({2}), 0); }},
      {"argmax_integers", "argmax", "i64", [] { argmax(i64({2}), 0); }},
      {"matmul_dtypes", "matmul", "f16",
       [] {
         matmul(f32({2, 3}), f16({3, 2}));
       }},
      {"linear_integers", "linear", "i64",
       [] {
         linear(i64({2, 3}), i64({2, 3}));
       }},
      {"conv2d_dtypes", "conv2d", "f16",
       [] {
         conv2d(f32({1, 2, 4, 4}), f16({2, 2, 3, 3}));
       }},
      {"max_pool2d_integers", "max_pool2d", "i64",
       [] {
         max_pool2d(i64({1, 1, 4, 4}));
       }},
      {"avg_pool2d_integers", "avg_pool2d", "i64",
       [] {
         avg_pool2d(i64({1, 1, 4, 4}));
       }},
      {"batch_norm_integers", "batch_norm", "i64",
       [] {
         batch_norm(i64({2, 3}), {});
       }},
      {"batch_norm_half_gamma", "batch_norm", "f16",
       [] {
         batch_norm(f16({2, 3}), {.gamma = f16({3})});
       }},
      {"batch_norm_residual_dtype", "batch_norm", "residual",
       [] {
         batch_norm(f32({2, 3}), {}, {}, i64({2, 3}));
       }},
      {"softmax_integers", "softmax", "i64",
       [] {
         softmax(i64({2, 3}));
       }},
      {"log_softmax_integers", "log_softmax", "i64",
       [] {
         log_softmax(i64({2, 3}));
       }},
      {"cross_entropy_float_labels", "cross_entropy", "f32",
       [] {
         cross_entropy(f32({2, 3}), f32({2}));
       }},
      {"cross_entropy_integer_logits", "cross_entropy", "i64",
       [] {
         cross_entropy(i64({2, 3}), i64({2}));
       }},
      {"mse_loss_integers", "mse_loss", "i64", [] { mse_loss(i64({2}), i64({2})); }},
      {"count_correct_counter", "count_correct", "i64",
       on(f32, {},
          [](Tensor& count) {
            count_correct(f32({2, 3}), i64({2}), count);
          })},
      {"concat_dtypes", "concat", "i64",
       [] {
         concat({f32({2}), i64({2})}, 0);
       }},
  };
}

std::vector<Refusal> device_refusals() {
  return {
      {"add_devices", "add", "meta:cuda", [] { add(f32({2}), away({2})); }},
      {"mul_in_place_devices", "mul_", "meta:cuda",
       on(f32, {2}, [](Tensor& x) { mul_(x, away({2})); })},
      {"copy_devices", "copy_", "meta:cuda", on(f32, {2}, [](Tensor& x) { copy_(x, away({2})); })},
      {"matmul_devices", "matmul", "meta:cuda",
       [] {
         matmul(f32({2, 2}), away({2, 2}));
       }},
      {"linear_devices", "linear", "meta:cuda",
       [] {
         linear(f32({2, 2}), away({2, 2}));
       }},
      {"linear_bias_devices", "linear", "meta:cuda",
       [] {
         linear(f32({2, 2}), f32({2, 2}), away({2}));
       }},
      {"conv2d_devices", "conv2d", "meta:cuda",
       [] {
         conv2d(f32({1, 2, 4, 4}), away({2, 2, 3, 3}));
       }},
      {"batch_norm_devices", "batch_norm", "meta:cuda",
       [] {
         batch_norm(f32({2, 3}), {.gamma = away({3})});
       }},
      {"batch_norm_residual_devices", "batch_norm", "meta:cuda",
       [] {
         batch_norm(f32({2, 3}), {}, {}, away({2, 3}));
       }},
      {"cross_entropy_devices", "cross_entropy", "meta:cuda",
       [] {
         cross_entropy(away({2, 3}), i64({2}));
       }},
      {"mse_loss_devices", "mse_loss", "meta:cuda", [] { mse_loss(f32({2}), away({2})); }},
      {"count_correct_devices", "count_correct", "meta:cuda",
       on(i64, {},
          [](Tensor& count) {
            count_correct(away({2, 3}), i64({2}), count);
          })},
      {"concat_devices", "concat", "meta:cuda",
       [] {
         concat({f32({2}), away({2})}, 0);
       }},
  };
}

}  // namespace headroom::testing_ops
