// Rows of softmax, log-softmax and losses.
#include <cmath>

#include "core/ops/loss.h"
#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops {
namespace {

void add_softmax(std::vector<Row>& rows) {
  struct Case {
    std::string tag;
    Input x;
    int axis = -1;
  };
  const Case cases[] = {
      {"rows", {.shape = {5, 7}, .low = -4, .high = 4}},
      {"columns", {.shape = {5, 7}, .low = -4, .high = 4}, 0},
      {"image_channels", {.shape = {2, 5, 3, 4}}, 1},
      {"image_rows", {.shape = {2, 5, 3, 4}}, 3},
      {"image_batch", {.shape = {2, 5, 3, 4}}, 0},
      {"long_rows", {.shape = {2, 1025}, .low = -6, .high = 6}},
      {"large_logits", {.shape = {4, 9}, .low = 990, .high = 1000}},
      {"transposed", {.shape = {5, 7}, .layout = Layout::transposed}},
      {"sliced", {.shape = {5, 7}, .layout = Layout::sliced}},
      {"repeated", {.shape = {5, 7}, .layout = Layout::repeated}},
      {"one_class", {.shape = {3, 1}}},
      {"scalar", {.shape = {}}},
      {"no_rows", {.shape = {0, 4}}},
  };
  for (const bool logarithm : {false, true}) {
    for (const Case& it : cases) {
      rows.push_back(
          make_row((logarithm ? "log_softmax__" : "softmax__") + it.tag, {it.x},
                   [=](const Call& c) {
                     return logarithm ? log_softmax(c[0], it.axis) : softmax(c[0], it.axis);
                   },
                   [=](const Arrays& in) { return reference::softmax(in[0], it.axis, logarithm); },
                   // The logits' distance from their maximum is rounded before it is an exponent.
                   {1, 32, Scale::largest, 8}));
      rows.back().difference_samples = 30;
    }
  }
}

void add_cross_entropy(std::vector<Row>& rows) {
  struct Case {
    std::string tag;
    Input logits, labels;
    CrossEntropyOptions options = {};
  };
  const Input logits{.shape = {6, 5}, .low = -4, .high = 4};
  const Input labels{.shape = {6}, .low = 0, .high = 5, .kind = Kind::label};
  const Input ignoring{.shape = {6}, .kind = Kind::label, .values = {0, -100, 3, 4, -100, 2}};
  const Input ignoring_2{.shape = {6}, .kind = Kind::label, .values = {0, 2, 3, 4, 2, 1}};
  const Input all_ignored{
      .shape = {6}, .kind = Kind::label, .values = {-100, -100, -100, -100, -100, -100}};
  const Case cases[] = {
      {"mean", logits, labels},
      {"sum", logits, labels, {.reduction = Reduction::sum}},
      {"smoothed", logits, labels, {.label_smoothing = 0.1}},
      {"fully_smoothed", logits, labels, {.label_smoothing = 1}},
      {"ignored", logits, ignoring},
      {"ignored_sum", logits, ignoring, {.reduction = Reduction::sum}},
      {"ignored_smoothed", logits, ignoring, {.label_smoothing = 0.2}},
      {"other_ignored_label", logits, ignoring_2, {.ignored_label = 2}},
      {"all_ignored_sum", logits, all_ignored, {.reduction = Reduction::sum}},
      {"large_logits", {.shape = {6, 5}, .low = 900, .high = 1000}, labels},
      {"transposed", {.shape = {6, 5}, .layout = Layout::transposed}, labels},
      {"sliced", {.shape = {6, 5}, .layout = Layout::sliced}, labels},
      {"one_row", {.shape = {1, 3}}, {.shape = {1}, .kind = Kind::label, .values = {2}}},
      {"one_class", {.shape = {4, 1}}, {.shape = {4}, .kind = Kind::label, .values = {0, 0, 0, 0}}},
      {"many_classes",
       {.shape = {3, 1000}},
       {.shape = {3}, .low = 0, .high = 1000, .kind = Kind::label}},
      {"many_rows",
       {.shape = {300, 3}},
       {.shape = {300}, .low = 0, .high = 3, .kind = Kind::label}},
      {"no_rows_sum",
       {.shape = {0, 3}},
       {.shape = {0}, .kind = Kind::label},
       {.reduction = Reduction::sum}},
  };
  for (const Case& it : cases) {
    rows.push_back(make_row(
        "cross_entropy__" + it.tag, {it.logits, it.labels},
        [options = it.options](const Call& c) { return cross_entropy(c[0], c[1], options); },
        [options = it.options](const Arrays& in) {
          return reference::cross_entropy(in[0], in[1], options);
        },
        {1, 32, Scale::largest, 8}));
    rows.back().difference_samples = 30;
  }
  // The mean over no counted rows is NaN, and so is its gradient nowhere: ignored rows get 0.
  Row none = make_row(
      "cross_entropy__all_ignored_mean", {logits, all_ignored},
      [](const Call& c) { return cross_entropy(c[0], c[1]); },
      [](const Arrays&) { return reference::filled({}, NAN); });
  none.gradient = [](const Arrays& in, const Array&) {
    return Arrays{reference::filled(in[0].shape, 0), {}};
  };
  rows.push_back(std::move(none));
}

void add_mse(std::vector<Row>& rows) {
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    const std::string tag = reduction == Reduction::mean ? "mean_" : "sum_";
    for (const auto& [name, x, target] :
         {std::tuple<std::string, Input, Input>{"matrix", {.shape = {5, 7}}, {.shape = {5, 7}}},
          {"image", {.shape = {2, 3, 4, 5}}, {.shape = {2, 3, 4, 5}}},
          {"strided",
           {.shape = {5, 7}, .layout = Layout::transposed},
           {.shape = {5, 7}, .layout = Layout::sliced}},
          {"one_element", {.shape = {1}}, {.shape = {1}}}}) {
      rows.push_back(make_row(
          "mse_loss__" + tag + name, {x, target},
          [reduction](const Call& c) { return mse_loss(c[0], c[1], reduction); },
          [reduction](const Arrays& in) {
            const Array squares =
                reference::zip(in[0], in[1], [](double a, double b) { return (a - b) * (a - b); });
            return reference::sum(squares, {}, false, reduction == Reduction::mean);
          },
          // Differences and squares are stored in x's dtype on the way.
          {4, 16, Scale::largest, 8}));
    }
  }
}

void add_count(std::vector<Row>& rows) {
  for (const auto& [tag, values] : {std::pair<std::string, Values>{"plain", {0, 1, 2, 2, 1}},
                                    {"ignored", {0, -100, 2, -100, 1}}}) {
    Row row = make_row(
        "count_correct__" + tag,
        {{.shape = {5, 3}, .values = {2, 1, 0, 5, 5, 1, 0, 1, 2, 3, 1, 1, 0, 7, NAN}},
         {.shape = {5}, .kind = Kind::label, .values = values}},
        [](const Call& c) {
          Tensor count = full({}, 10, {DType::i64, c.options.device});
          count_correct(c[0], c[1], count);
          return count;
        },
        // First maxima: 0, 0, 2, 0, 2 (NaN is the largest).
        [](const Arrays& in) {
          const double maxima[] = {0, 0, 2, 0, 2};
          Array out = reference::filled({}, 10);
          for (size_t i = 0; i < 5; ++i) out.values[0] += in[1].values[i] == maxima[i] ? 1 : 0;
          return out;
        },
        kExact);
    row.differentiable = false;
    rows.push_back(std::move(row));
  }
}

}  // namespace

std::vector<Row> loss_rows() {
  std::vector<Row> rows;
  add_softmax(rows);
  add_cross_entropy(rows);
  add_mse(rows);
  add_count(rows);
  return rows;
}

}  // namespace headroom::testing_ops
