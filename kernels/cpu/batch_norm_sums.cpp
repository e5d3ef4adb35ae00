// Welford-style sums over lanes; see batch_norm_sums.h.
#include "kernels/cpu/batch_norm_sums.h"

#include <algorithm>

#include "kernels/cpu/batch_norm_math.h"

namespace headroom::cpu {
namespace {

// Calls fn(group, offset in the lanes, values, count) for tiles of `groups` rows of `width`.
template <class T, class Fn>
void for_tiles(const T* x, int64_t groups, int64_t width, int64_t row, Fn&& fn) {
  using Sum = compute_t<T>;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t lane = 0; lane < width; lane += kBatchNormTile) {
      const int64_t count = std::min(kBatchNormTile, width - lane);
      const T* from = x + group * row + lane;
      if constexpr (std::is_same_v<T, Sum>) {
        fn(lane, from, count);
      } else {
        Sum tile[kBatchNormTile];
        convert_run(from, tile, count);
        fn(lane, tile, count);
      }
    }
  }
}

// Merges `groups` rows of `width` elements into the first `width` lanes.
template <class T>
void add_run(const T* x, int64_t groups, int64_t width, LaneSums<compute_t<T>>& sums) {
  using Sum = compute_t<T>;
  Sum* pivot = sums.run_a;
  Sum* rest = sums.run_b;
  Sum* squares = sums.run_c;
  std::fill_n(pivot, width, Sum(0));
  for_tiles(x, groups, width, sums.lanes, [&](int64_t lane, const Sum* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) pivot[lane + i] += values[i];
  });
  const Sum inverse = Sum(1) / static_cast<Sum>(groups);
  for (int64_t i = 0; i < width; ++i) pivot[i] *= inverse;

  std::fill_n(rest, width, Sum(0));
  std::fill_n(squares, width, Sum(0));
  for_tiles(x, groups, width, sums.lanes, [&](int64_t lane, const Sum* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const Sum difference = values[i] - pivot[lane + i];
      rest[lane + i] += difference;
      squares[lane + i] += difference * difference;
    }
  });
  const double added = static_cast<double>(groups);
  for (int64_t i = 0; i < width; ++i) {
    // What the rounded mean left over corrects mean and squares.
    const double left = rest[i] / added;
    const double mean = pivot[i] + left;
    const double deviations = std::max(0.0, squares[i] - left * rest[i]);
    const double total = sums.count[i] + added;
    const double weight = added / total;
    const double difference = mean - sums.first[i];
    sums.second[i] += deviations + difference * difference * sums.count[i] * weight;
    sums.first[i] += difference * weight;
    sums.count[i] = total;
  }
}

}  // namespace

template <class Sum>
LaneSums<Sum>::LaneSums(int64_t lane_count, void* memory) : lanes(lane_count) {
  count = static_cast<double*>(memory);
  first = count + lanes;
  second = first + lanes;
  run_a = reinterpret_cast<Sum*>(second + lanes);
  run_b = run_a + lanes;
  run_c = run_b + lanes;
}

template <class Sum>
void LaneSums<Sum>::clear() {
  std::fill_n(count, lanes, 0.0);
  std::fill_n(first, lanes, 0.0);
  std::fill_n(second, lanes, 0.0);
}

template <class T>
void add_moments(const T* x, int64_t elements, int64_t groups_per_run,
                 LaneSums<compute_t<T>>& sums) {
  const int64_t groups = elements / sums.lanes, tail = elements % sums.lanes;
  for (int64_t group = 0; group < groups; group += groups_per_run) {
    add_run(x + group * sums.lanes, std::min(groups_per_run, groups - group), sums.lanes, sums);
  }
  if (tail > 0) add_run(x + groups * sums.lanes, 1, tail, sums);
}

void Moments::merge(double other_count, double other_mean, double other_deviations) {
  if (other_count == 0) return;
  const double total = count + other_count;
  const double difference = other_mean - mean;
  const double weight = other_count / total;
  deviations += other_deviations + difference * difference * count * weight;
  mean += difference * weight;
  count = total;
}

template struct LaneSums<float>;
template struct LaneSums<double>;
template void add_moments<Half>(const Half*, int64_t, int64_t, LaneSums<float>&);
template void add_moments<BFloat16>(const BFloat16*, int64_t, int64_t, LaneSums<float>&);
template void add_moments<float>(const float*, int64_t, int64_t, LaneSums<float>&);
template void add_moments<double>(const double*, int64_t, int64_t, LaneSums<double>&);

}  // namespace headroom::cpu
