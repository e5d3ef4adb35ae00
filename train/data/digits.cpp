// Draws the built-in digits: transform the strokes, take each pixel's distance to them, add noise.
#include "train/data/digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "core/base/parallel.h"
#include "core/base/philox.h"
#include "train/data/digit_font.h"

namespace headroom {
namespace {

constexpr int kSide = static_cast<int>(kDigitSide);
constexpr int kPixels = kSide * kSide;
using Plane = std::array<float, kPixels>;

// Of the training set at seed 0, pixels scaled to [0, 1].
constexpr float kMean = 0.1259f;
constexpr float kStd = 0.2297f;

// The random numbers of one image, in order.
class Draws {
 public:
  Draws(uint64_t seed, DigitSplit split, int64_t index)
      : seed_(seed),
        split_(static_cast<uint64_t>(split)),
        next_(static_cast<uint64_t>(index) * kGroupsPerImage) {}

  PhiloxWords group() { return philox(seed_, next_++, split_); }

  uint32_t bits() {
    if (used_ == 4) {
      words_ = group();
      used_ = 0;
    }
    return words_.word[used_++];
  }
  float uniform(float low, float high) { return low + (high - low) * uniform_from_bits(bits()); }
  int below(int count) { return static_cast<int>(bits() % static_cast<uint32_t>(count)); }

 private:
  // More than one image takes: one group for every 4 pixels of noise and about 30 for its shape.
  static constexpr uint64_t kGroupsPerImage = 1024;

  uint64_t seed_, split_, next_;
  PhiloxWords words_ = {};
  int used_ = 4;
};

// From the glyph's box to pixels: x' = xx x + xy y + x0, and y' likewise.
struct Affine {
  float xx, xy, yx, yy, x0, y0;

  GlyphPoint operator()(GlyphPoint p) const {
    return {xx * p.x + xy * p.y + x0, yx * p.x + yy * p.y + y0};
  }
};

Affine random_placement(Draws& draws) {
  const float height = draws.uniform(14.0f, 21.0f);
  const float width = height * draws.uniform(0.45f, 0.85f);
  const float slant = draws.uniform(-0.3f, 0.3f);
  const float angle = draws.uniform(-18.0f, 18.0f) * std::numbers::pi_v<float> / 180.0f;
  const float shift_x = draws.uniform(-3.0f, 3.0f);
  const float shift_y = draws.uniform(-3.0f, 3.0f);
  const float c = std::cos(angle), s = std::sin(angle);
  // Scale, slant, rotate about the glyph's middle, move to the image's.
  Affine m{c * width, (c * slant - s) * height, s * width, (s * slant + c) * height, 0, 0};
  const GlyphPoint middle = m({0.5f, 0.5f});
  m.x0 = 0.5f * kSide + shift_x - middle.x;
  m.y0 = 0.5f * kSide + shift_y - middle.y;
  return m;
}

// Lowers each pixel of `squared` (distances to the ink's centre line) near the line from a to b.
void add_line(GlyphPoint a, GlyphPoint b, float reach, Plane& squared) {
  const auto first = [&](float low) { return std::clamp(static_cast<int>(low - reach), 0, kSide); };
  const auto last = [&](float high) {
    return std::clamp(static_cast<int>(high + reach) + 1, 0, kSide);
  };
  const float dx = b.x - a.x, dy = b.y - a.y;
  const float length_squared = std::max(dx * dx + dy * dy, 1e-12f);
  const int left = first(std::min(a.x, b.x)), right = last(std::max(a.x, b.x));
  const int top = first(std::min(a.y, b.y)), bottom = last(std::max(a.y, b.y));
  for (int y = top; y < bottom; ++y) {
    for (int x = left; x < right; ++x) {
      const float px = static_cast<float>(x) + 0.5f - a.x, py = static_cast<float>(y) + 0.5f - a.y;
      const float t = std::clamp((px * dx + py * dy) / length_squared, 0.0f, 1.0f);
      const float ex = px - t * dx, ey = py - t * dy;
      float& pixel = squared[y * kSide + x];
      pixel = std::min(pixel, ex * ex + ey * ey);
    }
  }
}

// Ink of a round pen: full inside radius - softness / 2, none outside radius + softness / 2.
void add_ink(const Plane& squared, float radius, float softness, float brightness, Plane& ink) {
  for (int i = 0; i < kPixels; ++i) {
    const float inside = (radius - std::sqrt(squared[i])) / softness + 0.5f;
    ink[i] = std::max(ink[i], brightness * std::clamp(inside, 0.0f, 1.0f));
  }
}

void draw_glyph(Draws& draws, const Glyph& glyph, Plane& ink) {
  constexpr float kWobble = 0.05f;  // of the box, each way
  const Affine place = random_placement(draws);
  const float radius = draws.uniform(0.7f, 1.7f);
  const float softness = draws.uniform(0.8f, 1.6f);
  Plane squared;
  squared.fill(std::numeric_limits<float>::max());
  for (GlyphStroke stroke : glyph) {
    for (GlyphPoint& point : stroke.points) {
      point.x += draws.uniform(-kWobble, kWobble);
      point.y += draws.uniform(-kWobble, kWobble);
    }
    std::vector<GlyphPoint> chain = flatten(stroke);
    for (GlyphPoint& point : chain) point = place(point);
    for (size_t i = 1; i < chain.size(); ++i) {
      add_line(chain[i - 1], chain[i], radius + softness, squared);
    }
  }
  add_ink(squared, radius, softness, draws.uniform(0.55f, 1.0f), ink);
}

// A short line anywhere, as of a neighbouring character or a slip of the pen.
void draw_stray_stroke(Draws& draws, Plane& ink) {
  const GlyphPoint from{draws.uniform(0, kSide), draws.uniform(0, kSide)};
  const float angle = draws.uniform(0, 2 * std::numbers::pi_v<float>);
  const float length = draws.uniform(3.0f, 9.0f);
  const GlyphPoint to{from.x + length * std::cos(angle), from.y + length * std::sin(angle)};
  constexpr float kRadius = 0.6f, kSoftness = 1.0f;
  Plane squared;
  squared.fill(std::numeric_limits<float>::max());
  add_line(from, to, kRadius + kSoftness, squared);
  add_ink(squared, kRadius, kSoftness, draws.uniform(0.2f, 0.6f), ink);
}

std::unique_ptr<Dataset> make_set(uint64_t seed, DigitSplit split, int64_t count) {
  std::vector<uint8_t> pixels(static_cast<size_t>(count * kPixels));
  std::vector<uint8_t> labels(static_cast<size_t>(count));
  parallel_ranges(count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      draw_digit(seed, split, i, pixels.data() + i * kPixels);
      labels[i] = static_cast<uint8_t>(digit_label(i));
    }
  });
  DatasetInfo info;
  info.name = split == DigitSplit::train ? "digits train" : "digits test";
  info.shape = {1, kDigitSide, kDigitSide};
  for (int digit = 0; digit < 10; ++digit) info.class_names.push_back(std::to_string(digit));
  info.mean = {kMean};
  info.std = {kStd};
  return std::make_unique<MemoryDataset>(std::move(info), std::move(pixels), std::move(labels));
}

}  // namespace

void draw_digit(uint64_t seed, DigitSplit split, int64_t index, uint8_t* pixels) {
  constexpr int kStrayOneIn = 3;
  Draws draws(seed, split, index);
  const std::vector<Glyph>& styles = digit_font()[digit_label(index)];
  Plane ink = {};
  draw_glyph(draws, styles[draws.below(static_cast<int>(styles.size()))], ink);
  if (draws.below(kStrayOneIn) == 0) draw_stray_stroke(draws, ink);

  // Noise: the sum of four random bytes is near enough to a normal distribution, its standard
  // deviation is 148.
  constexpr float kMeanOfSum = 510.0f, kDeviationOfSum = 148.0f;
  const float noise = draws.uniform(0.02f, 0.16f) / kDeviationOfSum;
  for (int i = 0; i < kPixels; i += 4) {
    const PhiloxWords words = draws.group();
    for (int j = 0; j < 4; ++j) {
      const uint32_t word = words.word[j];
      const uint32_t sum = (word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24);
      const float value = ink[i + j] + noise * (static_cast<float>(sum) - kMeanOfSum);
      pixels[i + j] = static_cast<uint8_t>(std::clamp(value, 0.0f, 1.0f) * 255.0f + 0.5f);
    }
  }
}

DataSplit make_digits(uint64_t seed, int64_t train_count, int64_t test_count) {
  CHECK_ARG(train_count >= 1 && test_count >= 1, "digits: counts must be 1 or more, got ",
            train_count, " and ", test_count);
  return {make_set(seed, DigitSplit::train, train_count),
          make_set(seed, DigitSplit::test, test_count)};
}

}  // namespace headroom
