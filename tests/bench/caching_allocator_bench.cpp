// What a request costs on the host. A training step makes about a thousand of them, so a pair of
// allocate and free has to stay well under a microsecond.
#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <vector>

#include "core/memory/caching_allocator.h"

namespace headroom {
namespace {

constexpr uint64_t kLargestBytes = uint64_t{8} << 20;

// An allocator whose cache is in pieces: 2000 blocks of random size, every second one freed.
std::unique_ptr<CachingAllocator> fragmented_allocator(std::mt19937_64& random) {
  const Device device = Device::meta(DeviceType::cuda);
  auto out = std::make_unique<CachingAllocator>(device, runtime_of(device));
  std::vector<Block*> blocks;
  for (int i = 0; i < 2000; ++i) {
    blocks.push_back(out->allocate(static_cast<int64_t>(1 + random() % kLargestBytes)));
  }
  for (size_t i = 0; i < blocks.size(); i += 2) out->free(blocks[i]);
  return out;
}

void allocate_and_free_one_size(benchmark::State& state) {
  std::mt19937_64 random(1);
  const auto allocator = fragmented_allocator(random);
  for (auto _ : state) allocator->free(allocator->allocate(state.range(0)));
}
BENCHMARK(allocate_and_free_one_size)->Arg(4096)->Arg(3 << 20);

void allocate_and_free_mixed_sizes(benchmark::State& state) {
  std::mt19937_64 random(1);
  const auto allocator = fragmented_allocator(random);
  if (state.range(0)) allocator->record_events(state.range(0));
  std::vector<int64_t> sizes(1024);
  for (int64_t& bytes : sizes) bytes = static_cast<int64_t>(1 + random() % kLargestBytes);
  size_t i = 0;
  for (auto _ : state) allocator->free(allocator->allocate(sizes[i++ % sizes.size()]));
}
BENCHMARK(allocate_and_free_mixed_sizes)->ArgName("recorded")->Arg(0)->Arg(100000);

void enter_module(benchmark::State& state) {
  const PathScope outer("blocks.0.convs");
  for (auto _ : state) {
    const PathScope path("conv1");
    const OpScope op("conv2d");
    benchmark::DoNotOptimize(memory_context().path);
  }
}
BENCHMARK(enter_module);

}  // namespace
}  // namespace headroom
