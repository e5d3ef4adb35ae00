// Softmax, log-softmax, cross entropy and the count of correct rows on CUDA. One warp per row, or
// one block for long rows; sums over rows are added by one block in a fixed order.
#include <algorithm>

#include "core/ops/contract.h"
#include "kernels/cuda/cuda_common.h"
#include "kernels/cuda/families.h"
#include "kernels/scalar_ops.h"

namespace headroom {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kFinishThreads = 1024;
constexpr int64_t kWarpColumns = 1024;  // columns up to which a warp takes a row

// The group of kGroup threads (a warp or the block) that works on one row.
template <int kGroup>
struct RowGroup {
  static constexpr int kRowsPerBlock = kThreads / kGroup;
  __device__ static int64_t row() {
    return int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kGroup;
  }
  __device__ static int lane() { return threadIdx.x % kGroup; }

  // Every thread of the group receives the result, in a fixed order of combination.
  template <class V, class Op>
  __device__ static V reduce(V value, Op op) {
    if constexpr (kGroup == 32) {
      return warp_reduce(value, op);
    } else {
      __shared__ V slots[kThreads / 32];
      __syncthreads();  // the slots may still be read from an earlier call
      return block_reduce<kThreads>(value, op, slots);
    }
  }
};

// Launches kernel<T, kGroup> with enough blocks for the rows.
#define LAUNCH_ROWS(name, kernel, T, rows, columns, ...)                     \
  do {                                                                       \
    const int64_t per_block = (columns) <= kWarpColumns ? kThreads / 32 : 1; \
    const auto blocks = static_cast<unsigned>(ceil_div((rows), per_block));  \
    if (per_block > 1) {                                                     \
      launch(name, &kernel<T, 32>, blocks, kThreads, 0, __VA_ARGS__);        \
    } else {                                                                 \
      launch(name, &kernel<T, kThreads>, blocks, kThreads, 0, __VA_ARGS__);  \
    }                                                                        \
  } while (false)

template <int kGroup, class T>
__device__ float row_max(const T* x, int64_t columns) {
  float largest = -INFINITY;
  for (int64_t j = RowGroup<kGroup>::lane(); j < columns; j += kGroup) {
    largest = MaxOp{}(largest, to_float(x[j]));
  }
  return RowGroup<kGroup>::reduce(largest, MaxOp{});
}

// In f64: where one class stands out the sum is 1 and a little, and the loss and the label's
// gradient consist of that little.
template <int kGroup, class T>
__device__ double row_exp_sum(const T* x, int64_t columns, float shift) {
  double sum = 0.0;
  for (int64_t j = RowGroup<kGroup>::lane(); j < columns; j += kGroup) {
    sum += static_cast<double>(expf(to_float(x[j]) - shift));
  }
  return RowGroup<kGroup>::reduce(sum, AddOp{});
}

// ---- softmax ----

template <class T, int kGroup, bool kLog>
__device__ void softmax_row(const T* x, T* y, int64_t rows, int64_t columns) {
  const int64_t row = RowGroup<kGroup>::row();
  if (row >= rows) return;
  x += row * columns;
  y += row * columns;
  const float shift = row_max<kGroup>(x, columns);
  const double exp_sum = row_exp_sum<kGroup>(x, columns, shift);
  const auto sum = static_cast<float>(exp_sum);
  const float log_sum = kLog ? static_cast<float>(log(exp_sum)) : 0.0f;
  for (int64_t j = RowGroup<kGroup>::lane(); j < columns; j += kGroup) {
    const float shifted = to_float(x[j]) - shift;
    y[j] = from_float<T>(kLog ? shifted - log_sum : expf(shifted) / sum);
  }
}

template <class T, int kGroup>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const T* x, T* y, int64_t rows, int64_t columns) {
  softmax_row<T, kGroup, false>(x, y, rows, columns);
}
template <class T, int kGroup>
__global__ void __launch_bounds__(kThreads)
    log_softmax_kernel(const T* x, T* y, int64_t rows, int64_t columns) {
  softmax_row<T, kGroup, true>(x, y, rows, columns);
}

// softmax: dx = y * (dy - sum(y * dy)); log-softmax: dx = dy - exp(y) * sum(dy).
template <class T, int kGroup, bool kLog>
__device__ void softmax_backward_row(const T* y, const T* dy, T* dx, int64_t rows,
                                     int64_t columns) {
  const int64_t row = RowGroup<kGroup>::row();
  if (row >= rows) return;
  y += row * columns;
  dy += row * columns;
  dx += row * columns;
  float sum = 0.0f;
  for (int64_t j = RowGroup<kGroup>::lane(); j < columns; j += kGroup) {
    sum += kLog ? to_float(dy[j]) : to_float(y[j]) * to_float(dy[j]);
  }
  sum = RowGroup<kGroup>::reduce(sum, AddOp{});
  for (int64_t j = RowGroup<kGroup>::lane(); j < columns; j += kGroup) {
    const float value = to_float(y[j]), gradient = to_float(dy[j]);
    dx[j] = from_float<T>(kLog ? gradient - expf(value) * sum : value * (gradient - sum));
  }
}

template <class T, int kGroup>
__global__ void __launch_bounds__(kThreads)
    softmax_backward_kernel(const T* y, const T* dy, T* dx, int64_t rows, int64_t columns) {
  softmax_backward_row<T, kGroup, false>(y, dy, dx, rows, columns);
}
template <class T, int kGroup>
__global__ void __launch_bounds__(kThreads)
    log_softmax_backward_kernel(const T* y, const T* dy, T* dx, int64_t rows, int64_t columns) {
  softmax_backward_row<T, kGroup, true>(y, dy, dx, rows, columns);
}

void softmax(const View& x, const View& y) {
  CHECK(x.is_dense() && y.is_dense() && x.dtype == y.dtype, "softmax: needs dense operands");
  if (x.numel() == 0) return;
  dispatch_cuda_floating(x.dtype, "softmax", [&](auto element) {
    using T = decltype(element);
    LAUNCH_ROWS("softmax", softmax_kernel, T, x.shape[0], x.shape[1], x.as<T>(), y.as<T>(),
                x.shape[0], x.shape[1]);
  });
}

void log_softmax(const View& x, const View& y) {
  CHECK(x.is_dense() && y.is_dense() && x.dtype == y.dtype, "log_softmax: needs dense operands");
  if (x.numel() == 0) return;
  dispatch_cuda_floating(x.dtype, "log_softmax", [&](auto element) {
    using T = decltype(element);
    LAUNCH_ROWS("log_softmax", log_softmax_kernel, T, x.shape[0], x.shape[1], x.as<T>(), y.as<T>(),
                x.shape[0], x.shape[1]);
  });
}

void softmax_backward(const View& y, const View& dy, const View& dx) {
  CHECK(
      y.is_dense() && dy.is_dense() && dx.is_dense() && y.dtype == dx.dtype && dy.dtype == dx.dtype,
      "softmax_backward: needs dense operands of one dtype");
  if (y.numel() == 0) return;
  dispatch_cuda_floating(y.dtype, "softmax_backward", [&](auto element) {
    using T = decltype(element);
    LAUNCH_ROWS("softmax_backward", softmax_backward_kernel, T, y.shape[0], y.shape[1], y.as<T>(),
                dy.as<T>(), dx.as<T>(), y.shape[0], y.shape[1]);
  });
}

void log_softmax_backward(const View& y, const View& dy, const View& dx) {
  CHECK(
      y.is_dense() && dy.is_dense() && dx.is_dense() && y.dtype == dx.dtype && dy.dtype == dx.dtype,
      "log_softmax_backward: needs dense operands of one dtype");
  if (y.numel() == 0) return;
  dispatch_cuda_floating(y.dtype, "log_softmax_backward", [&](auto element) {
    using T = decltype(element);
    LAUNCH_ROWS("log_softmax_backward", log_softmax_backward_kernel, T, y.shape[0], y.shape[1],
                y.as<T>(), dy.as<T>(), dx.as<T>(), y.shape[0], y.shape[1]);
  });
}

// ---- cross entropy ----

// How a row takes part in the loss.
struct Labels {
  const int64_t* label;
  int64_t ignored;
  int64_t classes;

  __device__ bool counts(int64_t row) const {
    return label[row] != ignored && label[row] >= 0 && label[row] < classes;
  }
  __device__ bool is_bad(int64_t row) const {
    return label[row] != ignored && !(label[row] >= 0 && label[row] < classes);
  }
};

template <class T, int kGroup>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_kernel(const T* logits, Labels labels, float smoothing, float* row_loss,
                         float* lse, int64_t rows) {
  const int64_t row = RowGroup<kGroup>::row();
  if (row >= rows) return;
  const int64_t columns = labels.classes;
  const T* z = logits + row * columns;
  const float shift = row_max<kGroup>(z, columns);
  double exp_sum = 0.0;
  float sum = 0.0f;
  for (int64_t j = RowGroup<kGroup>::lane(); j < columns; j += kGroup) {
    const float shifted = to_float(z[j]) - shift;
    exp_sum += static_cast<double>(expf(shifted));  // f64: see row_exp_sum
    sum += shifted;
  }
  exp_sum = RowGroup<kGroup>::reduce(exp_sum, AddOp{});
  if (smoothing > 0.0f) sum = RowGroup<kGroup>::reduce(sum, AddOp{});
  if (RowGroup<kGroup>::lane() != 0) return;
  // Relative to the row's maximum, so that large logits do not cancel.
  const auto log_sum = static_cast<float>(log(exp_sum));
  lse[row] = shift + log_sum;
  float loss = 0.0f;
  if (labels.counts(row)) {
    loss = (1.0f - smoothing) * (log_sum - (to_float(z[labels.label[row]]) - shift));
    if (smoothing > 0.0f) loss += smoothing * (log_sum - sum / static_cast<float>(columns));
  }
  row_loss[row] = loss;
}

struct MinOp {
  __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? a : b; }
};

// One block: the sum of row losses, the rows that count, and the first bad label.
__global__ void __launch_bounds__(kFinishThreads)
    cross_entropy_finish_kernel(const float* row_loss, Labels labels, int64_t rows, bool mean,
                                float* loss, float* counted, FaultRecord* faults) {
  __shared__ float loss_slots[kFinishThreads / 32];
  __shared__ int64_t count_slots[kFinishThreads / 32];
  __shared__ int64_t row_slots[kFinishThreads / 32];
  float sum = 0.0f;
  int64_t count = 0, first_bad = rows;
  for (int64_t row = threadIdx.x; row < rows; row += kFinishThreads) {
    sum += row_loss[row];
    if (labels.counts(row)) ++count;
    if (labels.is_bad(row)) first_bad = MinOp{}(first_bad, row);
  }
  sum = block_reduce<kFinishThreads>(sum, AddOp{}, loss_slots);
  count = block_reduce<kFinishThreads>(count, AddOp{}, count_slots);
  first_bad = block_reduce<kFinishThreads>(first_bad, MinOp{}, row_slots);
  if (threadIdx.x != 0) return;
  const auto rows_counted = static_cast<float>(count);
  *counted = rows_counted;
  *loss = mean ? sum / rows_counted : sum;
  if (first_bad < rows) {
    record_fault(faults, DeviceFault::label_out_of_range, labels.label[first_bad], first_bad,
                 labels.classes);
  }
}

void cross_entropy(const View& logits, const View& labels, const CrossEntropyParams& params,
                   const View& row_loss, const View& lse, const View& loss, const View& counted) {
  CHECK(logits.is_dense() && labels.is_dense() && row_loss.dtype == DType::f32 &&
            lse.dtype == DType::f32 && loss.dtype == DType::f32 && counted.dtype == DType::f32,
        "cross_entropy: needs dense operands and f32 results");
  const int64_t rows = logits.shape[0], columns = logits.shape[1];
  const Labels targets{labels.as<int64_t>(), params.ignored_label, columns};
  if (rows > 0) {
    dispatch_cuda_floating(logits.dtype, "cross_entropy", [&](auto element) {
      using T = decltype(element);
      LAUNCH_ROWS("cross_entropy", cross_entropy_kernel, T, rows, columns, logits.as<T>(), targets,
                  static_cast<float>(params.label_smoothing), row_loss.as<float>(), lse.as<float>(),
                  rows);
    });
  }
  launch("cross_entropy", &cross_entropy_finish_kernel, 1, kFinishThreads, 0, row_loss.as<float>(),
         targets, rows, params.reduction == Reduction::mean, loss.as<float>(), counted.as<float>(),
         fault_record());
}

// The softmax is computed again relative to the row's maximum: lse in f32 has lost its digits when
// logits are large.
template <class T, int kGroup>
__global__ void __launch_bounds__(kThreads)
    cross_entropy_backward_kernel(const T* logits, Labels labels, const float* counted,
                                  const float* dloss, float smoothing, bool mean, T* dlogits,
                                  int64_t rows) {
  const int64_t row = RowGroup<kGroup>::row();
  if (row >= rows) return;
  const int64_t columns = labels.classes;
  const T* z = logits + row * columns;
  T* dz = dlogits + row * columns;
  const bool counts = labels.counts(row);
  const float factor = mean ? *dloss / *counted : *dloss;
  const float spread = smoothing / static_cast<float>(columns);
  const float shift = row_max<kGroup>(z, columns);
  const double exp_sum = row_exp_sum<kGroup>(z, columns, shift);
  const auto sum = static_cast<float>(exp_sum);
  const int64_t label = labels.label[row];
  for (int64_t j = RowGroup<kGroup>::lane(); j < columns; j += kGroup) {
    const float term = expf(to_float(z[j]) - shift);
    // p, for the label p - (1 - smoothing).
    const float pull =
        j == label ? static_cast<float>((static_cast<double>(term) - exp_sum) / exp_sum) + smoothing
                   : term / sum;
    dz[j] = from_float<T>(counts ? factor * (pull - spread) : 0.0f);
  }
}

void cross_entropy_backward(const View& logits, const View& labels, const View&,
                            const View& counted, const View& dloss,
                            const CrossEntropyParams& params, const View& dlogits) {
  CHECK(logits.is_dense() && dlogits.is_dense() && logits.dtype == dlogits.dtype &&
            dloss.dtype == DType::f32,
        "cross_entropy_backward: needs dense logits, dlogits of their dtype, and dloss in f32");
  if (logits.numel() == 0) return;
  const int64_t rows = logits.shape[0], columns = logits.shape[1];
  const Labels targets{labels.as<int64_t>(), params.ignored_label, columns};
  dispatch_cuda_floating(logits.dtype, "cross_entropy_backward", [&](auto element) {
    using T = decltype(element);
    LAUNCH_ROWS("cross_entropy_backward", cross_entropy_backward_kernel, T, rows, columns,
                logits.as<T>(), targets, counted.as<float>(), dloss.as<float>(),
                static_cast<float>(params.label_smoothing), params.reduction == Reduction::mean,
                dlogits.as<T>(), rows);
  });
}

// ---- accuracy ----

template <class T, int kGroup>
__global__ void __launch_bounds__(kThreads)
    count_correct_kernel(const T* logits, Labels labels, unsigned long long* count, int64_t rows) {
  const int64_t row = RowGroup<kGroup>::row();
  if (row >= rows || !labels.counts(row)) return;  // a group leaves as a whole
  const int64_t columns = labels.classes, label = labels.label[row];
  const T* z = logits + row * columns;
  const float own = to_float(z[label]);
  // The label is the first maximum if no earlier element is at least as large and no later one is
  // larger, in the order of beats().
  float beaten = 0.0f;
  for (int64_t j = RowGroup<kGroup>::lane(); j < columns; j += kGroup) {
    const float other = to_float(z[j]);
    const bool wins = j < label ? !beats(own, other) : beats(other, own);
    if (wins && j != label) beaten = 1.0f;
  }
  beaten = RowGroup<kGroup>::reduce(beaten, MaxOp{});
  // Integers add up to the same sum in any order.
  if (RowGroup<kGroup>::lane() == 0 && beaten == 0.0f) atomicAdd(count, 1ull);
}

void count_correct(const View& logits, const View& labels, int64_t ignored_label,
                   const View& count) {
  CHECK(logits.is_dense() && labels.is_dense() && count.dtype == DType::i64,
        "count_correct: needs dense operands and an i64 count");
  if (logits.numel() == 0) return;
  const int64_t rows = logits.shape[0], columns = logits.shape[1];
  const Labels targets{labels.as<int64_t>(), ignored_label, columns};
  dispatch_cuda_floating(logits.dtype, "count_correct", [&](auto element) {
    using T = decltype(element);
    LAUNCH_ROWS("count_correct", count_correct_kernel, T, rows, columns, logits.as<T>(), targets,
                reinterpret_cast<unsigned long long*>(count.as<int64_t>()), rows);
  });
}

#undef LAUNCH_ROWS

}  // namespace

void register_cuda_loss_kernels() {
  slots::softmax.set(DeviceType::cuda, &softmax);
  slots::log_softmax.set(DeviceType::cuda, &log_softmax);
  slots::softmax_backward.set(DeviceType::cuda, &softmax_backward);
  slots::log_softmax_backward.set(DeviceType::cuda, &log_softmax_backward);
  slots::cross_entropy.set(DeviceType::cuda, &cross_entropy);
  slots::cross_entropy_backward.set(DeviceType::cuda, &cross_entropy_backward);
  slots::count_correct.set(DeviceType::cuda, &count_correct);
}

}  // namespace headroom
