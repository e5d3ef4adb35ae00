// Rows of batch normalisation, and of checkpoint around small blocks.
#include <cmath>

#include "core/autograd/checkpoint.h"
#include "core/ops/elementwise.h"
#include "core/ops/linalg.h"
#include "core/ops/norm.h"
#include "tests/ops/reference_ops.h"
#include "tests/ops/row_run.h"

namespace headroom::testing_ops {
namespace {

const Shape kImage{3, 4, 5, 3};

struct NormCase {
  std::string tag;
  Input x;
  BatchNormOptions options = {};
  bool affine = true;
  bool residual = false;
  bool running = true;
};

std::vector<NormCase> cases() {
  const BatchNormOptions plain, relu{.relu = true}, eval{.training = false};
  const BatchNormOptions eval_relu{.training = false, .relu = true};
  const Input image{.shape = kImage};
  return {
      {"train", image, plain},
      {"train_relu", image, relu},
      {"train_residual", image, plain, true, true},
      {"train_relu_residual", image, relu, true, true},
      {"train_not_affine", image, plain, false},
      {"train_not_affine_relu", image, relu, false},
      {"train_not_affine_relu_residual", image, relu, false, true},
      {"train_without_running", image, plain, true, false, false},
      {"train_momentum_eps", image, {.eps = 0.3, .momentum = 0.7}},
      {"train_matrix", {.shape = {9, 5}}, plain},
      {"train_matrix_relu", {.shape = {9, 5}}, relu},
      {"train_matrix_relu_residual", {.shape = {9, 5}}, relu, true, true},
      {"train_one_channel", {.shape = {2, 1, 3, 5}}, relu},
      {"train_odd_channels", {.shape = {2, 7, 3, 5}}, relu},
      {"train_many_channels", {.shape = {2, 72, 3, 3}}, relu, true, true},
      {"train_one_image", {.shape = {1, 3, 4, 4}}, plain},
      {"train_one_pixel", {.shape = {8, 6, 1, 1}}, relu},
      {"train_off_centre", {.shape = kImage, .low = 20, .high = 24}, plain},
      {"train_sliced", {.shape = kImage, .layout = Layout::sliced}, relu, true, true},
      {"train_transposed", {.shape = {9, 5}, .layout = Layout::transposed}, plain},
      {"train_large", {.shape = {3, 20, 70, 90}}, relu, true, true, true},
      {"train_no_images", {.shape = {0, 4, 3, 3}}, plain},
      {"eval", image, eval},
      {"eval_relu", image, eval_relu},
      {"eval_residual", image, eval, true, true},
      {"eval_relu_residual", image, eval_relu, true, true},
      {"eval_not_affine", image, eval, false},
      {"eval_matrix", {.shape = {4, 5}}, eval},
      {"eval_one_element", {.shape = {1, 1, 1, 1}}, eval},
      {"eval_no_images", {.shape = {0, 4, 3, 3}}, eval_relu, true, true},
      {"eval_sliced", {.shape = kImage, .layout = Layout::sliced}, eval_relu},
  };
}

// Inputs: x, then gamma and beta, running mean and variance, residual, as far as the case has them.
Row norm_row(const NormCase& it) {
  const Input channel{.shape = {it.x.shape[1]}, .kind = Kind::statistic};
  Row row;
  row.name = "batch_norm__" + it.tag;
  row.covers = {"batch_norm"};
  row.inputs = {it.x};
  const size_t gamma = row.inputs.size();
  if (it.affine) row.inputs.insert(row.inputs.end(), {channel, channel});
  const size_t running = row.inputs.size();
  if (it.running) {
    Input mean = channel, var = channel;
    mean.wants_grad = var.wants_grad = false;
    mean.written = var.written = it.options.training;
    var.low = 0.5;
    row.inputs.insert(row.inputs.end(), {mean, var});
  }
  const size_t residual = row.inputs.size();
  if (it.residual) {
    Input other = it.x;
    other.layout = Layout::dense;
    row.inputs.push_back(other);
  }
  row.op = [=](const Call& c) {
    BatchNormState state;
    if (it.affine) state.gamma = c[gamma], state.beta = c[gamma + 1];
    if (it.running) state.running_mean = c[running], state.running_var = c[running + 1];
    const Tensor y = batch_norm(c[0], state, it.options, it.residual ? c[residual] : Tensor());
    std::vector<Tensor> out{y};
    if (it.running) out.insert(out.end(), {state.running_mean, state.running_var});
    return out;
  };
  row.reference = [=](const Arrays& in) {
    reference::NormInputs with;
    if (it.affine) with.gamma = &in[gamma], with.beta = &in[gamma + 1];
    if (it.running) with.running_mean = &in[running], with.running_var = &in[running + 1];
    if (it.residual) with.residual = &in[residual];
    // Statistics of nothing are not finite and leave the running averages alone.
    if (in[0].values.empty() && it.running) {
      return Arrays{in[0], in[running], in[running + 1]};
    }
    return reference::batch_norm(in[0], with, it.options);
  };
  row.tolerance = kStatistics;
  row.keeps_format = true;
  // x - mean loses what x has beyond its spread, here a factor of 20.
  if (it.x.low > 10) row.tolerance.arithmetic *= 20;
  if (numel_of(it.x.shape) > 10000) row.difference_samples = 1;
  return row;
}

// y = tanh(relu(x * w^T + b) + x), written out and under a checkpoint.
Tensor block(const Tensor& x, const Tensor& w, const Tensor& b) {
  return tanh(add(relu(linear(x, w, b)), x));
}
Array block_reference(const Arrays& in) {
  const Array hidden = reference::map(reference::matmul(in[0], in[1], true, &in[2]),
                                      [](double v) { return std::max(v, 0.); });
  const Array total = reference::zip(hidden, in[0], [](double a, double b) { return a + b; });
  return reference::map(total, [](double v) { return std::tanh(v); });
}

void add_checkpoints(std::vector<Row>& rows) {
  const Tolerance block_tolerance{4, 16, Scale::largest, 16};
  rows.push_back(make_row(
      "checkpoint__block", {{.shape = {5, 6}}, {.shape = {6, 6}}, {.shape = {6}}},
      [](const Call& c) {
        const Tensor w = c[1], b = c[2];
        return checkpoint([=](const Tensor& x) { return block(x, w, b); }, c[0]);
      },
      block_reference, block_tolerance));
  // The input of the checkpoint is an activation, and the block stands in the middle of a graph.
  rows.push_back(make_row(
      "checkpoint__inside_a_graph", {{.shape = {5, 6}}, {.shape = {6, 6}}, {.shape = {6}}},
      [](const Call& c) {
        const Tensor w = c[1], b = c[2];
        const Tensor y =
            checkpoint([=](const Tensor& x) { return block(x, w, b); }, mul(c[0], 1.5));
        return mul(y, c[0]);
      },
      [](const Arrays& in) {
        const Array x = reference::map(in[0], [](double v) { return 1.5 * v; });
        return reference::zip(block_reference({x, in[1], in[2]}), in[0],
                              [](double a, double b) { return a * b; });
      },
      block_tolerance));
  // The second forward draws the same mask.
  rows.push_back(make_row(
      "checkpoint__dropout", {{.shape = {7, 5}}},
      [](const Call& c) {
        return checkpoint([](const Tensor& x) { return mul(dropout(exp(x), {.p = 0.4}), 0.5); },
                          c[0]);
      },
      [](const Arrays& in) {
        const Array powers = reference::map(in[0], [](double v) { return 0.5 * std::exp(v); });
        return reference::dropout(powers, 0.4, kSeed, 0);
      },
      block_tolerance));
  // Running averages move once.
  Row norm = norm_row({"train_relu", {.shape = kImage}, {.relu = true}});
  norm.name = "checkpoint__batch_norm";
  norm.covers = {"checkpoint"};
  norm.op = [](const Call& c) {
    const BatchNormState state{c[1], c[2], c[3], c[4]};
    const Tensor y =
        checkpoint([=](const Tensor& x) { return batch_norm(x, state, {.relu = true}); }, c[0]);
    return std::vector<Tensor>{y, c[3], c[4]};
  };
  rows.push_back(std::move(norm));
}

}  // namespace

std::vector<Row> norm_rows() {
  std::vector<Row> rows;
  for (const NormCase& it : cases()) rows.push_back(norm_row(it));
  add_checkpoints(rows);
  return rows;
}

}  // namespace headroom::testing_ops
