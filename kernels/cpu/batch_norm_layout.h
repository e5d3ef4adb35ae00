// What forward and backward batch normalisation share: how x is walked through, per-channel
// coefficients laid out to match, and the checks of operands.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/ops/params.h"
#include "core/ops/workspace_cpu.h"
#include "core/tensor/view.h"
#include "kernels/cpu/batch_norm_math.h"
#include "kernels/cpu/batch_norm_sums.h"

namespace headroom::cpu {

// x as runs of neighbouring elements: whole planes of one channel (nchw), or groups of pixels,
// `repeat` side by side (nhwc and [n,c]; the last group may be shorter).
struct Layout {
  BatchNormPlan plan;
  int64_t channels = 0, elements = 0, plane = 1;

  explicit Layout(const View& x)
      : plan(plan_batch_norm(x)), channels(x.shape[1]), elements(x.numel()) {
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

inline void check_channels(const View& view, const View& x, const char* name) {
  if (!view) return;
  const DType expected = x.dtype == DType::f64 ? DType::f64 : DType::f32;
  CHECK(view.dtype == expected && view.numel() == x.shape[1], "batch_norm: ", name, " must be ",
        expected, " [", x.shape[1], "], got ", view.dtype, view.shape);
}
inline void check_like(const View& view, const View& x, const char* name) {
  CHECK(!view || (view.dtype == x.dtype && view.shape == x.shape && view.is_dense() &&
                  (x.rank() != 4 || view.format == x.format)),
        "batch_norm: ", name, " must have the dtype, shape and layout of x");
}

// Calls fn(split, begin, end) for the ranges of elements (rows of pixels) or channels (planes) of
// the splits, in parallel.
template <class Fn>
void for_splits(const Layout& layout, Fn&& fn) {
  const int64_t splits = layout.plan.splits;
  if (splits == 0) return;
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

inline void check_workspace(const Layout& layout, const View& workspace) {
  const int64_t needed = layout.plan.workspace_bytes();
  CHECK(needed == 0 || (workspace && workspace.numel() >= needed), "batch_norm: needs ", needed,
        " bytes of workspace");
}

// The kernel of slots::batch_norm_backward; see contract.h.
void batch_norm_backward(const View& x, const View& y, const View& dy, const View& gamma,
                         const View& beta, const View& mean, const View& rstd,
                         const BatchNormParams& params, const View& workspace, const View& dx,
                         const View& dresidual, const View& dgamma, const View& dbeta);

}  // namespace headroom::cpu
