// Random data for benchmarks, and what a data argument may be.
#include "train/data/random_data.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/train/data/data_files.h"

namespace headroom {
namespace {

using test::Bytes;
using test::expect_contains;
using test::message_of;

TEST(RandomData, ParsesShapeClassesAndCount) {
  const RandomDataSpec spec = parse_random_spec("random:3x224x200:1000:77");
  EXPECT_EQ(spec.shape, (ImageShape{3, 224, 200}));
  EXPECT_EQ(spec.classes, 1000);
  EXPECT_EQ(spec.count, 77);
  EXPECT_EQ(parse_random_spec("random:1x1x1:1").count, kRandomImages);
}

TEST(RandomData, RefusesEveryOtherForm) {
  for (const std::string spec :
       {"random:", "random:3x4:10", "random:3x4x5", "random:3x4x5:", "random:3x4x5:0",
        "random:3x4x5:10:", "random:3x4x5:10:0", "random:3x4x5:10:1:1", "random:0x4x5:10",
        "random:3x4x-5:10", "random:3x4x5x6:10", "random:3x4x5a:10", "random: 3x4x5:10",
        "random:3x4x99999999999999999999:10", "random:1024x65536x65536:10"}) {
    const std::string message = message_of<InvalidArgument>([&] { open_data(spec); });
    expect_contains(message, "data: " + spec + ":");
  }
}

TEST(RandomData, DependsOnTheSeedAloneAndIsNeverFlat) {
  const auto first = open_data("random:3x32x32:10:500", {.seed = 1});
  const auto again = open_data("random:3x32x32:10:500", {.seed = 1});
  const auto other = open_data("random:3x32x32:10:500", {.seed = 2});
  EXPECT_EQ(first.train->size(), 500);
  EXPECT_EQ(first.test->size(), 100);
  const DatasetBytes a = read_all(*first.train), b = read_all(*again.train);
  EXPECT_EQ(a.pixels, b.pixels);
  EXPECT_EQ(a.labels, b.labels);
  EXPECT_NE(a.pixels, read_all(*other.train).pixels);
  EXPECT_NE(a.labels, read_all(*other.train).labels);
  std::set<Bytes> images;
  for (int i = 0; i < 500; ++i) {
    images.emplace(a.pixels.begin() + i * 3072, a.pixels.begin() + (i + 1) * 3072);
  }
  EXPECT_EQ(images.size(), 500u);
  double sum = 0;
  for (const uint8_t pixel : a.pixels) sum += pixel / 255.0;
  EXPECT_NEAR(sum / static_cast<double>(a.pixels.size()), 0.5, 2e-3);
}

TEST(RandomData, UsesAllClassesAboutEqually) {
  const DatasetBytes all = read_all(*open_data("random:1x2x2:5:5000").train);
  std::vector<int> counts(5, 0);
  for (const int64_t label : all.labels) ++counts.at(static_cast<size_t>(label));
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(OpenData, RefusesWhatIsNoFolderAndImpossibleSizes) {
  test::TemporaryFolder folder;
  const auto refusal = [](const std::string& spec, int64_t image_size = 0) {
    return message_of<InvalidArgument>([&] { open_data(spec, {.image_size = image_size}); });
  };
  expect_contains(refusal(folder.path("missing")), "no such folder");
  test::write_bytes(folder.path("data.tar"), {1});
  expect_contains(refusal(folder.path("data.tar")), "is a file, a folder is needed");
  expect_contains(refusal("", -1), "image size must be from 1");
  expect_contains(refusal("", 100000), "image size must be from 1");
  expect_contains(refusal("random:3x32x32:10", 64), "gives its own size");
  EXPECT_EQ(open_data("random:3x32x32:10", {.image_size = 32}).train->shape().width, 32);
}

TEST(OpenData, ResizesTheDigits) {
  const DataSplit split = open_data("", {.image_size = 32});
  EXPECT_EQ(split.train->shape(), (ImageShape{1, 32, 32}));
  EXPECT_EQ(split.train->label(13), 3);
}

}  // namespace
}  // namespace headroom
