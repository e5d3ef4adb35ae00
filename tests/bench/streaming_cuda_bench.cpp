// Time and memory traffic of the CUDA kernels that only move data: elementwise ops, copies,
// reductions, pooling, losses and optimizer steps. GB_per_s counts each operand once for every time
// the kernel must read or write it.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "core/ops/contract.h"
#include "core/tensor/tensor.h"
#include "tests/bench/cuda_timing.h"

namespace headroom {
namespace {

using bench::has_gpu;
using bench::measure;

constexpr MemoryFormat kNhwc = MemoryFormat::channels_last;

Tensor random(const Shape& shape, DType dtype, MemoryFormat format = MemoryFormat::contiguous) {
  Tensor out = empty(shape, {dtype, Device::cuda(), format});
  slots::fill_normal(1, 0, 0, 1, out);
  return out;
}
Tensor room(const Shape& shape, DType dtype, MemoryFormat format = MemoryFormat::contiguous) {
  return empty(shape, {dtype, Device::cuda(), format});
}

// ---- one dimension: range(0) elements ----

void relu_f16(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor x = random({state.range(0)}, DType::f16), y = empty_like(x);
  measure(state, 2 * x.nbytes(), [&] { slots::unary(UnaryOp::relu, 0, x, y); });
}
void relu_backward_f16(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor y = random({state.range(0)}, DType::f16), dy = empty_like(y), dx = empty_like(y);
  measure(state, 3 * y.nbytes(), [&] { slots::unary_backward(UnaryOp::relu, 0, y, dy, dx); });
}
void add_f16(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor a = random({state.range(0)}, DType::f16), b = empty_like(a), y = empty_like(a);
  measure(state, 3 * a.nbytes(), [&] { slots::binary(BinaryOp::add, a, b, y); });
}
void accumulate_f16_into_f32(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor sum = random({state.range(0)}, DType::f32), g = random({state.range(0)}, DType::f16);
  measure(state, 2 * sum.nbytes() + g.nbytes(), [&] { slots::binary(BinaryOp::add, sum, g, sum); });
}
void cast_f32_to_f16(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor x = random({state.range(0)}, DType::f32), y = room({state.range(0)}, DType::f16);
  measure(state, x.nbytes() + y.nbytes(), [&] { slots::copy(x, y); });
}
void fill_f16(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor y = room({state.range(0)}, DType::f16);
  measure(state, y.nbytes(), [&] { slots::fill(1, y); });
}
void dropout_f16(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor x = random({state.range(0)}, DType::f16), y = empty_like(x);
  measure(state, 2 * x.nbytes(), [&] { slots::dropout(0.5, 1, 2, x, y); });
}
void sum_f32(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor x = random({state.range(0)}, DType::f32), y = room({1}, DType::f32);
  measure(state, x.nbytes(), [&] { slots::reduce(ReduceOp::sum, x, y); });
}

void lengths(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime()->Unit(benchmark::kMicrosecond)->ArgName("elements");
  bench->Arg(1 << 16)->Arg(1 << 22)->Arg(1 << 26)->Arg(1 << 28);
}
#define HEADROOM_BENCH_LENGTHS(fn) BENCHMARK(fn)->Name("streaming_cuda/" #fn)->Apply(lengths)
HEADROOM_BENCH_LENGTHS(relu_f16);
HEADROOM_BENCH_LENGTHS(relu_backward_f16);
HEADROOM_BENCH_LENGTHS(add_f16);
HEADROOM_BENCH_LENGTHS(accumulate_f16_into_f32);
HEADROOM_BENCH_LENGTHS(cast_f32_to_f16);
HEADROOM_BENCH_LENGTHS(fill_f16);
HEADROOM_BENCH_LENGTHS(dropout_f16);
HEADROOM_BENCH_LENGTHS(sum_f32);

// ---- images n, c, h = w ----

Shape image_of(const benchmark::State& state) {
  return {state.range(0), state.range(1), state.range(2), state.range(2)};
}

void nchw_to_nhwc_f16(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor x = random(image_of(state), DType::f16),
               y = room(image_of(state), DType::f16, kNhwc);
  measure(state, 2 * x.nbytes(), [&] { slots::copy(x, y); });
}
void bias_gradient_f16(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor dy = random(image_of(state), DType::f16, kNhwc);
  const Tensor db = room({1, dy.size(1), 1, 1}, DType::f32, kNhwc);
  measure(state, dy.nbytes(), [&] { slots::reduce(ReduceOp::sum, dy, db); });
}
void global_average_f16(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Tensor x = random(image_of(state), DType::f16, kNhwc);
  const Tensor y = room({x.size(0), x.size(1), 1, 1}, DType::f16, kNhwc);
  const Pool2dParams params{.kernel = {x.size(2), x.size(3)}};
  measure(state, x.nbytes(), [&] { slots::avg_pool2d(x, params, y); });
}

// The window is 3x3 by 2 with padding (ResNet's stem), or 2x2 by 2 (VGG).
struct MaxPool {
  MaxPool(const Shape& shape, int64_t window) {
    params = {{window, window}, {2, 2}, {window / 3, window / 3}};
    x = random(shape, DType::f16, kNhwc);
    const Shape out{shape[0], shape[1], shape[2] / 2, shape[3] / 2};
    y = room(out, DType::f16, kNhwc);
    offsets = room(out, DType::u8, kNhwc);
    dx = empty_like(x);
  }
  int64_t bytes() const { return x.nbytes() + y.nbytes() + offsets.nbytes(); }
  Pool2dParams params;
  Tensor x, y, offsets, dx;
};
void max_pool(benchmark::State& state, int64_t window) {
  if (!has_gpu(state)) return;
  const MaxPool pool(image_of(state), window);
  measure(state, pool.bytes(),
          [&] { slots::max_pool2d(pool.x, pool.params, pool.y, pool.offsets); });
}
void max_pool_backward(benchmark::State& state, int64_t window) {
  if (!has_gpu(state)) return;
  const MaxPool pool(image_of(state), window);
  slots::max_pool2d(pool.x, pool.params, pool.y, pool.offsets);
  measure(state, pool.bytes(),
          [&] { slots::max_pool2d_backward(pool.y, pool.offsets, pool.params, pool.dx); });
}
void max_pool_3x3(benchmark::State& state) { max_pool(state, 3); }
void max_pool_2x2(benchmark::State& state) { max_pool(state, 2); }
void max_pool_backward_3x3(benchmark::State& state) { max_pool_backward(state, 3); }
void max_pool_backward_2x2(benchmark::State& state) { max_pool_backward(state, 2); }

void images(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime()->Unit(benchmark::kMicrosecond)->ArgNames({"n", "c", "hw"});
  bench->Args({64, 64, 112})->Args({128, 64, 32})->Args({512, 256, 8})->Args({64, 2048, 7});
}
#define HEADROOM_BENCH_IMAGES(fn) BENCHMARK(fn)->Name("streaming_cuda/" #fn)->Apply(images)
HEADROOM_BENCH_IMAGES(nchw_to_nhwc_f16);
HEADROOM_BENCH_IMAGES(bias_gradient_f16);
HEADROOM_BENCH_IMAGES(global_average_f16);
HEADROOM_BENCH_IMAGES(max_pool_3x3);
HEADROOM_BENCH_IMAGES(max_pool_2x2);
HEADROOM_BENCH_IMAGES(max_pool_backward_3x3);
HEADROOM_BENCH_IMAGES(max_pool_backward_2x2);

// u8 224x224 images to f16 nhwc, shifted and mirrored.
void normalize_images(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const int64_t n = state.range(0);
  const TensorOptions single{DType::f32, Device::cuda()};
  const Tensor pixels = full({n, 224, 224, 3}, 100, {DType::u8, Device::cuda()});
  const Tensor offsets = full({n, 3}, 1, {DType::i64, Device::cuda()});
  const Tensor mean = full({3}, 0.5, single), deviation = full({3}, 0.2, single);
  const Tensor y = room({n, 3, 224, 224}, DType::f16, kNhwc);
  measure(state, pixels.nbytes() + y.nbytes(),
          [&] { slots::normalize_images(pixels, offsets, mean, deviation, y); });
}
BENCHMARK(normalize_images)
    ->Name("streaming_cuda/normalize_images")
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Arg(64);

void cross_entropy(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const int64_t rows = state.range(0), classes = state.range(1);
  const TensorOptions single{DType::f32, Device::cuda()};
  const Tensor logits = random({rows, classes}, DType::f32);
  const Tensor labels = zeros({rows}, {DType::i64, Device::cuda()});
  const Tensor row_loss = empty({rows}, single), lse = empty({rows}, single);
  const Tensor loss = empty({}, single), counted = empty({}, single);
  measure(state, logits.nbytes(),
          [&] { slots::cross_entropy(logits, labels, {}, row_loss, lse, loss, counted); });
}
BENCHMARK(cross_entropy)
    ->Name("streaming_cuda/cross_entropy")
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond)
    ->Args({64, 10})
    ->Args({512, 10})
    ->Args({64, 1000})
    ->Args({4096, 1000});

// ---- optimizer steps over the tensors of a network: range(0) of them, range(1) elements each ----

struct Network {
  Network(int64_t tensors, int64_t elements) {
    for (int64_t i = 0; i < tensors; ++i) {
      add(parameters, random({elements}, DType::f32));
      add(gradients, random({elements}, DType::f16));
      add(first, room({elements}, DType::f32));
      add(second, full({elements}, 1, {DType::f32, Device::cuda()}));
      add(halves, room({elements}, DType::f16));
    }
    control = full({kControlFields}, 0.5, {DType::f32, Device::cuda()});
    slots::fill(0, Tensor::make(control.storage(), kFoundInf, {1}, {1}, DType::f32,
                                MemoryFormat::contiguous));
    total = tensors * elements;
  }
  void add(ViewList& list, Tensor tensor) {
    list.push_back(tensor);
    kept.push_back(std::move(tensor));
  }
  ViewList parameters, gradients, first, second, halves;
  std::vector<Tensor> kept;
  Tensor control;
  int64_t total = 0;
};

void sgd_step(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Network net(state.range(0), state.range(1));
  measure(state, net.total * 20, [&] {  // read 4 + 2 + 4 bytes, write 4 + 4 + 2
    slots::sgd_step(net.parameters, net.gradients, net.first, net.halves, net.control,
                    {.momentum = 0.9, .weight_decay = 5e-4});
  });
}
void adam_step(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Network net(state.range(0), state.range(1));
  measure(state, net.total * 28, [&] {
    slots::adam_step(net.parameters, net.gradients, net.first, net.second, net.halves, net.control,
                     {});
  });
}
void check_finite(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Network net(state.range(0), state.range(1));
  measure(state, net.total * 2, [&] { slots::check_finite(net.gradients, net.control); });
}
void clip_norm(benchmark::State& state) {
  if (!has_gpu(state)) return;
  const Network net(state.range(0), state.range(1));
  measure(state, net.total * 2, [&] { slots::clip_norm(net.gradients, 1, net.control); });
}

void networks(benchmark::internal::Benchmark* bench) {
  bench->UseManualTime()->Unit(benchmark::kMicrosecond)->ArgNames({"tensors", "elements"});
  bench->Args({10, 6000})->Args({62, 180000})->Args({161, 160000});
}
#define HEADROOM_BENCH_NETWORKS(fn) BENCHMARK(fn)->Name("streaming_cuda/" #fn)->Apply(networks)
HEADROOM_BENCH_NETWORKS(sgd_step);
HEADROOM_BENCH_NETWORKS(adam_step);
HEADROOM_BENCH_NETWORKS(check_finite);
HEADROOM_BENCH_NETWORKS(clip_norm);

}  // namespace
}  // namespace headroom
