// Speed of the CPU's convolutions and batch normalisation on the layers of ResNet-18 (batch 32) and
// LeNet (batch 64). "GFLOP/s" counts two operations per product; "GB/s" counts each operand once.
#include <benchmark/benchmark.h>

#include <array>
#include <string>

#include "core/ops/contract.h"
#include "core/ops/workspace.h"
#include "core/tensor/tensor.h"
#include "kernels/register.h"

namespace headroom {
namespace {

struct Layer {
  const char* name;
  Shape x, w;
  Conv2dParams params;
};

const std::array<Layer, 15>& layers() {
  static const std::array<Layer, 15> list = {{
      {"resnet18_stem", {32, 3, 32, 32}, {64, 3, 3, 3}, {.padding = {1, 1}}},
      {"resnet18_l1", {32, 64, 32, 32}, {64, 64, 3, 3}, {.padding = {1, 1}}},
      {"resnet18_l2_down",
       {32, 64, 32, 32},
       {128, 64, 3, 3},
       {.stride = {2, 2}, .padding = {1, 1}}},
      {"resnet18_l2", {32, 128, 16, 16}, {128, 128, 3, 3}, {.padding = {1, 1}}},
      {"resnet18_l3", {32, 256, 8, 8}, {256, 256, 3, 3}, {.padding = {1, 1}}},
      {"resnet18_l4", {32, 512, 4, 4}, {512, 512, 3, 3}, {.padding = {1, 1}}},
      {"resnet18_l2_shortcut", {32, 64, 32, 32}, {128, 64, 1, 1}, {.stride = {2, 2}}},
      {"resnet50_1x1_reduce", {8, 256, 56, 56}, {64, 256, 1, 1}, {}},
      {"resnet50_1x1_expand", {8, 64, 56, 56}, {256, 64, 1, 1}, {}},
      {"resnet50_3x3", {8, 64, 56, 56}, {64, 64, 3, 3}, {.padding = {1, 1}}},
      {"resnet50_stem", {4, 3, 224, 224}, {64, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}},
      {"lenet_1", {64, 1, 28, 28}, {6, 1, 5, 5}, {.padding = {2, 2}}},
      {"lenet_2", {64, 6, 14, 14}, {16, 6, 5, 5}, {}},
      {"c16", {32, 16, 32, 32}, {16, 16, 3, 3}, {.padding = {1, 1}}},
      {"depthwise", {32, 128, 16, 16}, {128, 1, 3, 3}, {.padding = {1, 1}, .groups = 128}},
  }};
  return list;
}

Shape output_shape(const Layer& layer) {
  Shape y = {layer.x[0], layer.w[0], 0, 0};
  for (int axis = 0; axis < 2; ++axis) {
    y[2 + axis] = (layer.x[2 + axis] + 2 * layer.params.padding[axis] - layer.w[2 + axis]) /
                      layer.params.stride[axis] +
                  1;
  }
  return y;
}

void register_once() {
  static const bool done = (register_kernels(), true);
  benchmark::DoNotOptimize(done);
}

Tensor numbers(const Shape& shape, DType dtype) {
  const Tensor out = full(shape, 0, {dtype, Device::cpu(), MemoryFormat::channels_last});
  slots::fill_normal(7, 1, 0, 1, out);
  return out;
}

void convolve(benchmark::State& state, ConvDirection direction, const Layer& layer, DType dtype) {
  register_once();
  const Tensor x = numbers(layer.x, dtype), w = numbers(layer.w, dtype);
  const Tensor y = numbers(output_shape(layer), dtype);
  const int64_t bytes = conv2d_workspace_bytes(Device::cpu(), direction, x.view(), w.view(),
                                               y.view(), layer.params, int64_t{32} << 20);
  const Tensor workspace = full({std::max<int64_t>(bytes, 1)}, 0, {DType::u8, Device::cpu()});
  for (auto _ : state) {
    switch (direction) {
      case ConvDirection::forward:
        slots::conv2d(x, w, View{}, layer.params, workspace, y);
        break;
      case ConvDirection::backward_input:
        slots::conv2d_backward_input(y, w, layer.params, workspace, x);
        break;
      case ConvDirection::backward_weight:
        slots::conv2d_backward_weight(x, y, layer.params, workspace, w);
        break;
    }
    benchmark::ClobberMemory();
  }
  const double products = static_cast<double>(y.numel() * layer.w[1] * layer.w[2] * layer.w[3]);
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * products, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["workspace_KiB"] = static_cast<double>(bytes) / 1024;
}

void normalize(benchmark::State& state, bool backward, DType dtype) {
  register_once();
  const Shape shape = {32, 64, 32, 32}, channels = {64};
  const Tensor x = numbers(shape, dtype), y = numbers(shape, dtype), dy = numbers(shape, dtype);
  const auto per_channel = [&] { return full(channels, 1, {DType::f32, Device::cpu()}); };
  const Tensor gamma = per_channel(), beta = per_channel(), mean = per_channel();
  const Tensor rstd = per_channel(), dgamma = per_channel(), dbeta = per_channel();
  const int64_t bytes = batch_norm_workspace_bytes(Device::cpu(), x.view());
  const Tensor workspace = full({bytes}, 0, {DType::u8, Device::cpu()});
  BatchNormParams params;
  params.relu = true;
  for (auto _ : state) {
    if (backward) {
      slots::batch_norm_backward(x, View{}, dy, gamma, beta, mean, rstd, params, workspace, dy,
                                 View{}, dgamma, dbeta);
    } else {
      slots::batch_norm_train(x, View{}, gamma, beta, params, workspace, y, mean, rstd, View{},
                              View{});
    }
    benchmark::ClobberMemory();
  }
  const double moved = static_cast<double>(x.nbytes()) * (backward ? 5 : 3);
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * moved, benchmark::Counter::kIsIterationInvariantRate);
}

const bool registered = [] {
  for (const Layer& layer : layers()) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      const std::pair<ConvDirection, const char*> directions[] = {
          {ConvDirection::forward, "forward"},
          {ConvDirection::backward_input, "backward_input"},
          {ConvDirection::backward_weight, "backward_weight"}};
      for (const auto& [direction, name] : directions) {
        const std::string label =
            std::string("conv/") + layer.name + "/" + name + "/" + name_of(dtype);
        benchmark::RegisterBenchmark(
            label.c_str(),
            [=, direction = direction](auto& state) { convolve(state, direction, layer, dtype); })
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const bool backward : {false, true}) {
      const std::string label =
          std::string("batch_norm/") + (backward ? "backward/" : "train/") + name_of(dtype);
      benchmark::RegisterBenchmark(label.c_str(),
                                   [=](auto& state) { normalize(state, backward, dtype); })
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace headroom
