// Batch normalisation of the CPU backend, forward: statistics, and the output with residual and
// ReLU. The arithmetic of a tile is in batch_norm_math.h, the sums are in batch_norm_sums.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/ops/contract.h"
#include "kernels/cpu/batch_norm_layout.h"
#include "kernels/cpu/families.h"

namespace headroom {
namespace {

using cpu::BatchNormPlan;
using cpu::Coefficients;
using cpu::kBatchNormTile;
using cpu::LaneSums;
using cpu::Layout;
using cpu::Moments;
using cpu::Table;

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

// Count, mean and squared deviations of every channel.
template <class T>
std::vector<Moments> channel_moments(const Layout& layout, const View& x, const View& workspace) {
  using Sum = compute_t<T>;
  std::vector<Moments> moments(static_cast<size_t>(layout.channels));
  const BatchNormPlan& plan = layout.plan;
  const auto merge = [](const LaneSums<Sum>& sums, int64_t lane, Moments& into) {
    into.merge(sums.count[lane], sums.first[lane], sums.second[lane]);
  };
  cpu::for_splits(layout, [&](int64_t split, int64_t begin, int64_t end) {
    LaneSums<Sum> sums = cpu::sums_of<Sum>(layout, workspace, split);
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
      const LaneSums<Sum> sums = cpu::sums_of<Sum>(layout, workspace, split);
      for (int64_t lane = 0; lane < plan.lanes; ++lane) {
        merge(sums, lane, moments[lane % layout.channels]);
      }
    }
  }
  return moments;
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
  cpu::check_like(residual, x, "residual");
  cpu::check_like(y, x, "y");
  for (const View* view : {&gamma, &beta, &mean, &rstd, &running_mean, &running_var}) {
    cpu::check_channels(*view, x, "a per-channel operand");
  }
  const Layout layout(x);
  cpu::check_workspace(layout, workspace);
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
  cpu::check_like(residual, x, "residual");
  cpu::check_like(y, x, "y");
  for (const View* view : {&gamma, &beta, &mean, &rstd}) {
    cpu::check_channels(*view, x, "a per-channel operand");
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

}  // namespace

void register_cpu_batch_norm_kernels() {
  slots::batch_norm_train.set(DeviceType::cpu, &batch_norm_train);
  slots::batch_norm_apply.set(DeviceType::cpu, &batch_norm_apply);
  slots::batch_norm_rstd.set(DeviceType::cpu, &batch_norm_rstd);
  slots::batch_norm_backward.set(DeviceType::cpu, &cpu::batch_norm_backward);
}

}  // namespace headroom
