// Per-channel sums of batch normalisation, robust against large means and outliers, in an order
// fixed by shape.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/ops/workspace_cpu.h"

namespace headroom::cpu {

// Sums over `lanes` series side by side, in one split's part of the workspace.
template <class Sum>
struct LaneSums {
  int64_t lanes = 0;
  double *count = nullptr, *first = nullptr, *second = nullptr;
  Sum *run_a = nullptr, *run_b = nullptr, *run_c = nullptr;

  LaneSums(int64_t lanes, void* memory);
  void clear();
};

// Adds x[0 .. elements), element i to lane i % lanes, to the running mean (`first`) and sum of
// squared deviations (`second`) of each lane. Every run of groups is summed twice while it is in
// cache, the second time around its own mean, and merged as in Chan, Golub & LeVeque 1979.
template <class T>
void add_moments(const T* x, int64_t elements, int64_t groups_per_run,
                 LaneSums<compute_t<T>>& sums);

// Mean, and sum of squared deviations from it.
struct Moments {
  double count = 0, mean = 0, deviations = 0;
  void merge(double other_count, double other_mean, double other_deviations);
};

}  // namespace headroom::cpu
