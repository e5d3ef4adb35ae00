// CIFAR-10 binary files: planes become pixels, and damage is refused.
#include "train/data/cifar.h"

#include <gtest/gtest.h>

#include "tests/train/data/data_files.h"

namespace headroom {
namespace {

using test::Bytes;
using test::expect_contains;
using test::message_of;
using test::TemporaryFolder;

constexpr size_t kRecord = 3073;

Bytes flat_record(uint8_t label, uint8_t red, uint8_t green, uint8_t blue) {
  Bytes record = {label};
  for (const uint8_t value : {red, green, blue}) record.insert(record.end(), 1024, value);
  return record;
}

// Label 9, byte k = k mod 256.
Bytes counting_record() {
  Bytes record = {9};
  for (int k = 0; k < 3072; ++k) record.push_back(static_cast<uint8_t>(k));
  return record;
}

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string refusal(const std::string& folder) {
  return message_of<InvalidArgument>([&] { open_data(folder); });
}

TEST(Cifar, TurnsPlanesIntoPixels) {
  TemporaryFolder folder;
  test::write_bytes(folder.path("data_batch_1.bin"),
                    flat_record(3, 10, 20, 30) + counting_record());
  test::write_bytes(folder.path("test_batch.bin"), counting_record());
  const DataSplit split = open_data(folder.root());
  ASSERT_EQ(split.train->size(), 2);
  ASSERT_EQ(split.test->size(), 1);
  EXPECT_EQ(split.train->shape(), (ImageShape{3, 32, 32}));
  EXPECT_EQ(split.train->label(0), 3);
  EXPECT_EQ(split.train->label(1), 9);
  Bytes pixels(3072);
  split.train->read(0, pixels.data());
  for (int p = 0; p < 1024; ++p) {
    ASSERT_EQ(Bytes(pixels.begin() + 3 * p, pixels.begin() + 3 * p + 3), (Bytes{10, 20, 30}));
  }
  split.train->read(1, pixels.data());
  EXPECT_EQ(pixels[(2 * 32 + 5) * 3 + 1], 69);
  EXPECT_EQ(split.train->class_names()[9], "truck");
  EXPECT_FLOAT_EQ(split.train->info().std[2], 0.2616f);
  EXPECT_TRUE(split.train->warnings().empty());
}

TEST(Cifar, RefusesAShiftedTailNamingTheRecordSize) {
  TemporaryFolder folder;
  Bytes records = flat_record(3, 10, 20, 30) + counting_record();
  records.pop_back();
  test::write_bytes(folder.path("data_batch_1.bin"), records);
  test::write_bytes(folder.path("test_batch.bin"), counting_record());
  const std::string message = refusal(folder.root());
  expect_contains(message, "data_batch_1.bin");
  expect_contains(message, "3073");
  expect_contains(message, "6145");
}

TEST(Cifar, RefusesALabelOutOfRangeInAnyFile) {
  TemporaryFolder folder;
  test::write_bytes(folder.path("data_batch_1.bin"), counting_record());
  test::write_bytes(folder.path("test_batch.bin"), counting_record() + flat_record(10, 0, 0, 0));
  expect_contains(refusal(folder.root()), "test_batch.bin: label 10 of record 1");
}

TEST(Cifar, ReadsBatchesInTheOrderOfTheirNumbers) {
  TemporaryFolder folder;
  for (const int number : {10, 2, 9, 1}) {
    test::write_bytes(folder.path("data_batch_" + std::to_string(number) + ".bin"),
                      flat_record(static_cast<uint8_t>(number % 10), 0, 0, 0));
  }
  test::write_bytes(folder.path("test_batch.bin"), counting_record());
  test::write_bytes(folder.path("data_batch_x.bin"), {1});
  test::write_bytes(folder.path("data_batch_3.bin.part"), {1});
  const DataSplit split = open_data(folder.root());
  ASSERT_EQ(split.train->size(), 4);
  const std::vector<int64_t> expected = {1, 2, 9, 0};
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(split.train->label(i), expected[i]);
  ASSERT_EQ(split.train->warnings().size(), 1u);  // 3 to 8 are missing
  expect_contains(split.train->warnings()[0], "missing between data_batch_1.bin");
}

TEST(Cifar, RefusesABatchThatIsThereTwice) {
  TemporaryFolder folder;
  test::write_bytes(folder.path("test_batch.bin"), counting_record());
  test::write_bytes(folder.path("data_batch_1.bin"), flat_record(1, 0, 0, 0));
  test::write_bytes(folder.path("data_batch_2.bin"), flat_record(1, 0, 0, 0));
  expect_contains(refusal(folder.root()), "hold the same images");
  test::write_bytes(folder.path("data_batch_2.bin"), flat_record(1, 0, 0, 1));
  EXPECT_EQ(open_data(folder.root()).train->size(), 2);
  test::write_bytes(folder.path("data_batch_02.bin"), flat_record(3, 0, 0, 0));
  const std::string message = refusal(folder.root());
  expect_contains(message, "data_batch_2.bin");
  expect_contains(message, "data_batch_02.bin");
  expect_contains(message, "have one number");
}

TEST(Cifar, TakesClassNamesFromTheirFile) {
  TemporaryFolder folder;
  test::write_bytes(folder.path("cifar-10-batches-bin/data_batch_1.bin"), counting_record());
  test::write_bytes(folder.path("cifar-10-batches-bin/test_batch.bin"), counting_record());
  const std::string names = "a\r\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n";
  test::write_bytes(folder.path("cifar-10-batches-bin/batches.meta.txt"),
                    Bytes(names.begin(), names.end()));
  EXPECT_EQ(open_data(folder.root()).train->class_names()[0], "a");
  test::write_bytes(folder.path("cifar-10-batches-bin/batches.meta.txt"), {'a', '\n'});
  const DataSplit split = open_data(folder.root());
  EXPECT_EQ(split.train->class_names()[0], "airplane");
  EXPECT_EQ(split.train->warnings().size(), 1u);
}

TEST(Cifar, RefusesMissingAndEmptyFiles) {
  TemporaryFolder folder;
  test::write_bytes(folder.path("data_batch_1.bin"), counting_record());
  expect_contains(refusal(folder.root()), "no test_batch.bin");
  test::write_bytes(folder.path("test_batch.bin"), {});
  expect_contains(refusal(folder.root()), "empty");
  std::filesystem::remove(folder.path("data_batch_1.bin"));
  expect_contains(refusal(folder.root()), "no data_batch_N.bin");
}

}  // namespace
}  // namespace headroom
