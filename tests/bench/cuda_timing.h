// What the benchmarks of CUDA kernels share: a GPU or an error, and times by events on the stream.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>

#include "core/base/device.h"
#include "kernels/register.h"

namespace headroom::bench {

// Whether there is a GPU to measure; if not, the benchmark ends with an error that says so.
inline bool has_gpu(benchmark::State& state) {
  if (!has_runtime(Device::cuda())) register_kernels();
  if (has_runtime(Device::cuda())) return true;
  state.SkipWithError("no GPU");
  return false;
}

// Times fn, which moves `bytes`. An iteration is the mean of several calls queued at once, so that
// the host's part is hidden behind the device's.
template <class Fn>
void measure(benchmark::State& state, int64_t bytes, Fn&& fn) {
  constexpr int kCallsPerTiming = 20;
  DeviceRuntime& runtime = runtime_of(Device::cuda());
  const EventHandle begin = runtime.create_event(), end = runtime.create_event();
  fn();
  runtime.synchronize();
  for (auto _ : state) {
    runtime.record_event(begin, Stream::compute);
    for (int i = 0; i < kCallsPerTiming; ++i) fn();
    runtime.record_event(end, Stream::compute);
    runtime.synchronize_event(end);
    state.SetIterationTime(runtime.elapsed_ms(begin, end) * 1e-3 / kCallsPerTiming);
  }
  runtime.destroy_event(begin);
  runtime.destroy_event(end);
  state.counters["GB_per_s"] = benchmark::Counter(static_cast<double>(bytes) * 1e-9,
                                                  benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace headroom::bench
