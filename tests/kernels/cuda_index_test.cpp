// The index arithmetic of the CUDA kernels, checked on the host: division without a divide, merged
// strided loops, loops over packs, and pixel numbers.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "kernels/cuda/pixel_index.h"
#include "kernels/cuda/strided_loop.h"

namespace headroom::cuda {
namespace {

TEST(FastDivisor, DividesLikeTheProcessor) {
  constexpr uint32_t kMost = 0x7fffffffu;
  std::vector<uint32_t> divisors = {1, 2, 3, 5, 7, 10, 641, 1023, 1024, 1025, 65535, 65537};
  for (const uint32_t edge : {kMost, kMost - 1, kMost / 2, kMost / 2 + 1, kMost / 3}) {
    divisors.push_back(edge);
  }
  for (const uint32_t divisor : divisors) {
    const FastDivisor fast = FastDivisor::of(divisor);
    std::vector<uint32_t> numbers = {0, 1, kMost, kMost - 1, kMost / 2, 123456789};
    for (uint64_t multiple = divisor; multiple <= kMost; multiple += multiple / 2 + divisor) {
      const auto whole = static_cast<uint32_t>(multiple / divisor * divisor);
      numbers.push_back(whole);
      numbers.push_back(whole - 1);
      if (whole < kMost) numbers.push_back(whole + 1);
    }
    for (const uint32_t n : numbers) {
      ASSERT_EQ(fast.divide(n), n / divisor) << n << " / " << divisor;
    }
  }
  EXPECT_THROW(FastDivisor::of(0), Error);
  EXPECT_THROW(FastDivisor::of(int64_t{1} << 31), Error);
}

// Offsets of every element of a shape under each of several strides, as a set of tuples.
template <int kOperands>
std::set<std::array<int64_t, kOperands>> all_offsets(
    const Shape& shape, const std::array<Strides, kOperands>& strides) {
  std::set<std::array<int64_t, kOperands>> out;
  const int64_t numel = numel_of(shape);
  for (int64_t i = 0; i < numel; ++i) {
    std::array<int64_t, kOperands> at{};
    int64_t rest = i;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
      const int64_t coordinate = rest % shape[axis];
      rest /= shape[axis];
      for (int k = 0; k < kOperands; ++k) at[k] += coordinate * strides[k][axis];
    }
    out.insert(at);
  }
  return out;
}

template <bool kWide, int kOperands>
std::set<std::array<int64_t, kOperands>> loop_offsets(const StridedLoop<kOperands>& loop,
                                                      int64_t width = 1) {
  std::set<std::array<int64_t, kOperands>> out;
  for (int64_t i = 0; i < loop.numel; ++i) {
    int64_t at[kOperands];
    loop.template offsets<kWide>(i, at);
    for (int64_t v = 0; v < width; ++v) {
      std::array<int64_t, kOperands> element;
      for (int k = 0; k < kOperands; ++k) element[k] = at[k] + (loop.stride[k][0] != 0 ? v : 0);
      out.insert(element);
    }
  }
  return out;
}

struct Views {
  Views(const Shape& shape, const Strides& written, const Strides& read)
      : shape(shape), strides{written, read} {}
  Shape shape;
  std::array<Strides, 2> strides;
};

std::vector<Views> some_views() {
  const Shape image{2, 16, 5, 8};
  const Strides nchw = dense_strides(image, MemoryFormat::contiguous);
  const Strides nhwc = dense_strides(image, MemoryFormat::channels_last);
  return {
      {image, nchw, nchw},
      {image, nhwc, nhwc},
      {image, nhwc, nchw},
      {image, nchw, nhwc},
      {image, nhwc, {0, 1, 0, 0}},
      {image, nchw, {0, 1, 0, 0}},
      {image, nhwc, {0, 0, 0, 0}},
      {image, {2000, 1, 400, 24}, nhwc},
      {Shape{7}, Strides{3}, Strides{1}},
      {Shape{}, Strides{}, Strides{}},
      {{1, 1, 1}, {9, 9, 9}, {0, 0, 0}},
      {{2, 3, 1, 2, 2, 3}, {36, 12, 50, 6, 3, 1}, {1, 2, 0, 6, 12, 24}},
  };
}

TEST(StridedLoop, VisitsEveryElementOfEveryView) {
  for (const Views& views : some_views()) {
    const auto loop = make_strided_loop<2>(views.shape, views.strides);
    const auto expected = all_offsets<2>(views.shape, views.strides);
    EXPECT_EQ(loop.numel, numel_of(views.shape));
    EXPECT_EQ((loop_offsets<false>(loop)), expected) << views.shape;
    EXPECT_EQ((loop_offsets<true>(loop)), expected) << views.shape;
  }
}

TEST(StridedLoop, MergesViewsThatLieAlike) {
  const Shape image{2, 16, 5, 8};
  const Strides nchw = dense_strides(image, MemoryFormat::contiguous);
  const Strides nhwc = dense_strides(image, MemoryFormat::channels_last);
  EXPECT_TRUE((make_strided_loop<2>(image, {nchw, nchw}).flat()));
  EXPECT_TRUE((make_strided_loop<2>(image, {nhwc, nhwc}).flat()));
  EXPECT_FALSE((make_strided_loop<2>(image, {nhwc, nchw}).flat()));
  EXPECT_EQ((make_strided_loop<2>(image, {nhwc, {0, 1, 0, 0}}).rank), 2);
  EXPECT_EQ((make_strided_loop<2>(image, {nhwc, nchw}).rank), 3);
  EXPECT_FALSE((make_strided_loop<1>({5}, {Strides{2}}).flat()));
  EXPECT_TRUE((make_strided_loop<1>({1}, {Strides{2}}).flat()));
  EXPECT_EQ((make_strided_loop<1>({3, 0, 2}, {Strides{0, 2, 1}}).numel), 0);
}

TEST(StridedLoop, CountsBeyondThirtyOneBits) {
  const Shape shape{3, 1 << 16, 1 << 15};
  const int64_t plane = int64_t{1} << 31;
  const auto loop = make_strided_loop<2>(
      shape, {dense_strides(shape, MemoryFormat::contiguous), Strides{1, 3, 3 << 16}});
  ASSERT_TRUE(loop.wide());
  int64_t at[2];
  loop.offsets<true>(2 * plane + 5 * (1 << 15) + 7, at);
  EXPECT_EQ(at[0], 2 * plane + 5 * (1 << 15) + 7);
  EXPECT_EQ(at[1], 2 + 5 * 3 + 7 * (int64_t{3} << 16));
}

TEST(PackLoop, CoversTheSameElementsInPacks) {
  int packed = 0;
  for (const Views& views : some_views()) {
    for (const int64_t width : {2, 4, 8}) {
      auto loop = make_strided_loop<2>(views.shape, views.strides);
      if (!make_pack_loop(loop, width)) continue;
      ++packed;
      EXPECT_EQ(loop.numel * width, numel_of(views.shape));
      EXPECT_EQ((loop_offsets<false>(loop, width)), (all_offsets<2>(views.shape, views.strides)))
          << views.shape << " in packs of " << width;
    }
  }
  EXPECT_GE(packed, 12);
}

TEST(PackLoop, RefusesRowsThatArePartlyPacks) {
  const auto refuses = [](const Shape& shape, const Strides& a, const Strides& b) {
    auto loop = make_strided_loop<2>(shape, {a, b});
    return !make_pack_loop(loop, 8);
  };
  EXPECT_TRUE(refuses({4, 12}, {12, 1}, {16, 1}));  // 12 elements are not whole packs
  EXPECT_TRUE(refuses({4, 16}, {16, 1}, {17, 1}));  // rows of the second view are not aligned
  EXPECT_TRUE(refuses({4, 16}, {16, 1}, {64, 4}));  // the second view has gaps
  EXPECT_TRUE(refuses({4, 16}, {32, 2}, {16, 1}));  // the written one has
  EXPECT_FALSE(refuses({4, 16}, {16, 1}, {24, 1}));
  EXPECT_FALSE(refuses({4, 16}, {16, 1}, {1, 0}));  // one value per row is no pack
}

TEST(PixelIndex, NumbersRunOverGroupsColumnsRowsPlanes) {
  PixelIndex index = PixelIndex::of(3, 5, 7, 2);
  ASSERT_FALSE(index.wide);
  for (const bool wide : {false, true}) {
    index.wide = wide;
    int64_t number = 0;
    for (int64_t plane = 0; plane < 3; ++plane) {
      for (int64_t row = 0; row < 5; ++row) {
        for (int64_t column = 0; column < 7; ++column) {
          for (int64_t group = 0; group < 2; ++group, ++number) {
            const Pixel at = index.at(number);
            ASSERT_EQ(at.plane, plane);
            ASSERT_EQ(at.row, row);
            ASSERT_EQ(at.column, column);
            ASSERT_EQ(at.group, group);
          }
        }
      }
    }
    EXPECT_EQ(index.count(), number);
  }
}

TEST(PixelIndex, CountsBeyondThirtyOneBits) {
  const PixelIndex index = PixelIndex::of(1, 2048, 2048, 1032);
  EXPECT_TRUE(index.wide);
  const Pixel last = index.at(index.count() - 1);
  EXPECT_EQ(last.row, 2047);
  EXPECT_EQ(last.column, 2047);
  EXPECT_EQ(last.group, 1031);
}

}  // namespace
}  // namespace headroom::cuda
