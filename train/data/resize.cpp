// Separable resampling in fixed point.
#include "train/data/resize.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace headroom {
namespace {

// Weights have 22 fraction bits: 8 bits of pixel and the rounding still fit into 31.
constexpr int kFractionBits = 22;

// How `side` output pixels of one axis are weighted sums of input pixels. Output o reads the inputs
// first[o] .. first[o] + taps - 1; unused taps weigh 0.
struct AxisFilter {
  int64_t taps = 0;
  std::vector<int64_t> first;
  std::vector<int32_t> weights;  // [side, taps]
};

// The axis of `length` input pixels is scaled to `scaled` pixels, of which the centre `side` are
// made.
AxisFilter make_filter(int64_t length, int64_t scaled, int64_t side) {
  const double scale = static_cast<double>(length) / static_cast<double>(scaled);
  const double radius = std::max(1.0, scale);  // of the triangle, in input pixels
  const int64_t crop = (scaled - side) / 2;
  AxisFilter filter;
  filter.taps = std::min(length, 2 * static_cast<int64_t>(std::ceil(radius)) + 1);
  filter.weights.assign(static_cast<size_t>(side * filter.taps), 0);
  std::vector<double> share(static_cast<size_t>(filter.taps));
  for (int64_t o = 0; o < side; ++o) {
    const double centre = (static_cast<double>(o + crop) + 0.5) * scale;
    const int64_t begin = std::clamp<int64_t>(static_cast<int64_t>(std::floor(centre - radius)), 0,
                                              length - filter.taps);
    double sum = 0;
    for (int64_t t = 0; t < filter.taps; ++t) {
      const double distance = std::abs(static_cast<double>(begin + t) + 0.5 - centre) / radius;
      share[t] = std::max(0.0, 1.0 - distance);
      sum += share[t];
    }
    int32_t left = 1 << kFractionBits;  // weights sum to exactly one, or a flat image would change
    int64_t heaviest = 0;
    int32_t* weights = filter.weights.data() + o * filter.taps;
    for (int64_t t = 0; t < filter.taps; ++t) {
      weights[t] = static_cast<int32_t>(std::lround(share[t] / sum * (1 << kFractionBits)));
      left -= weights[t];
      if (weights[t] > weights[heaviest]) heaviest = t;
    }
    weights[heaviest] += left;
    filter.first.push_back(begin);
  }
  return filter;
}

uint8_t rounded(int32_t fixed) {
  return static_cast<uint8_t>(
      std::clamp((fixed + (1 << (kFractionBits - 1))) >> kFractionBits, 0, 255));
}

// One row, across: in [width, kChannels] to out [side, kChannels].
template <int kChannels>
void filter_row(const uint8_t* in, const AxisFilter& across, int64_t side, uint8_t* out) {
  const int32_t* weight = across.weights.data();
  for (int64_t x = 0; x < side; ++x) {
    const uint8_t* pixel = in + across.first[x] * kChannels;
    int32_t sums[kChannels] = {};
    for (int64_t t = 0; t < across.taps; ++t, ++weight, pixel += kChannels) {
#pragma GCC unroll 3  // keeps the sums in registers, half the time at -O2
      for (int c = 0; c < kChannels; ++c) sums[c] += *weight * pixel[c];
    }
    for (const int32_t sum : sums) *out++ = rounded(sum);
  }
}

class ResizedDataset : public Dataset {
 public:
  ResizedDataset(std::unique_ptr<Dataset> source, int64_t side)
      : Dataset(info_for(*source, side)), source_(std::move(source)) {}

  int64_t size() const override { return source_->size(); }
  int64_t label(int64_t index) const override { return source_->label(index); }
  void read(int64_t index, uint8_t* hwc) const override {
    std::vector<uint8_t> image(static_cast<size_t>(source_->shape().bytes()));
    source_->read(index, image.data());
    resize_to_square(image.data(), source_->shape(), hwc, shape().height);
  }

 private:
  static DatasetInfo info_for(const Dataset& source, int64_t side) {
    DatasetInfo info = source.info();
    info.shape.height = info.shape.width = side;
    return info;
  }

  std::unique_ptr<Dataset> source_;
};

}  // namespace

void resize_to_square(const uint8_t* from, const ImageShape& shape, uint8_t* to, int64_t side) {
  const int64_t shorter = std::min(shape.height, shape.width);
  const int64_t channels = shape.channels;
  CHECK(channels == 1 || channels == 3, "resize: ", channels, " channels");
  const AxisFilter across = make_filter(shape.width, shape.width * side / shorter, side);
  const AxisFilter down = make_filter(shape.height, shape.height * side / shorter, side);
  const int64_t top = down.first.front(), bottom = down.first.back() + down.taps;
  std::vector<uint8_t> rows(static_cast<size_t>((bottom - top) * side * channels));
  const auto filter = channels == 1 ? filter_row<1> : filter_row<3>;
  for (int64_t y = top; y < bottom; ++y) {
    filter(from + y * shape.width * channels, across, side,
           rows.data() + (y - top) * side * channels);
  }
  const int64_t pitch = side * channels;
  std::vector<int32_t> sums(static_cast<size_t>(pitch));
  for (int64_t y = 0; y < side; ++y) {
    const int32_t* weights = down.weights.data() + y * down.taps;
    std::fill(sums.begin(), sums.end(), 0);
    for (int64_t t = 0; t < down.taps; ++t) {
      if (weights[t] == 0) continue;
      const uint8_t* in = rows.data() + (down.first[y] - top + t) * pitch;
      for (int64_t i = 0; i < pitch; ++i) sums[i] += weights[t] * in[i];
    }
    for (int64_t i = 0; i < pitch; ++i) *to++ = rounded(sums[i]);
  }
}

std::unique_ptr<Dataset> resized(std::unique_ptr<Dataset> source, int64_t side) {
  if (source->shape().height == side && source->shape().width == side) return source;
  return std::make_unique<ResizedDataset>(std::move(source), side);
}

}  // namespace headroom
