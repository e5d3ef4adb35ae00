// The built-in digits: the same on every thread, all different, balanced, and what the constants
// say.
#include "train/data/digits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <thread>
#include <vector>

#include "core/base/parallel.h"
#include "train/data/digit_font.h"

namespace headroom {
namespace {

using Bytes = std::vector<uint8_t>;
constexpr int64_t kPixels = kDigitSide * kDigitSide;

Bytes draw(uint64_t seed, DigitSplit split, int64_t index) {
  Bytes pixels(kPixels);
  draw_digit(seed, split, index, pixels.data());
  return pixels;
}

TEST(Digits, AreTheDefaultDataSet) {
  const DataSplit split = open_data("");
  EXPECT_EQ(split.train->size(), kTrainDigits);
  EXPECT_EQ(split.test->size(), kTestDigits);
  EXPECT_EQ(split.train->shape(), (ImageShape{1, 28, 28}));
  EXPECT_EQ(split.train->class_names()[7], "7");
  Bytes pixels(kPixels);
  split.test->read(1234, pixels.data());
  EXPECT_EQ(pixels, draw(0, DigitSplit::test, 1234));
}

TEST(Digits, DependOnSeedSplitAndIndexAlone) {
  const Bytes image = draw(5, DigitSplit::train, 17);
  Bytes from_thread;
  std::thread([&] { from_thread = draw(5, DigitSplit::train, 17); }).join();
  EXPECT_EQ(from_thread, image);
  EXPECT_NE(draw(6, DigitSplit::train, 17), image);
  EXPECT_NE(draw(5, DigitSplit::test, 17), image);
  EXPECT_NE(draw(5, DigitSplit::train, 27), image);
}

TEST(Digits, AreTheSameForAnyNumberOfThreads) {
  const int before = num_threads();
  set_num_threads(1);
  const DatasetBytes one = read_all(*make_digits(3, 300, 10).train);
  set_num_threads(5);
  const DatasetBytes five = read_all(*make_digits(3, 300, 10).train);
  set_num_threads(before);
  EXPECT_EQ(one.pixels, five.pixels);
  EXPECT_EQ(one.labels, five.labels);
}

TEST(Digits, AreBalancedAndAllDifferent) {
  const DatasetBytes all = read_all(*make_digits(0, 2000, 10).train);
  std::array<int, 10> counts = {};
  std::set<Bytes> images;
  for (int64_t i = 0; i < 2000; ++i) {
    ++counts[all.labels[i]];
    images.emplace(all.pixels.begin() + i * kPixels, all.pixels.begin() + (i + 1) * kPixels);
  }
  for (const int count : counts) EXPECT_EQ(count, 200);
  EXPECT_EQ(images.size(), 2000u);
}

TEST(Digits, AreNormalisedWithTheirOwnMeanAndDeviation) {
  const DataSplit split = make_digits(0);
  const DatasetBytes all = read_all(*split.train);
  double sum = 0, squares = 0;
  for (const uint8_t pixel : all.pixels) {
    sum += pixel / 255.0;
    squares += pixel / 255.0 * pixel / 255.0;
  }
  const auto count = static_cast<double>(all.pixels.size());
  const double mean = sum / count, deviation = std::sqrt(squares / count - mean * mean);
  EXPECT_NEAR(split.train->info().mean[0], mean, 5e-4);
  EXPECT_NEAR(split.train->info().std[0], deviation, 5e-4);
}

// Nearest-mean classification: far above chance, since the labels fit the pictures, and far from
// solved.
TEST(Digits, AreATaskThatATrivialClassifierDoesNotSolve) {
  const DataSplit split = make_digits(0, 4000, 1000);
  const DatasetBytes train = read_all(*split.train), test = read_all(*split.test);
  std::vector<std::vector<double>> means(10, std::vector<double>(kPixels, 0));
  for (int64_t i = 0; i < 4000; ++i) {
    for (int64_t p = 0; p < kPixels; ++p) {
      means[train.labels[i]][p] += train.pixels[i * kPixels + p] / 400.0;
    }
  }
  int right = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    std::vector<double> distances;
    for (const std::vector<double>& mean : means) {
      double sum = 0;
      for (int64_t p = 0; p < kPixels; ++p) {
        sum += std::pow(test.pixels[i * kPixels + p] - mean[p], 2);
      }
      distances.push_back(sum);
    }
    const auto best = std::min_element(distances.begin(), distances.end()) - distances.begin();
    right += best == test.labels[i];
  }
  EXPECT_GT(right, 350);
  EXPECT_LT(right, 850);
}

TEST(DigitFont, HasStylesOfEachDigitInsideTheBox) {
  ASSERT_EQ(digit_font().size(), 10u);
  for (const std::vector<Glyph>& styles : digit_font()) {
    EXPECT_GE(styles.size(), 3u);
    for (const Glyph& glyph : styles) {
      for (const GlyphStroke& stroke : glyph) {
        ASSERT_GE(stroke.points.size(), 2u);
        for (const GlyphPoint& point : flatten(stroke)) {
          EXPECT_TRUE(point.x > -0.1f && point.x < 1.1f && point.y > -0.1f && point.y < 1.1f);
        }
      }
    }
  }
}

TEST(DigitFont, CurvesPassThroughTheirPoints) {
  const GlyphStroke curve{GlyphStroke::Kind::smooth, {{0, 0}, {0.5f, 1}, {1, 0}}};
  const std::vector<GlyphPoint> chain = flatten(curve);
  ASSERT_EQ(chain.size(), 17u);
  EXPECT_FLOAT_EQ(chain[8].x, 0.5f);
  EXPECT_FLOAT_EQ(chain[8].y, 1.0f);
  const GlyphStroke ring{GlyphStroke::Kind::closed, {{0, 0}, {0.5f, 1}, {1, 0}}};
  EXPECT_FLOAT_EQ(flatten(ring).back().x, 0.0f);
  EXPECT_FLOAT_EQ(flatten(ring).back().y, 0.0f);
}

}  // namespace
}  // namespace headroom
