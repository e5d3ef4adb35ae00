// Batch normalisation of the CPU backend, backward. dy' is dy where the output was positive (with
// ReLU), else dy; the output is read, or recomputed by the expression of the forward pass.
#include <algorithm>
#include <vector>

#include "kernels/cpu/batch_norm_layout.h"

namespace headroom::cpu {
namespace {

template <class T>
T* part(const View& view) {
  return view ? view.as<T>() : nullptr;
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
        if (dresidual) convert_run(dy, dresidual.as<T>() + begin + i, count);
        if (!dx) continue;
        gradient_tile(x, c, mean_dy + i * own.step, mean_dy_xhat + i * own.step, dy, count);
        convert_run(dy, dx.as<T>() + begin + i, count);
      }
    });
  }

 private:
  // x and dy' of a tile, in computing precision.
  void load(int64_t first, const Coefficients<Sum>& c, int64_t count, Sum* x, Sum* dy) const {
    convert_run(x_ + first, x, count);
    convert_run(dy_ + first, dy, count);
    if (!relu_) return;
    Sum output[kBatchNormTile];
    if (y_ != nullptr) {
      convert_run(y_ + first, output, count);
      mask_tile(output, Sum(0), dy, count);
    } else {
      normalize_tile(x, c, output, count);
      mask_tile(output, rounds_to_zero<T>(), dy, count);
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
          gradient_sums_tile(x, dy, c, lanes.run_a + i, lanes.run_b + i, count);
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

}  // namespace

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
    if (layout.elements > 0 && (dx || dresidual))
      gradient.write(sums, params.training, dx, dresidual);
  });
}

}  // namespace headroom::cpu
