// IDX files: what is read, and every way in which a file may be wrong.
#include "train/data/idx.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/peak_memory.h"
#include "tests/train/data/data_files.h"

namespace headroom {
namespace {

using test::Bytes;
using test::expect_contains;
using test::idx_bytes;
using test::message_of;
using test::TemporaryFolder;

Bytes counting(size_t count) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(i);
  return bytes;
}

std::string refusal(const std::string& path, int dimensions = 3) {
  return message_of<InvalidArgument>([&] { read_idx(path, dimensions); });
}

// Two images of 2 rows and 3 columns, and their labels, as a whole MNIST folder.
void write_small_mnist(const TemporaryFolder& folder) {
  for (const std::string split : {"train", "t10k"}) {
    test::write_bytes(folder.path(split + "-images-idx3-ubyte"),
                      idx_bytes({2, 2, 3}, counting(12)));
    test::write_bytes(folder.path(split + "-labels-idx1-ubyte"), idx_bytes({2}, {7, 9}));
  }
}

TEST(Idx, ReadsBigEndianSizesAndRowMajorPixels) {
  TemporaryFolder folder;
  const std::string path = folder.path("images");
  test::write_bytes(path, {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0,  2, 0, 0, 0, 3,  //
                           0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  const IdxArray array = read_idx(path, 3);
  EXPECT_EQ(array.dims, (std::vector<int64_t>{2, 2, 3}));
  EXPECT_EQ(array.bytes, counting(12));
}

TEST(Idx, NamesExpectedAndFoundBytesOfATruncatedFile) {
  TemporaryFolder folder;
  const std::string path = folder.path("images");
  test::write_bytes(path, idx_bytes({2, 2, 3}, counting(11)));
  expect_contains(refusal(path), "expected 28 bytes, found 27");
}

TEST(Idx, RefusesAFileWithBytesLeftOver) {
  TemporaryFolder folder;
  const std::string path = folder.path("images");
  test::write_bytes(path, idx_bytes({2, 2, 3}, counting(13)));
  expect_contains(refusal(path), "expected 28 bytes, found 29");
}

TEST(Idx, RecognisesGzipWhateverTheName) {
  TemporaryFolder folder;
  const std::string plain_name = folder.path("images"), gz_name = folder.path("images.gz");
  test::write_gzip(plain_name, idx_bytes({2, 2, 3}, counting(12)));
  EXPECT_EQ(read_idx(plain_name, 3).bytes, counting(12));
  test::write_bytes(gz_name, idx_bytes({2, 2, 3}, counting(12)));
  EXPECT_EQ(read_idx(gz_name, 3).bytes, counting(12));
}

TEST(Idx, RefusesTruncatedGzipAtEveryLength) {
  TemporaryFolder folder;
  const std::string whole = folder.path("whole.gz"), cut = folder.path("cut.gz");
  test::write_gzip(whole, idx_bytes({2, 2, 3}, counting(12)));
  const Bytes bytes = test::read_bytes(whole);
  ASSERT_GT(bytes.size(), 20u);
  for (size_t length = 0; length < bytes.size(); ++length) {
    test::write_bytes(cut, Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length)));
    EXPECT_NE(refusal(cut), "") << length << " of " << bytes.size() << " bytes";
  }
}

TEST(Idx, RefusesTheDamageOfAnyOneByteOfAGzipFile) {
  TemporaryFolder folder;
  const std::string path = folder.path("images.gz");
  test::write_gzip(path, idx_bytes({2, 2, 3}, counting(12)));
  const Bytes bytes = test::read_bytes(path);
  // The gzip header's flags, time and system (bytes 3 to 9) do not bear on the data.
  for (size_t at = 10; at < bytes.size(); ++at) {
    Bytes damaged = bytes;
    damaged[at] ^= 0x41;
    test::write_bytes(path, damaged);
    EXPECT_NE(refusal(path), "") << "byte " << at;
  }
}

TEST(Idx, RefusesGzipThatInflatesToMoreThanItsHeaderSays) {
  TemporaryFolder folder;
  const std::string path = folder.path("bomb.gz");
  Bytes bytes = idx_bytes({1, 1, 1}, {5});
  bytes.resize(size_t{50} << 20);  // fifty megabytes of zeros behind one promised byte
  test::write_gzip(path, bytes);
  expect_contains(refusal(path), "expected 17 bytes, found more");
  // Damage at its end is never come to: inflating stops at the first byte that was not promised.
  Bytes damaged = test::read_bytes(path);
  damaged[damaged.size() - 5] ^= 0xFF;
  test::write_bytes(path, damaged);
  expect_contains(refusal(path), "expected 17 bytes, found more");
}

TEST(Idx, RefusesGigabytesPromisedByASmallGzipFile) {
  TemporaryFolder folder;
  const std::string path = folder.path("images.gz");
  test::write_gzip(path, idx_bytes({60000, 4096, 4096}, counting(100)));
  expect_contains(refusal(path), "more than");
}

TEST(Idx, TakesMemoryForTheDataThatComeNotForWhatAGzipFilePromises) {
  TemporaryFolder folder;
  const std::string path = folder.path("images.gz");
  Bytes noise(size_t{600} << 10);  // does not compress, so half a gigabyte could be in the file
  std::minstd_rand random(1);
  for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random() >> 8);
  test::write_gzip(path, idx_bytes({1, 1 << 15, 1 << 14}, noise));
  expect_contains(refusal(path), "expected 536870928 bytes, found 614416");
  EXPECT_LT(test::peak_bytes_of([&] { read_idx(path, 3); }), int64_t{128} << 20);
}

TEST(Idx, RefusesTerabytesBeforeAllocating) {
  TemporaryFolder folder;
  const std::string path = folder.path("images");
  test::write_bytes(path, idx_bytes({100000, 65535, 65535}, counting(12)));
  expect_contains(refusal(path), "found 28");
  test::write_bytes(path, idx_bytes({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, counting(12)));
  expect_contains(refusal(path), "impossible dimensions");
  constexpr uint32_t kLargest = (uint32_t{1} << 31) - 1;
  const Bytes largest = idx_bytes({kLargest, kLargest, kLargest}, counting(12));
  test::write_bytes(path, largest);
  expect_contains(refusal(path), "impossible dimensions 2147483647x2147483647x2147483647");
  test::write_gzip(path, largest);
  expect_contains(refusal(path), "impossible dimensions");
  test::write_bytes(path, idx_bytes({kLargest}, counting(12)));
  expect_contains(refusal(path, 1), "expected 2147483655 bytes, found 20");
  test::write_gzip(path, idx_bytes({kLargest}, counting(12)));
  expect_contains(refusal(path, 1), "more than");
}

TEST(Idx, RefusesWrongMagicAndSaysWhichIsWanted) {
  TemporaryFolder folder;
  const std::string path = folder.path("images");
  test::write_bytes(path, idx_bytes({2}, {7, 9}));  // labels where images are wanted
  expect_contains(refusal(path), "2051");
  expect_contains(refusal(path), "2049");
  Bytes floats = idx_bytes({2, 2, 3}, counting(48));
  floats[2] = 0x0D;
  test::write_bytes(path, floats);
  expect_contains(refusal(path), "magic number");
}

TEST(Idx, RefusesEmptyAndMissingFilesAndFolders) {
  TemporaryFolder folder;
  test::write_bytes(folder.path("empty"), {});
  expect_contains(refusal(folder.path("empty")), "16 bytes, found 0");
  expect_contains(refusal(folder.path("missing")), "no such file");
  expect_contains(refusal(folder.root()), "no such file");
  test::write_bytes(folder.path("none"), idx_bytes({0, 2, 3}, {}));
  expect_contains(refusal(folder.path("none")), "0x2x3");
}

TEST(Mnist, OpensAFolderWithItsConstants) {
  TemporaryFolder folder;
  write_small_mnist(folder);
  const DataSplit split = open_data(folder.root());
  EXPECT_EQ(split.train->size(), 2);
  EXPECT_EQ(split.train->shape(), (ImageShape{1, 2, 3}));
  EXPECT_EQ(split.train->classes(), 10);
  EXPECT_EQ(split.test->label(1), 9);
  Bytes pixels(6);
  split.train->read(1, pixels.data());
  EXPECT_EQ(pixels, (Bytes{6, 7, 8, 9, 10, 11}));
  EXPECT_FLOAT_EQ(split.train->info().mean[0], 0.1307f);
  EXPECT_FLOAT_EQ(split.train->info().std[0], 0.3081f);
}

TEST(Mnist, FindsDottedNamesGzipAndTheFolderOfPyTorch) {
  TemporaryFolder folder;
  for (const std::string split : {"train", "t10k"}) {
    test::write_gzip(folder.path("MNIST/raw/" + split + "-images.idx3-ubyte.gz"),
                     idx_bytes({2, 2, 3}, counting(12)));
    test::write_bytes(folder.path("MNIST/raw/" + split + "-labels-idx1-ubyte"),
                      idx_bytes({2}, {0, 1}));
  }
  EXPECT_EQ(open_data(folder.root()).test->size(), 2);
}

TEST(Mnist, NamesTheMissingFile) {
  TemporaryFolder folder;
  write_small_mnist(folder);
  std::filesystem::remove(folder.path("t10k-labels-idx1-ubyte"));
  expect_contains(message_of<InvalidArgument>([&] { open_data(folder.root()); }),
                  "missing t10k-labels-idx1-ubyte");
}

TEST(Mnist, RefusesALabelOutOfRangeNamingFileItemAndLabel) {
  TemporaryFolder folder;
  write_small_mnist(folder);
  test::write_bytes(folder.path("train-labels-idx1-ubyte"), idx_bytes({2}, {3, 10}));
  const std::string message = message_of<InvalidArgument>([&] { open_data(folder.root()); });
  expect_contains(message, "train-labels-idx1-ubyte: label 10 of item 1");
}

TEST(Mnist, RefusesCountsThatDiffer) {
  TemporaryFolder folder;
  write_small_mnist(folder);
  test::write_bytes(folder.path("train-labels-idx1-ubyte"), idx_bytes({3}, {3, 1, 2}));
  expect_contains(message_of<InvalidArgument>([&] { open_data(folder.root()); }), "3 labels");
}

TEST(Mnist, RefusesTestImagesOfAnotherSize) {
  TemporaryFolder folder;
  write_small_mnist(folder);
  test::write_bytes(folder.path("t10k-images-idx3-ubyte"), idx_bytes({2, 3, 2}, counting(12)));
  expect_contains(message_of<InvalidArgument>([&] { open_data(folder.root()); }), "2x3");
}

TEST(Mnist, IsResizedWhenAskedTo) {
  TemporaryFolder folder;
  write_small_mnist(folder);
  const DataSplit split = open_data(folder.root(), {.image_size = 4});
  EXPECT_EQ(split.train->shape(), (ImageShape{1, 4, 4}));
  EXPECT_EQ(split.test->label(1), 9);
  EXPECT_EQ(read_all(*split.train).pixels.size(), 32u);
}

}  // namespace
}  // namespace headroom
