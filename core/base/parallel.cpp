// parallel_for on OpenMP, the one translation unit that is compiled with it.
#include "core/base/parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "core/base/error.h"

namespace headroom {
namespace {

std::atomic<int> requested_threads{0};

}  // namespace

void set_num_threads(int threads) {
  CHECK_ARG(threads >= 0, "threads: must be 0 (all) or more, got ", threads);
  requested_threads = threads;
}

int num_threads() {
  const int requested = requested_threads;
  if (requested > 0) return requested;
  return std::max(1, omp_get_num_procs());
}

void parallel_for(int64_t tasks, const std::function<void(int64_t task)>& fn) {
  const int threads = static_cast<int>(std::min<int64_t>(tasks, num_threads()));
  if (threads <= 1 || omp_in_parallel()) {
    for (int64_t task = 0; task < tasks; ++task) fn(task);
    return;
  }
  std::exception_ptr failure;
  std::mutex failure_mutex;
  std::atomic<bool> failed{false};
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int64_t task = 0; task < tasks; ++task) {
    if (failed.load(std::memory_order_relaxed)) continue;
    try {
      fn(task);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      failed = true;
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void parallel_ranges(int64_t count, int64_t grain,
                     const std::function<void(int64_t begin, int64_t end)>& fn) {
  if (count <= 0) return;
  constexpr int64_t kMaxRanges = 64;  // enough to balance 16 threads; fixed, so bits do not move
  const int64_t ranges = std::clamp<int64_t>(count / std::max<int64_t>(1, grain), 1, kMaxRanges);
  const int64_t size = (count + ranges - 1) / ranges;
  parallel_for(ranges, [&](int64_t range) {
    const int64_t begin = range * size, end = std::min(count, begin + size);
    if (begin < end) fn(begin, end);
  });
}

}  // namespace headroom
