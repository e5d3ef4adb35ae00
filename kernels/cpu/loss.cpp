// Softmax, log-softmax, cross entropy and the count of correct answers: one row at a time, rows in
// parallel.
#include <cmath>
#include <limits>
#include <vector>

#include "core/ops/contract.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"

namespace headroom {
namespace {

using namespace cpu;  // NOLINT: the helpers of this folder

// Calls fn(row, buffer) for the rows of a matrix in parallel; `buffer` has room for `buffers` rows
// of C.
template <class C, class Fn>
void for_each_matrix_row(const View& matrix, int buffers, Fn&& fn) {
  CHECK(matrix.rank() == 2 && matrix.is_dense(), "rows: needs a dense matrix, got ",
        describe(matrix));
  const int64_t columns = matrix.shape[1];
  parallel_ranges(matrix.shape[0], std::max<int64_t>(1, kGrain / std::max<int64_t>(1, 4 * columns)),
                  [&](int64_t begin, int64_t end) {
                    std::vector<C> buffer(static_cast<size_t>(columns * buffers));
                    for (int64_t row = begin; row < end; ++row) fn(row, buffer.data());
                  });
}

// Row `row` of a dense matrix as a run of C.
template <class C>
const C* load_row(const View& matrix, int64_t row, C* buffer) {
  const int64_t columns = matrix.shape[1];
  const C* out = nullptr;
  dispatch_floating(matrix.dtype, "rows", [&](auto tag) {
    out = load_run(matrix.as<decltype(tag)>() + row * columns, 1, columns, buffer);
  });
  return out;
}

template <class C>
void store_row(const C* values, const View& matrix, int64_t row) {
  const int64_t columns = matrix.shape[1];
  dispatch_floating(matrix.dtype, "rows", [&](auto tag) {
    store_run(values, columns, matrix.as<decltype(tag)>() + row * columns, 1);
  });
}

// The largest of a row and the sum of exp(z - largest). Differences from the largest are exact
// enough whatever common offset the row has.
template <class C>
struct RowExponents {
  C largest;
  double sum = 0;
  double log_sum() const { return std::log(sum); }
};

// terms (may be nullptr) receives exp(z - largest).
template <class C>
RowExponents<C> row_exponents(const C* z, int64_t columns, C* terms) {
  RowExponents<C> out{-std::numeric_limits<C>::infinity()};
  for (int64_t i = 0; i < columns; ++i) {
    out.largest = binary_value<BinaryOp::maximum>(out.largest, z[i]);
  }
  for (int64_t i = 0; i < columns; ++i) {
    const C term = std::exp(z[i] - out.largest);
    out.sum += static_cast<double>(term);
    if (terms != nullptr) terms[i] = term;
  }
  return out;
}

void softmax(const View& x, const View& y) {
  dispatch_compute({x.dtype, y.dtype}, [&](auto tag) {
    using C = decltype(tag);
    for_each_matrix_row<C>(x, 2, [&](int64_t row, C* buffer) {
      const int64_t columns = x.shape[1];
      const C* z = load_row(x, row, buffer);
      C* terms = buffer + columns;
      const C scale = static_cast<C>(1.0 / row_exponents(z, columns, terms).sum);
      for (int64_t i = 0; i < columns; ++i) terms[i] *= scale;
      store_row(terms, y, row);
    });
  });
}

void log_softmax(const View& x, const View& y) {
  dispatch_compute({x.dtype, y.dtype}, [&](auto tag) {
    using C = decltype(tag);
    for_each_matrix_row<C>(x, 2, [&](int64_t row, C* buffer) {
      const int64_t columns = x.shape[1];
      const C* z = load_row(x, row, buffer);
      C* out = buffer + columns;
      const RowExponents<C> exponents = row_exponents<C>(z, columns, nullptr);
      const C log_sum = static_cast<C>(exponents.log_sum());
      for (int64_t i = 0; i < columns; ++i) out[i] = (z[i] - exponents.largest) - log_sum;
      store_row(out, y, row);
    });
  });
}

// dx = f(y, dy, sum of term(y, dy) over the row).
template <class Term, class F>
void rows_backward(const View& y, const View& dy, const View& dx, Term term, F f) {
  dispatch_compute({y.dtype, dy.dtype, dx.dtype}, [&](auto tag) {
    using C = decltype(tag);
    for_each_matrix_row<C>(y, 3, [&](int64_t row, C* buffer) {
      const int64_t columns = y.shape[1];
      const C* out = load_row(y, row, buffer);
      const C* gradient = load_row(dy, row, buffer + columns);
      C* result = buffer + 2 * columns;
      double sum = 0;
      for (int64_t i = 0; i < columns; ++i) {
        sum += static_cast<double>(term(out[i], gradient[i]));
      }
      for (int64_t i = 0; i < columns; ++i) {
        result[i] = f(out[i], gradient[i], static_cast<C>(sum));
      }
      store_row(result, dx, row);
    });
  });
}

void softmax_backward(const View& y, const View& dy, const View& dx) {
  rows_backward(
      y, dy, dx, [](auto out, auto gradient) { return out * gradient; },
      [](auto out, auto gradient, auto sum) { return out * (gradient - sum); });
}

void log_softmax_backward(const View& y, const View& dy, const View& dx) {
  rows_backward(
      y, dy, dx, [](auto, auto gradient) { return gradient; },
      [](auto out, auto gradient, auto sum) { return gradient - std::exp(out) * sum; });
}

// A scalar, or element `index` of a dense vector, of any floating dtype.
double element(const View& view, int64_t index) {
  return dispatch_floating(view.dtype, "element", [&](auto tag) {
    return convert_element<double>(view.as<decltype(tag)>()[index]);
  });
}

void set_element(const View& view, int64_t index, double value) {
  dispatch_floating(view.dtype, "element", [&](auto tag) {
    using T = decltype(tag);
    view.as<T>()[index] = convert_element<T>(value);
  });
}

// The counted rows; throws InvalidArgument for the first label out of range.
int64_t count_labels(const View& labels, int64_t classes, int64_t ignored_label) {
  int64_t counted = 0;
  for (int64_t row = 0; row < labels.numel(); ++row) {
    const int64_t label = labels.as<int64_t>()[row];
    if (label == ignored_label) continue;
    CHECK_ARG(label >= 0 && label < classes, "cross_entropy: needs labels in [0, ", classes,
              ") for ", classes, " classes but row ", row, " has label ", label);
    ++counted;
  }
  return counted;
}

void cross_entropy(const View& logits, const View& labels, const CrossEntropyParams& params,
                   const View& row_loss, const View& lse, const View& loss, const View& counted) {
  const int64_t rows = logits.shape[0], columns = logits.shape[1];
  CHECK(labels.numel() == rows, "cross_entropy: ", labels.numel(), " labels for ", rows, " rows");
  const int64_t used = count_labels(labels, columns, params.ignored_label);
  const double smoothing = params.label_smoothing;
  dispatch_compute({logits.dtype}, [&](auto tag) {
    using C = decltype(tag);
    for_each_matrix_row<C>(logits, 1, [&](int64_t row, C* buffer) {
      const int64_t label = labels.as<int64_t>()[row];
      const C* z = load_row(logits, row, buffer);
      const RowExponents<C> exponents = row_exponents<C>(z, columns, nullptr);
      const double largest = static_cast<double>(exponents.largest);
      const double log_sum = exponents.log_sum();
      set_element(lse, row, largest + log_sum);
      double value = 0;
      if (label != params.ignored_label) {
        // Every logit enters as its distance from the largest: the loss of [1e8, 1e8] is log 2.
        value = (1 - smoothing) * (log_sum - (static_cast<double>(z[label]) - largest));
        if (smoothing > 0) {
          double sum = 0;
          for (int64_t i = 0; i < columns; ++i) sum += static_cast<double>(z[i]) - largest;
          value += smoothing * (log_sum - sum / static_cast<double>(columns));
        }
      }
      set_element(row_loss, row, value);
    });
  });
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) sum += element(row_loss, row);
  const double divisor = params.reduction == Reduction::mean ? static_cast<double>(used) : 1.0;
  set_element(counted, 0, static_cast<double>(used));
  set_element(loss, 0, sum / divisor);
}

// The softmax is taken from the logits again: with a large common offset lse has lost the digits
// that exp(z - lse) would need.
void cross_entropy_backward(const View& logits, const View& labels, const View&,
                            const View& counted, const View& dloss,
                            const CrossEntropyParams& params, const View& dlogits) {
  const int64_t columns = logits.shape[1];
  const double divisor = params.reduction == Reduction::mean ? element(counted, 0) : 1.0;
  const double factor = element(dloss, 0) / divisor;
  dispatch_compute({logits.dtype, dlogits.dtype}, [&](auto tag) {
    using C = decltype(tag);
    const C uniform = static_cast<C>(params.label_smoothing / static_cast<double>(columns));
    for_each_matrix_row<C>(logits, 2, [&](int64_t row, C* buffer) {
      const int64_t label = labels.as<int64_t>()[row];
      C* out = buffer + columns;
      if (label == params.ignored_label) {
        std::fill_n(out, columns, C(0));
      } else {
        CHECK(label >= 0 && label < columns, "cross_entropy_backward: label ", label, " in row ",
              row);
        const C* z = load_row(logits, row, buffer);
        const double sum = row_exponents(z, columns, out).sum;
        // p - 1 from the sum in f64: near 1 an f32 p has lost what the gradient consists of.
        const double of_label = (static_cast<double>(out[label]) - sum) / sum;
        const C inverse = static_cast<C>(1.0 / sum);
        for (int64_t i = 0; i < columns; ++i) out[i] = out[i] * inverse - uniform;
        out[label] = static_cast<C>(of_label + params.label_smoothing) - uniform;
        for (int64_t i = 0; i < columns; ++i) out[i] *= static_cast<C>(factor);
      }
      store_row(out, dlogits, row);
    });
  });
}

void count_correct(const View& logits, const View& labels, int64_t ignored_label,
                   const View& count) {
  const int64_t rows = logits.shape[0], columns = logits.shape[1];
  std::vector<uint8_t> correct(static_cast<size_t>(rows), 0);
  dispatch_compute({logits.dtype}, [&](auto tag) {
    using C = decltype(tag);
    for_each_matrix_row<C>(logits, 1, [&](int64_t row, C* buffer) {
      const int64_t label = labels.as<int64_t>()[row];
      if (label == ignored_label) return;
      const C* z = load_row(logits, row, buffer);
      int64_t best = 0;
      for (int64_t i = 1; i < columns; ++i) {
        if (beats(z[i], z[best])) best = i;
      }
      correct[static_cast<size_t>(row)] = best == label;
    });
  });
  for (const uint8_t hit : correct) *count.as<int64_t>() += hit;
}

}  // namespace

void register_cpu_loss_kernels() {
  slots::softmax.set(DeviceType::cpu, &softmax);
  slots::log_softmax.set(DeviceType::cpu, &log_softmax);
  slots::softmax_backward.set(DeviceType::cpu, &softmax_backward);
  slots::log_softmax_backward.set(DeviceType::cpu, &log_softmax_backward);
  slots::cross_entropy.set(DeviceType::cpu, &cross_entropy);
  slots::cross_entropy_backward.set(DeviceType::cpu, &cross_entropy_backward);
  slots::count_correct.set(DeviceType::cpu, &count_correct);
}

}  // namespace headroom
