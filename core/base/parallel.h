// Parallel loops for the CPU kernels. Work is cut into tasks by shape, never by thread count, so
// results do not depend on how many threads run.
#pragma once

#include <cstdint>
#include <functional>

namespace headroom {

// Threads used by parallel_for; 0 asks for one per hardware thread. Throws InvalidArgument if
// negative.
void set_num_threads(int threads);
int num_threads();

// Calls fn(task) for task in [0, tasks), on up to num_threads() threads, the caller among them. The
// first exception thrown is rethrown here. Nested calls run inline.
void parallel_for(int64_t tasks, const std::function<void(int64_t task)>& fn);

// Cuts [0, count) into ranges of at least `grain` elements (fixed by count and grain alone) and
// calls fn(begin, end) for each, in parallel.
void parallel_ranges(int64_t count, int64_t grain,
                     const std::function<void(int64_t begin, int64_t end)>& fn);

}  // namespace headroom
