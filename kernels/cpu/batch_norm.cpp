// Batch normalisation of the CPU backend: statistics, output (with residual and ReLU) and
// gradients. The arithmetic of a tile is in batch_norm_math.h, the sums in batch_norm_sums.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/ops/contract.h"
#include "core/ops/workspace_cpu.h"
#include "kernels/cpu/batch_norm_math.h"
#include "kernels/cpu/batch_norm_sums.h"
#include "kernels/cpu/families.h"

namespace headroom {
namespace {

using cpu::BatchNormPlan;
using cpu::Coefficients;
using cpu::kBatchNormTile;
using cpu::LaneSums;
using cpu::Moments;

// x as runs of neighbouring elements: whole planes of one channel (nchw), or groups of pixels,
// `repeat` side by side (nhwc and [n,c]; the last group may be shorter).
struct Layout {
  BatchNormPlan plan;
  int64_t channels = 0, elements = 0, plane = 1;

  explicit Layout(const View& x)
      : plan(cpu::plan_batch_norm(x)), channels(x.shape[1]), elements(x.numel()) {
    CHECK(x.is_dense(), "batch_norm: x must be dense");
    if (plan.planes) plane = x.shape[2] * x.shape[3];
  }
  int64_t per_channel() const { return elements / channels; }
  int64_t run_length() const { return plan.planes ? plane : plan.lanes; }
  // Coefficient tables cover one group of pixels, or one entry per channel of planes.
  int64_t table_size() const { return plan.planes ? channels : plan.lanes; }

  template <class Sum>
  Coefficients<Sum> coefficients(const Coefficients<Sum>& table, int64_t run) const {
    if (!plan.planes) return table;
    Coefficients<Sum> own = table.at(run % channels);
    own.step = 0;
    return own;
  }
  // Calls fn(run, first element, count) for every run, in parallel.
  template <class Fn>
  void for_runs(Fn&& fn) const {
    constexpr int64_t kGrain = 1 << 14;  // elements
    if (elements == 0) return;
    const int64_t length = run_length();
    const int64_t runs = (elements + length - 1) / length;
    parallel_ranges(runs, std::max<int64_t>(1, kGrain / length), [&](int64_t begin, int64_t end) {
      for (int64_t run = begin; run < end; ++run) {
        fn(run, run * length, std::min(length, elements - run * length));
      }
    });
  }
};

// Per-channel coefficients, repeated over the lanes of a group of pixels.
template <class Sum>
class Table {
 public:
  Table(const Layout& layout, const View& gamma, const View& beta, const View& mean,
        const View& rstd) {
    const int64_t size = layout.table_size();
    values_.resize(static_cast<size_t>(4 * size));
    Sum* out = values_.data();
    for (int64_t i = 0; i < size; ++i) {
      const int64_t c = i % layout.channels;
      const Sum r = rstd.as<Sum>()[c];
      out[i] = mean.as<Sum>()[c];
      out[size + i] = r;
      out[2 * size + i] = gamma ? gamma.as<Sum>()[c] * r : r;
      out[3 * size + i] = beta ? beta.as<Sum>()[c] : Sum(0);
    }
    table_ = {out, out + size, out + 2 * size, out + 3 * size, 1};
  }
  const Coefficients<Sum>& operator*() const { return table_; }

 private:
  std::vector<Sum> values_;
  Coefficients<Sum> table_;
};

void check_channels(const View& view, const View& x, const char* name) {
  if (!view) return;
  const DType expected = x.dtype == DType::f64 ? DType::f64 : DType::f32;
  CHECK(view.dtype == expected && view.numel() == x.shape[1], "batch_norm: ", name, " must be ",
        expected, " [", x.shape[1], "], got ", view.dtype, view.shape);
}
void check_like(const View& view, const View& x, const char* name) {
  CHECK(!view || (view.dtype == x.dtype && view.shape == x.shape && view.is_dense() &&
                  (x.rank() != 4 || view.format == x.format)),
        "batch_norm: ", name, " must have the dtype, shape and layout of x");
}

template <class T>
T* part(const View& view) {
  return view ? view.as<T>() : nullptr;
}

template <class T>
void write_output(const Layout& layout, const Coefficients<compute_t<T>>& table, const View& x,
                  const View& residual, bool relu, const View& y) {
  using Sum = compute_t<T>;
  layout.for_runs([&](int64_t run, int64_t begin, int64_t elements) {
    const Coefficients<Sum> own = layout.coefficients(table, run);
    Sum in[kBatchNormTile], out[kBatchNormTile];
    for (int64_t i = 0; i < elements; i += kBatchNormTile) {
      const int64_t count = std::min(kBatchNormTile, elements - i);
      cpu::convert_run(x.as<const T>() + begin + i, in, count);
      cpu::normalize_tile(in, own.at(i), out, count);
      if (residual) {
        cpu::convert_run(residual.as<const T>() + begin + i, in, count);
        for (int64_t j = 0; j < count; ++j) out[j] += in[j];
      }
      if (relu) cpu::relu_tile(out, count);
      cpu::convert_run(out, y.as<T>() + begin + i, count);
    }
  });
}

// Calls fn(split, begin, end) for the ranges of elements (rows of pixels) or channels (planes) of
// the splits, in parallel.
template <class Fn>
void for_splits(const Layout& layout, Fn&& fn) {
  const int64_t splits = layout.plan.splits;
  const int64_t lanes = layout.plan.lanes;
  const int64_t parts = layout.plan.planes ? layout.channels : layout.elements / lanes;
  const int64_t unit = layout.plan.planes ? 1 : lanes;
  parallel_for(splits, [&](int64_t split) {
    const int64_t begin = parts * split / splits * unit;
    int64_t end = parts * (split + 1) / splits * unit;
    if (split == splits - 1 && !layout.plan.planes) end = layout.elements;
    fn(split, begin, end);
  });
}

template <class Sum>
LaneSums<Sum> sums_of(const Layout& layout, const View& workspace, int64_t split) {
  return LaneSums<Sum>(layout.plan.lanes, workspace.as<char>() + split * layout.plan.split_bytes());
}

// Count, mean and squared deviations of every channel.
template <class T>
std::vector<Moments> channel_moments(const Layout& layout, const View& x, const View& workspace) {
  using Sum = compute_t<T>;
  std::vector<Moments> moments(static_cast<size_t>(layout.channels));
  const BatchNormPlan& plan = layout.plan;
  const auto merge = [](const LaneSums<Sum>& sums, int64_t lane, Moments& into) {
    into.merge(sums.count[lane], sums.first[lane], sums.second[lane]);
  };
  for_splits(layout, [&](int64_t split, int64_t begin, int64_t end) {
    LaneSums<Sum> sums = sums_of<Sum>(layout, workspace, split);
    if (!plan.planes) {
      sums.clear();
      cpu::add_moments(x.as<const T>() + begin, end - begin, plan.groups_per_run, sums);
      return;
    }
    for (int64_t c = begin; c < end; ++c) {
      sums.clear();
      for (int64_t first = c * layout.plane; first < layout.elements;
           first += layout.channels * layout.plane) {
        cpu::add_moments(x.as<const T>() + first, layout.plane, plan.groups_per_run, sums);
      }
      for (int64_t lane = 0; lane < plan.lanes; ++lane) merge(sums, lane, moments[c]);
    }
  });
  if (!plan.planes) {
    for (int64_t split = 0; split < plan.splits; ++split) {
      const LaneSums<Sum> sums = sums_of<Sum>(layout, workspace, split);
      for (int64_t lane = 0; lane < plan.lanes; ++lane) {
        merge(sums, lane, moments[lane % layout.channels]);
      }
    }
  }
  return moments;
}

void check_workspace(const Layout& layout, const View& workspace) {
  const int64_t needed = layout.plan.workspace_bytes();
  CHECK(needed == 0 || (workspace && workspace.numel() >= needed), "batch_norm: needs ", needed,
        " bytes of workspace");
}

template <class Sum>
void move_running(const View& running, double value, double momentum, int64_t c) {
  if (!running) return;
  Sum& average = running.as<Sum>()[c];
  average = static_cast<Sum>((1 - momentum) * average + momentum * value);
}

void batch_norm_train(const View& x, const View& residual, const View& gamma, const View& beta,
                      const BatchNormParams& params, const View& workspace, const View& y,
                      const View& mean, const View& rstd, const View& running_mean,
                      const View& running_var) {
  check_like(residual, x, "residual");
  check_like(y, x, "y");
  for (const View* view : {&gamma, &beta, &mean, &rstd, &running_mean, &running_var}) {
    check_channels(*view, x, "a per-channel operand");
  }
  const Layout layout(x);
  check_workspace(layout, workspace);
  dispatch_floating(x.dtype, "batch_norm", [&](auto tag) {
    using T = decltype(tag);
    using Sum = compute_t<T>;
    const std::vector<Moments> moments = channel_moments<T>(layout, x, workspace);
    for (int64_t c = 0; c < layout.channels; ++c) {
      const Moments& m = moments[c];
      const double variance = m.count > 0 ? m.deviations / m.count : 0;
      mean.as<Sum>()[c] = static_cast<Sum>(m.mean);
      rstd.as<Sum>()[c] = static_cast<Sum>(1 / std::sqrt(variance + params.eps));
      // An overflowed batch is skipped by the loss scaler; the averages skip it too.
      if (m.count > 1 && std::isfinite(static_cast<Sum>(m.mean)) &&
          std::isfinite(static_cast<Sum>(variance))) {
        move_running<Sum>(running_mean, m.mean, params.momentum, c);
        move_running<Sum>(running_var, m.deviations / (m.count - 1), params.momentum, c);
      }
    }
    const Table<Sum> table(layout, gamma, beta, mean, rstd);
    write_output<T>(layout, *table, x, residual, params.relu, y);
  });
}

void batch_norm_apply(const View& x, const View& residual, const View& gamma, const View& beta,
                      const View& mean, const View& rstd, const BatchNormParams& params,
                      const View& y) {
  check_like(residual, x, "residual");
  check_like(y, x, "y");
  for (const View* view : {&gamma, &beta, &mean, &rstd}) {
    check_channels(*view, x, "a per-channel operand");
  }
  const Layout layout(x);
  dispatch_floating(x.dtype, "batch_norm", [&](auto tag) {
    using T = decltype(tag);
    const Table<compute_t<T>> table(layout, gamma, beta, mean, rstd);
    write_output<T>(layout, *table, x, residual, params.relu, y);
  });
}

void batch_norm_rstd(const View& running_var, double eps, const View& rstd) {
  CHECK(running_var.dtype == rstd.dtype && running_var.numel() == rstd.numel(),
        "batch_norm: rstd must match running_var");
  const auto compute = [&](auto tag) {
    using Sum = decltype(tag);
    for (int64_t c = 0; c < rstd.numel(); ++c) {
      const double variance = running_var.as<Sum>()[c];
      rstd.as<Sum>()[c] = static_cast<Sum>(1 / std::sqrt(variance + eps));
    }
  };
  CHECK(rstd.dtype == DType::f32 || rstd.dtype == DType::f64,
        "batch_norm: rstd must be f32 or f64");
  if (rstd.dtype == DType::f64) {
    compute(double{});
  } else {
    compute(float{});
  }
}

// dx, dresidual, dgamma and dbeta of one call.
template <class T>
class Gradient {
 public:
  using Sum = compute_t<T>;

  Gradient(const Layout& layout, const Table<Sum>& table, const View& x, const View& y,
           const View& dy, bool relu)
      : layout_(layout),
        table_(*table),
        x_(x.as<const T>()),
        y_(part<const T>(y)),
        dy_(dy.as<const T>()),
        relu_(relu) {}

  // Sums of dy' and dy' * xhat over each channel, in this order, into sums[2 * channels].
  void add_up(const View& workspace, std::vector<double>& sums) const {
    const BatchNormPlan& plan = layout_.plan;
    const auto fold = [&](const LaneSums<Sum>& lanes, int64_t lane, int64_t c) {
      sums[2 * c] += lanes.first[lane];
      sums[2 * c + 1] += lanes.second[lane];
    };
    for_splits(layout_, [&](int64_t split, int64_t begin, int64_t end) {
      LaneSums<Sum> lanes = sums_of<Sum>(layout_, workspace, split);
      if (!plan.planes) {
        lanes.clear();
        add_elements(begin, end - begin, 0, lanes);
        return;
      }
      for (int64_t c = begin; c < end; ++c) {
        lanes.clear();
        for (int64_t first = c * layout_.plane; first < layout_.elements;
             first += layout_.channels * layout_.plane) {
          add_elements(first, layout_.plane, c, lanes);
        }
        for (int64_t lane = 0; lane < plan.lanes; ++lane) fold(lanes, lane, c);
      }
    });
    if (plan.planes) return;
    for (int64_t split = 0; split < plan.splits; ++split) {
      const LaneSums<Sum> lanes = sums_of<Sum>(layout_, workspace, split);
      for (int64_t lane = 0; lane < plan.lanes; ++lane) fold(lanes, lane, lane % layout_.channels);
    }
  }

  // dx = scale * (dy' - mean(dy') - xhat * mean(dy' * xhat)), the means being 0 for constant
  // statistics; dresidual = dy'.
  void write(const std::vector<double>& sums, bool training, const View& dx,
             const View& dresidual) const {
    const int64_t size = layout_.table_size();
    std::vector<Sum> means(static_cast<size_t>(2 * size), Sum(0));
    if (training) {
      const double count = static_cast<double>(layout_.per_channel());
      for (int64_t i = 0; i < size; ++i) {
        const int64_t c = i % layout_.channels;
        means[i] = static_cast<Sum>(sums[2 * c] / count);
        means[size + i] = static_cast<Sum>(sums[2 * c + 1] / count);
      }
    }
    layout_.for_runs([&](int64_t run, int64_t begin, int64_t elements) {
      const Coefficients<Sum> own = layout_.coefficients(table_, run);
      const Sum* mean_dy = means.data() + (layout_.plan.planes ? run % layout_.channels : 0);
      const Sum* mean_dy_xhat = mean_dy + size;
      Sum x[kBatchNormTile], dy[kBatchNormTile];
      for (int64_t i = 0; i < elements; i += kBatchNormTile) {
        const int64_t count = std::min(kBatchNormTile, elements - i);
        const Coefficients<Sum> c = own.at(i);
        load(begin + i, c, count, x, dy);
        if (dresidual) cpu::convert_run(dy, dresidual.as<T>() + begin + i, count);
        if (!dx) continue;
        for (int64_t j = 0; j < count; ++j) {
          const int64_t k = j * own.step, m = (i + j) * own.step;
          const Sum xhat = (x[j] - c.mean[k]) * c.rstd[k];
          dy[j] = c.scale[k] * (dy[j] - mean_dy[m] - xhat * mean_dy_xhat[m]);
        }
        cpu::convert_run(dy, dx.as<T>() + begin + i, count);
      }
    });
  }

 private:
  // x and dy' of a tile, in computing precision.
  void load(int64_t first, const Coefficients<Sum>& c, int64_t count, Sum* x, Sum* dy) const {
    cpu::convert_run(x_ + first, x, count);
    cpu::convert_run(dy_ + first, dy, count);
    if (!relu_) return;
    Sum output[kBatchNormTile];
    if (y_ != nullptr) {
      cpu::convert_run(y_ + first, output, count);
      cpu::mask_tile(output, Sum(0), dy, count);
    } else {
      cpu::normalize_tile(x, c, output, count);
      cpu::mask_tile(output, cpu::rounds_to_zero<T>(), dy, count);
    }
  }

  // Adds elements [first, first + elements), whose lanes start at 0, to the sums.
  void add_elements(int64_t first, int64_t elements, int64_t channel, LaneSums<Sum>& lanes) const {
    const int64_t width = lanes.lanes;
    const Coefficients<Sum> own = layout_.coefficients(table_, channel);
    const int64_t groups = (elements + width - 1) / width;
    for (int64_t group = 0; group < groups; group += layout_.plan.groups_per_run) {
      std::fill_n(lanes.run_a, width, Sum(0));
      std::fill_n(lanes.run_b, width, Sum(0));
      const int64_t end = std::min(groups, group + layout_.plan.groups_per_run);
      for (int64_t g = group; g < end; ++g) {
        const int64_t begin = g * width, length = std::min(width, elements - begin);
        Sum x[kBatchNormTile], dy[kBatchNormTile];
        for (int64_t i = 0; i < length; i += kBatchNormTile) {
          const int64_t count = std::min(kBatchNormTile, length - i);
          const Coefficients<Sum> c = own.at(i);
          load(first + begin + i, c, count, x, dy);
          for (int64_t j = 0; j < count; ++j) {
            const int64_t k = j * own.step;
            lanes.run_a[i + j] += dy[j];
            lanes.run_b[i + j] += dy[j] * ((x[j] - c.mean[k]) * c.rstd[k]);
          }
        }
      }
      for (int64_t lane = 0; lane < width; ++lane) {
        lanes.first[lane] += lanes.run_a[lane];
        lanes.second[lane] += lanes.run_b[lane];
      }
    }
  }

  const Layout& layout_;
  Coefficients<Sum> table_;
  const T* x_;
  const T* y_;
  const T* dy_;
  bool relu_;
};

void batch_norm_backward(const View& x, const View& y, const View& dy, const View& gamma,
                         const View& beta, const View& mean, const View& rstd,
                         const BatchNormParams& params, const View& workspace, const View& dx,
                         const View& dresidual, const View& dgamma, const View& dbeta) {
  for (const View* view : {&y, &dy, &dx, &dresidual}) check_like(*view, x, "an operand");
  for (const View* view : {&gamma, &beta, &mean, &rstd, &dgamma, &dbeta}) {
    check_channels(*view, x, "a per-channel operand");
  }
  const Layout layout(x);
  check_workspace(layout, workspace);
  dispatch_floating(x.dtype, "batch_norm", [&](auto tag) {
    using T = decltype(tag);
    using Sum = compute_t<T>;
    const Table<Sum> table(layout, gamma, beta, mean, rstd);
    const Gradient<T> gradient(layout, table, x, y, dy, params.relu);
    std::vector<double> sums(static_cast<size_t>(2 * layout.channels), 0.0);
    if (dgamma || dbeta || (dx && params.training)) gradient.add_up(workspace, sums);
    for (int64_t c = 0; c < layout.channels; ++c) {
      if (dbeta) dbeta.as<Sum>()[c] = static_cast<Sum>(sums[2 * c]);
      if (dgamma) dgamma.as<Sum>()[c] = static_cast<Sum>(sums[2 * c + 1]);
    }
    if (dx || dresidual) gradient.write(sums, params.training, dx, dresidual);
  });
}

}  // namespace

void register_cpu_batch_norm_kernels() {
  slots::batch_norm_train.set(DeviceType::cpu, &batch_norm_train);
  slots::batch_norm_apply.set(DeviceType::cpu, &batch_norm_apply);
  slots::batch_norm_rstd.set(DeviceType::cpu, &batch_norm_rstd);
  slots::batch_norm_backward.set(DeviceType::cpu, &batch_norm_backward);
}

}  // namespace headroom
