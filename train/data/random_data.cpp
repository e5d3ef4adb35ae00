// Random data sets for benchmarks.
#include "train/data/random_data.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/parallel.h"
#include "core/base/philox.h"

namespace headroom {
namespace {

constexpr int64_t kMaxImageBytes = int64_t{256} << 20;
constexpr int64_t kMaxClasses = 1'000'000;
constexpr int64_t kMaxCount = 1'000'000'000;
// Beyond one image: the number of different windows. Also more than most last-level caches hold.
constexpr int64_t kSpareBytes = int64_t{32} << 20;

class RandomDataset : public Dataset {
 public:
  RandomDataset(DatasetInfo info, std::shared_ptr<const std::vector<uint8_t>> block, int64_t count,
                uint64_t seed, uint64_t split)
      : Dataset(std::move(info)),
        block_(std::move(block)),
        count_(count),
        seed_(seed),
        split_(split) {}

  int64_t size() const override { return count_; }

  void read(int64_t index, uint8_t* hwc) const override {
    const int64_t windows = static_cast<int64_t>(block_->size()) - shape().bytes() + 1;
    const uint64_t start = draw(index).word[0] % static_cast<uint64_t>(windows);
    std::memcpy(hwc, block_->data() + start, static_cast<size_t>(shape().bytes()));
  }

  int64_t label(int64_t index) const override {
    return draw(index).word[1] % static_cast<uint32_t>(classes());
  }

 private:
  PhiloxWords draw(int64_t index) const {
    return philox(seed_, static_cast<uint64_t>(index), split_);
  }

  std::shared_ptr<const std::vector<uint8_t>> block_;
  int64_t count_;
  uint64_t seed_, split_;
};

// Splits at `separator`; an empty text gives one empty part.
std::vector<std::string_view> split_text(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at = 0;;) {
    const size_t end = text.find(separator, at);
    parts.push_back(text.substr(at, end - at));
    if (end == std::string_view::npos) return parts;
    at = end + 1;
  }
}

}  // namespace

RandomDataSpec parse_random_spec(const std::string& spec) {
  const auto number = [&](std::string_view text, const char* what, int64_t most) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    CHECK_ARG(
        error == std::errc() && end == text.data() + text.size() && value >= 1 && value <= most,
        "data: ", spec, ": the ", what, " must be a number from 1 to ", most, ", got '",
        std::string(text), "'");
    return value;
  };
  const std::vector<std::string_view> parts = split_text(spec, ':');
  CHECK_ARG((parts.size() == 3 || parts.size() == 4) && parts[0] == "random", "data: ", spec,
            ": must be random:CxHxW:CLASSES or random:CxHxW:CLASSES:COUNT, such as "
            "random:3x224x224:1000");
  const std::vector<std::string_view> sides = split_text(parts[1], 'x');
  CHECK_ARG(sides.size() == 3, "data: ", spec,
            ": the shape must be CxHxW, such as 3x224x224, got '", std::string(parts[1]), "'");
  RandomDataSpec result;
  result.shape = {number(sides[0], "channels", 1024), number(sides[1], "height", 65536),
                  number(sides[2], "width", 65536)};
  CHECK_ARG(result.shape.bytes() <= kMaxImageBytes, "data: ", spec, ": an image takes ",
            result.shape.bytes(), " bytes, the most is ", kMaxImageBytes);
  result.classes = number(parts[2], "number of classes", kMaxClasses);
  result.count = parts.size() == 4 ? number(parts[3], "count", kMaxCount) : kRandomImages;
  return result;
}

DataSplit random_data(const RandomDataSpec& spec, uint64_t seed) {
  constexpr uint64_t kTrain = 0, kTest = 1, kBlock = 2;
  constexpr int64_t kGroupBytes = 16;  // one Philox draw
  const int64_t groups = (spec.shape.bytes() + kSpareBytes) / kGroupBytes + 1;
  auto block = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(groups * kGroupBytes));
  parallel_ranges(groups, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      const PhiloxWords words = philox(seed, static_cast<uint64_t>(g), kBlock);
      std::memcpy(block->data() + g * kGroupBytes, words.word, kGroupBytes);
    }
  });
  DatasetInfo info;
  info.shape = spec.shape;
  for (int64_t c = 0; c < spec.classes; ++c) info.class_names.push_back(std::to_string(c));
  info.mean.assign(static_cast<size_t>(spec.shape.channels), 0.5f);
  info.std.assign(static_cast<size_t>(spec.shape.channels), 0.2898f);
  DatasetInfo test_info = info;
  info.name = "random train";
  test_info.name = "random test";
  const int64_t test_count = std::max<int64_t>(1, spec.count / 5);
  return {std::make_unique<RandomDataset>(std::move(info), block, spec.count, seed, kTrain),
          std::make_unique<RandomDataset>(std::move(test_info), block, test_count, seed, kTest)};
}

}  // namespace headroom
