// Time and memory traffic of batch normalisation on a GPU for layers of ResNet-50 and ResNet-18, in
// f16 nhwc. GB_per_s counts each tensor once for every pass of the two-launch form that reads or
// writes it, whether it came from a cache or not.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "core/ops/contract.h"
#include "core/ops/workspace.h"
#include "core/tensor/tensor.h"
#include "tests/bench/cuda_timing.h"

namespace headroom {
namespace {

using bench::has_gpu;

Tensor random_like(const Shape& shape, DType dtype, uint64_t seed) {
  Tensor out = empty(shape, {dtype, Device::cuda(), MemoryFormat::channels_last});
  slots::fill_normal(seed, 0, 0, 1, out);
  return out;
}

struct Layer {
  Tensor x, residual, dy, y, dx, dresidual, gamma, beta, mean, rstd, dgamma, dbeta, running_mean,
      running_var, workspace;
  BatchNormParams params;

  explicit Layer(const Shape& shape) {
    x = random_like(shape, DType::f16, 1);
    residual = random_like(shape, DType::f16, 2);
    dy = random_like(shape, DType::f16, 3);
    y = empty_like(x);
    dx = empty_like(x);
    dresidual = empty_like(x);
    const TensorOptions per_channel{DType::f32, Device::cuda()};
    gamma = ones({shape[1]}, per_channel);
    beta = zeros({shape[1]}, per_channel);
    mean = zeros({shape[1]}, per_channel);
    rstd = ones({shape[1]}, per_channel);
    dgamma = zeros({shape[1]}, per_channel);
    dbeta = zeros({shape[1]}, per_channel);
    running_mean = zeros({shape[1]}, per_channel);
    running_var = ones({shape[1]}, per_channel);
    workspace = empty({batch_norm_workspace_bytes(Device::cuda(), x)}, {DType::u8, Device::cuda()});
    params.relu = true;
  }
  void train(const View& added) const {
    slots::batch_norm_train(x, added, gamma, beta, params, workspace, y, mean, rstd, running_mean,
                            running_var);
  }
  void backward(const View& output, const View& residual_gradient) const {
    slots::batch_norm_backward(x, output, dy, gamma, beta, mean, rstd, params, workspace, dx,
                               residual_gradient, dgamma, dbeta);
  }
};

// Times fn, which moves `tensors` times the size of x.
template <class Fn>
void measure(benchmark::State& state, const Layer& layer, int tensors, Fn&& fn) {
  bench::measure(state, layer.x.nbytes() * tensors, std::forward<Fn>(fn));
}

Shape shape_of(const benchmark::State& state) {
  return {state.range(0), state.range(1), state.range(2), state.range(2)};
}

void train(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Layer layer(shape_of(state));
  measure(state, layer, 3, [&] { layer.train(View{}); });
}

void train_residual(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Layer layer(shape_of(state));
  measure(state, layer, 4, [&] { layer.train(layer.residual); });
}

void apply(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Layer layer(shape_of(state));
  measure(state, layer, 2, [&] {
    slots::batch_norm_apply(layer.x, View{}, layer.gamma, layer.beta, layer.mean, layer.rstd,
                            layer.params, layer.y);
  });
}

// The sums alone, which is what backward does for a layer whose input needs no gradient.
void backward_sums(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Layer layer(shape_of(state));
  measure(state, layer, 2, [&] {
    slots::batch_norm_backward(layer.x, View{}, layer.dy, layer.gamma, layer.beta, layer.mean,
                               layer.rstd, layer.params, layer.workspace, View{}, View{},
                               layer.dgamma, layer.dbeta);
  });
}

void backward(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Layer layer(shape_of(state));
  measure(state, layer, 5, [&] { layer.backward(View{}, View{}); });
}

void backward_residual(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Layer layer(shape_of(state));
  measure(state, layer, 7, [&] { layer.backward(layer.y, layer.dresidual); });
}

void layers(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime()->Unit(benchmark::kMicrosecond)->ArgNames({"n", "c", "hw"});
  // ResNet-50 at 224.
  bench->Args({64, 64, 112})->Args({64, 64, 56})->Args({64, 256, 56})->Args({64, 128, 28});
  bench->Args({64, 512, 28})->Args({64, 1024, 14})->Args({64, 512, 7})->Args({64, 2048, 7});
  // ResNet-18 at 32, batches of 64 and 512.
  bench->Args({64, 64, 32})->Args({64, 128, 16})->Args({64, 256, 8})->Args({64, 512, 4});
  bench->Args({512, 64, 32})->Args({512, 128, 16})->Args({512, 256, 8})->Args({512, 512, 4});
  // Channels that allow no 16-byte access.
  bench->Args({64, 10, 64});
}

#define HEADROOM_BENCH(fn) BENCHMARK(fn)->Name("batch_norm_cuda/" #fn)->Apply(layers)
HEADROOM_BENCH(train);
HEADROOM_BENCH(train_residual);
HEADROOM_BENCH(apply);
HEADROOM_BENCH(backward_sums);
HEADROOM_BENCH(backward);
HEADROOM_BENCH(backward_residual);

}  // namespace
}  // namespace headroom
