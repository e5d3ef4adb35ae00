// CUDA's workspace rule: what it promises whatever cuDNN would choose. Needs no GPU.
#include <gtest/gtest.h>

#include "core/ops/workspace.h"
#include "core/ops/workspace_rules.h"

namespace headroom {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr ConvDirection kDirections[] = {ConvDirection::forward, ConvDirection::backward_input,
                                         ConvDirection::backward_weight};

struct Layer {
  int64_t n, c, hw, k, kernel, stride, groups = 1;
};

constexpr Layer kLayers[] = {
    {64, 4, 32, 64, 3, 1},   {64, 64, 32, 64, 3, 1},     {512, 256, 8, 512, 3, 2},
    {64, 256, 56, 64, 1, 1}, {64, 10, 28, 20, 3, 1},     {64, 1, 28, 32, 5, 1},
    {1, 1, 1, 1, 1, 1},      {64, 64, 28, 64, 3, 1, 64}, {64, 64, 28, 64, 3, 1, 4},
    {256, 3, 224, 64, 7, 2},
};

View view(const Shape& shape, DType dtype, MemoryFormat format) {
  View out;
  out.shape = shape;
  out.strides = dense_strides(shape, format);
  out.dtype = dtype;
  out.format = format;
  out.device = Device::meta(DeviceType::cuda);
  out.defined = true;
  return out;
}

struct Operands {
  View x, w, y;
  Conv2dParams params;
};

Operands operands(const Layer& layer, DType dtype, MemoryFormat format) {
  const int64_t pad = layer.kernel / 2;
  const int64_t out = (layer.hw + 2 * pad - layer.kernel) / layer.stride + 1;
  Operands made;
  made.x = view({layer.n, layer.c, layer.hw, layer.hw}, dtype, format);
  made.w = view({layer.k, layer.c / layer.groups, layer.kernel, layer.kernel}, dtype, format);
  made.y = view({layer.n, layer.k, out, out}, dtype, format);
  made.params = {
      .stride = {layer.stride, layer.stride}, .padding = {pad, pad}, .groups = layer.groups};
  return made;
}

int64_t bytes(ConvDirection direction, const Operands& made, int64_t limit) {
  return conv2d_workspace_bytes(Device::meta(DeviceType::cuda), direction, made.x, made.w, made.y,
                                made.params, limit);
}

template <class Check>
void for_each_case(Check&& check) {
  for (const Layer& layer : kLayers) {
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
      for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        for (const ConvDirection direction : kDirections) {
          for (const ConvAlgorithm algorithm : {ConvAlgorithm::library, ConvAlgorithm::native}) {
            Operands made = operands(layer, dtype, format);
            made.params.algorithm = algorithm;
            SCOPED_TRACE(describe(made.x) + " " + describe(made.w) + " direction " +
                         std::to_string(static_cast<int>(direction)));
            check(direction, made);
          }
        }
      }
    }
  }
}

TEST(CudaWorkspaceRule, IsNothingWhenTheCapIsNothing) {
  for_each_case([](ConvDirection direction, const Operands& made) {
    EXPECT_EQ(bytes(direction, made, 0), 0);
    EXPECT_EQ(bytes(direction, made, -1), 0);
  });
}

TEST(CudaWorkspaceRule, GrowsWithTheCapAndNeverPassesIt) {
  for_each_case([](ConvDirection direction, const Operands& made) {
    int64_t last = 0;
    for (const int64_t limit :
         {int64_t{1}, int64_t{4096}, kMiB, 4 * kMiB, 32 * kMiB, 1024 * kMiB}) {
      const int64_t now = bytes(direction, made, limit);
      EXPECT_LE(now, limit);
      EXPECT_GE(now, last);
      last = now;
    }
  });
}

TEST(CudaWorkspaceRule, StaysSmallForWholeChannelVectorsInNhwc) {
  for (const Layer& layer : {kLayers[1], kLayers[2], kLayers[3]}) {
    const Operands made = operands(layer, DType::f16, MemoryFormat::channels_last);
    for (const ConvDirection direction : kDirections) {
      EXPECT_LE(bytes(direction, made, 1024 * kMiB), 4 * kMiB + 4096);
    }
  }
}

TEST(CudaWorkspaceRule, HoldsThePaddedImagesOfPartChannelVectors) {
  // 10 and 20 channels become 16 and 24 before tensor cores can read them.
  const Operands made = operands(kLayers[4], DType::f16, MemoryFormat::channels_last);
  const int64_t padded = int64_t{64} * 28 * 28 * (16 + 24) * 2;
  for (const ConvDirection direction : kDirections) {
    EXPECT_GE(bytes(direction, made, 1024 * kMiB), padded);
  }
}

TEST(CudaWorkspaceRule, ReadsFourHalfChannelsAsTheyAre) {
  const Operands made = operands({256, 4, 224, 64, 7, 2}, DType::f16, MemoryFormat::channels_last);
  EXPECT_LE(bytes(ConvDirection::forward, made, 1024 * kMiB), 2 * kMiB + 4096);
  EXPECT_LE(bytes(ConvDirection::backward_weight, made, 1024 * kMiB), 13 * kMiB);
}

TEST(CudaWorkspaceRule, HoldsTheTransposedOperandsOfNchw) {
  const Operands made = operands(kLayers[1], DType::f16, MemoryFormat::contiguous);
  const int64_t operands_bytes = 2 * (made.x.numel() + made.y.numel() + made.w.numel());
  for (const ConvDirection direction : kDirections) {
    EXPECT_GE(bytes(direction, made, 1024 * kMiB), operands_bytes);
  }
}

TEST(CudaWorkspaceRule, AddsRoomForAHalfGradientThatIsWidened) {
  Operands made = operands(kLayers[1], DType::f16, MemoryFormat::channels_last);
  const int64_t half = bytes(ConvDirection::backward_weight, made, 1024 * kMiB);
  made.w.dtype = DType::f32;
  const int64_t widened = bytes(ConvDirection::backward_weight, made, 1024 * kMiB);
  EXPECT_GE(widened - half, made.w.numel() * 2);
}

TEST(CudaWorkspaceRule, NativeNeedsRoomOnlyForSplitWeightGradients) {
  for_each_case([](ConvDirection direction, const Operands& made) {
    if (made.params.algorithm != ConvAlgorithm::native) return;
    const int64_t now = bytes(direction, made, 1024 * kMiB);
    if (direction != ConvDirection::backward_weight) {
      EXPECT_EQ(now, 0);
      return;
    }
    const int64_t parts = rules::cuda_native_weight_parts(made.w, made.y, made.params);
    EXPECT_GE(parts, 1);
    EXPECT_EQ(now, parts > 1 ? parts * made.w.numel() * 4 : 0);
    EXPECT_LE(now, 8 * kMiB);
  });
}

TEST(CudaWorkspaceRule, EmptyOperandsNeedNothing) {
  Operands made = operands(kLayers[1], DType::f16, MemoryFormat::channels_last);
  made.x.shape[0] = made.y.shape[0] = 0;
  for (const ConvDirection direction : kDirections) EXPECT_EQ(bytes(direction, made, kMiB), 0);
}

TEST(CudaWorkspaceRule, MatmulIsBoundedByItsOutputAndByFourMebibytes) {
  const Device device = Device::meta(DeviceType::cuda);
  EXPECT_EQ(matmul_workspace_bytes(device, 0, 10, 512, DType::f16), 0);
  EXPECT_EQ(matmul_workspace_bytes(device, 64, 10, 0, DType::f16), 0);
  EXPECT_LE(matmul_workspace_bytes(device, 64, 10, 512, DType::f16), 64 * 1024);
  EXPECT_LE(matmul_workspace_bytes(device, 4096, 4096, 4096, DType::f16), 4 * kMiB + 4096 * 4);
  int64_t last = 0;
  for (const int64_t m : {1, 7, 64, 1000, 100000, 100000000}) {
    const int64_t now = matmul_workspace_bytes(device, m, 512, 64, DType::f32);
    EXPECT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace headroom
