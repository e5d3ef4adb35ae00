// Resizing: exact cases, against a reference, and at the limits.
#include "train/data/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base/philox.h"

namespace headroom {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes resize(const Bytes& from, const ImageShape& shape, int64_t side) {
  Bytes to(static_cast<size_t>(side * side * shape.channels));
  resize_to_square(from.data(), shape, to.data(), side);
  return to;
}

Bytes noise(const ImageShape& shape) {
  Bytes pixels(static_cast<size_t>(shape.bytes()));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = philox_word(3, 0, i) & 255;
  return pixels;
}

// The definition, pixel by pixel in doubles: a triangle of radius max(1, scale) about each centre.
double reference(const Bytes& from, const ImageShape& shape, int64_t side, int64_t y, int64_t x,
                 int64_t c) {
  const int64_t shorter = std::min(shape.height, shape.width);
  const auto weight = [&](int64_t length, int64_t out, int64_t in) {
    const int64_t scaled = length * side / shorter;
    const double scale = static_cast<double>(length) / static_cast<double>(scaled);
    const double centre = (static_cast<double>(out + (scaled - side) / 2) + 0.5) * scale;
    return std::max(0.0,
                    1 - std::abs(static_cast<double>(in) + 0.5 - centre) / std::max(1.0, scale));
  };
  double sum = 0, total = 0;
  for (int64_t iy = 0; iy < shape.height; ++iy) {
    for (int64_t ix = 0; ix < shape.width; ++ix) {
      const double w = weight(shape.height, y, iy) * weight(shape.width, x, ix);
      sum += w * from[static_cast<size_t>((iy * shape.width + ix) * shape.channels + c)];
      total += w;
    }
  }
  return sum / total;
}

TEST(Resize, KeepsAnImageOfTheRightSize) {
  const ImageShape shape{3, 7, 7};
  EXPECT_EQ(resize(noise(shape), shape, 7), noise(shape));
}

TEST(Resize, KeepsFlatImagesFlatAtAnyScale) {
  for (const ImageShape& shape :
       {ImageShape{3, 5, 8}, ImageShape{1, 1, 1}, ImageShape{3, 301, 97}}) {
    for (const int64_t side : {1, 2, 7, 64}) {
      const Bytes flat(static_cast<size_t>(shape.bytes()), 255);
      const Bytes out = resize(flat, shape, side);
      EXPECT_EQ(std::count(out.begin(), out.end(), 255), static_cast<int64_t>(out.size()));
    }
  }
}

TEST(Resize, CropsTheCentreOfTheLongerSide) {
  // 1 x 5 pixels to 1 x 1: the middle one.
  EXPECT_EQ(resize({1, 2, 200, 4, 5}, {1, 1, 5}, 1), (Bytes{200}));
  EXPECT_EQ(resize({1, 2, 200, 4, 5}, {1, 5, 1}, 1), (Bytes{200}));
}

TEST(Resize, MatchesTheDefinitionWithinRounding) {
  for (const ImageShape& shape :
       {ImageShape{3, 20, 31}, ImageShape{1, 40, 9}, ImageShape{3, 6, 6}}) {
    const Bytes from = noise(shape);
    for (const int64_t side : {4, 6, 13}) {
      const Bytes out = resize(from, shape, side);
      for (int64_t y = 0; y < side; ++y) {
        for (int64_t x = 0; x < side; ++x) {
          for (int64_t c = 0; c < shape.channels; ++c) {
            // Rounded after each of two passes.
            ASSERT_NEAR(out[static_cast<size_t>((y * side + x) * shape.channels + c)],
                        reference(from, shape, side, y, x, c), 1.01)
                << side << " at " << y << ", " << x << ", " << c;
          }
        }
      }
    }
  }
}

TEST(Resize, AveragesWhenShrinkingInsteadOfSkippingPixels) {
  Bytes stripes;  // every other column is white: any honest reduction is gray
  for (int i = 0; i < 64 * 64; ++i) stripes.push_back(i % 2 == 0 ? 255 : 0);
  // 5: at the borders the triangle is cut off, and one colour has a little more of the rest.
  for (const uint8_t value : resize(stripes, {1, 64, 64}, 8)) EXPECT_NEAR(value, 127.5, 5);
}

TEST(Resize, HandlesExtremeShapes) {
  const ImageShape line{1, 1, 20000};
  EXPECT_EQ(resize(Bytes(20000, 9), line, 3), Bytes(9, 9));
  const ImageShape large{1, 2000, 2000};
  EXPECT_EQ(resize(Bytes(4000000, 250), large, 1), (Bytes{250}));
}

}  // namespace
}  // namespace headroom
