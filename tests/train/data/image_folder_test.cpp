// Image folders: what becomes a class, in which order, and what is refused.
#include "train/data/image_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/train/data/data_files.h"

namespace headroom {
namespace {

using test::Bytes;
using test::expect_contains;
using test::message_of;
using test::TemporaryFolder;
using test::write_flat_image;

// a, b and c with two images each, stray entries, and an empty d.
void write_folder_with_strays(const TemporaryFolder& folder) {
  uint8_t value = 10;
  for (const std::string name : {"c", "a", "b"}) {
    write_flat_image(folder.path(name + "/2.png"), 4, 4, value++);
    write_flat_image(folder.path(name + "/10.png"), 4, 4, value++);
  }
  write_flat_image(folder.path(".ipynb_checkpoints/x.png"), 4, 4, 1);
  write_flat_image(folder.path("a/.hidden.png"), 4, 4, 1);
  write_flat_image(folder.path("a/.cache/x.png"), 4, 4, 1);
  test::write_bytes(folder.path(".DS_Store"), {1, 2, 3});
  test::write_bytes(folder.path("notes.txt"), {1});
  folder.make_folder("d");
}

std::string refusal(const std::string& folder, int64_t image_size = 0) {
  return message_of<InvalidArgument>([&] { open_data(folder, {.image_size = image_size}); });
}

int first_pixel(const Dataset& data, int64_t index) {
  Bytes pixels(static_cast<size_t>(data.shape().bytes()));
  data.read(index, pixels.data());
  return pixels[0];
}

TEST(ImageFolder, IgnoresHiddenEntriesAndKeepsTheLabelOfAnEmptyClass) {
  TemporaryFolder folder;
  write_folder_with_strays(folder);
  const FolderListing listing = list_image_folder(folder.root());
  EXPECT_EQ(listing.class_names, (std::vector<std::string>{"a", "b", "c", "d"}));
  ASSERT_EQ(listing.images.size(), 6u);
  const std::vector<int64_t> labels = {0, 0, 1, 1, 2, 2};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(listing.images[i].label, labels[i]);
  // Sorted by bytes: "10.png" before "2.png".
  EXPECT_TRUE(listing.images[0].path.ends_with("a/10.png"));
  EXPECT_TRUE(listing.images[1].path.ends_with("a/2.png"));
  ASSERT_EQ(listing.warnings.size(), 1u);
  expect_contains(listing.warnings[0], "class d has no images; it keeps label 3");
}

TEST(ImageFolder, SplitsASingleRootTheSameWayEveryTime) {
  TemporaryFolder folder;
  write_folder_with_strays(folder);
  const DataSplit split = open_data(folder.root());
  ASSERT_EQ(split.train->size(), 3);
  ASSERT_EQ(split.test->size(), 3);
  EXPECT_EQ(split.train->classes(), 4);
  EXPECT_EQ(split.test->classes(), 4);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(split.train->label(i), i);
    EXPECT_EQ(split.test->label(i), i);
  }
  // Written in the order c, a, b: 2.png first, then 10.png.
  EXPECT_EQ(first_pixel(*split.train, 0), 13);
  EXPECT_EQ(first_pixel(*split.test, 0), 12);
  EXPECT_EQ(first_pixel(*split.test, 2), 10);
}

TEST(ImageFolder, HoldsOutATenthOfEachClassSpreadEvenly) {
  FolderListing listing;
  listing.class_names = {"a", "b", "c"};
  for (int i = 0; i < 40; ++i) listing.images.push_back({"a" + std::to_string(i), 0});
  for (int i = 0; i < 3; ++i) listing.images.push_back({"b" + std::to_string(i), 1});
  listing.images.push_back({"c0", 2});
  const FolderListing held = hold_out("photos", listing);
  std::vector<std::string> paths;
  for (const ImageEntry& image : held.images) paths.push_back(image.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"a9", "a19", "a29", "a39", "b2"}));
  EXPECT_EQ(listing.images.size(), 39u);
  EXPECT_EQ(listing.images.back().path, "c0");
}

TEST(ImageFolder, ReadsTrainAndTestOrValFolders) {
  for (const std::string test_name : {"test", "val"}) {
    TemporaryFolder folder;
    write_flat_image(folder.path("train/cat/1.jpg"), 8, 6, 50);
    write_flat_image(folder.path("train/dog/more/1.JPEG"), 8, 6, 60);
    write_flat_image(folder.path(test_name + "/dog/1.png"), 8, 6, 70);
    const DataSplit split = open_data(folder.root());
    EXPECT_EQ(split.train->class_names(), (std::vector<std::string>{"cat", "dog"}));
    EXPECT_EQ(split.train->shape(), (ImageShape{3, 8, 6}));
    ASSERT_EQ(split.train->size(), 2);
    ASSERT_EQ(split.test->size(), 1);
    EXPECT_EQ(split.test->label(0), 1);
    EXPECT_EQ(first_pixel(*split.test, 0), 70);
    EXPECT_FLOAT_EQ(split.train->info().mean[1], 0.456f);
  }
}

TEST(ImageFolder, RefusesAClassThatOnlyTheTestSetHas) {
  TemporaryFolder folder;
  write_flat_image(folder.path("train/cat/1.png"), 8, 6, 50);
  write_flat_image(folder.path("test/bird/1.png"), 8, 6, 50);
  expect_contains(refusal(folder.root()), "class bird is not among the training classes");
}

TEST(ImageFolder, NamesTheFirstBadImageAtTheStart) {
  TemporaryFolder folder;
  write_folder_with_strays(folder);
  test::write_bytes(folder.path("c/0.jpg"), {0xFF, 0xD8, 0xFF, 0xE0});
  test::write_bytes(folder.path("b/1.png"), {'h', 'i'});
  expect_contains(refusal(folder.root()), "b/1.png: is neither a JPEG nor a PNG file");
}

TEST(ImageFolder, FindsAnImageTruncatedBehindItsHeaderWhenItIsRead) {
  TemporaryFolder folder;
  write_flat_image(folder.path("train/a/1.png"), 64, 64, 1);
  Bytes noise;
  for (int i = 0; i < 64 * 64 * 3; ++i) noise.push_back(static_cast<uint8_t>(i * 31 ^ i >> 5));
  test::write_jpeg(folder.path("train/a/2.jpg"), 64, 64, 3, noise);
  write_flat_image(folder.path("test/a/1.png"), 64, 64, 1);
  Bytes bytes = test::read_bytes(folder.path("train/a/2.jpg"));
  bytes.resize(bytes.size() / 2);
  test::write_bytes(folder.path("train/a/2.jpg"), bytes);
  const DataSplit split = open_data(folder.root());
  EXPECT_EQ(first_pixel(*split.train, 0), 1);
  for (int attempt = 0; attempt < 2; ++attempt) {
    expect_contains(message_of<DataError>([&] { first_pixel(*split.train, 1); }), "train/a/2.jpg");
  }
}

TEST(ImageFolder, NoticesAnImageThatChangesSizeAfterTheStart) {
  TemporaryFolder folder;
  write_folder_with_strays(folder);
  const DataSplit split = open_data(folder.root());
  write_flat_image(folder.path("a/10.png"), 5, 4, 1);
  expect_contains(message_of<DataError>([&] { first_pixel(*split.train, 0); }), "is 4x5 now");
}

TEST(ImageFolder, AsksForAnImageSizeWhenSizesDiffer) {
  TemporaryFolder folder;
  write_flat_image(folder.path("train/a/1.png"), 8, 8, 1);
  write_flat_image(folder.path("train/a/2.png"), 8, 9, 2);
  write_flat_image(folder.path("test/a/1.png"), 8, 8, 3);
  const std::string message = refusal(folder.root());
  expect_contains(message, "a/1.png is 8x8 and");
  expect_contains(message, "a/2.png is 9x8; give --image-size");
  const DataSplit split = open_data(folder.root(), {.image_size = 16});
  EXPECT_EQ(split.train->shape(), (ImageShape{3, 16, 16}));
  EXPECT_EQ(first_pixel(*split.train, 1), 2);
}

TEST(ImageFolder, IsGrayOnlyIfAllImagesAre) {
  TemporaryFolder folder;
  test::write_jpeg(folder.path("train/a/1.jpg"), 8, 8, 1, Bytes(64, 20));
  test::write_jpeg(folder.path("test/a/1.jpg"), 8, 8, 1, Bytes(64, 30));
  const DataSplit gray = open_data(folder.root());
  EXPECT_EQ(gray.train->shape().channels, 1);
  EXPECT_EQ(gray.train->info().mean.size(), 1u);
  write_flat_image(folder.path("test/a/2.png"), 8, 8, 40);
  const DataSplit mixed = open_data(folder.root());
  EXPECT_EQ(mixed.train->shape().channels, 3);
  Bytes pixels(192);
  mixed.train->read(0, pixels.data());
  EXPECT_EQ(pixels, Bytes(192, 20));
}

TEST(ImageFolder, GivesTheSameBytesReadAgainAndFromManyThreads) {
  TemporaryFolder folder;
  for (int i = 0; i < 20; ++i) {
    write_flat_image(folder.path("train/a/" + std::to_string(i) + ".png"), 16, 16,
                     static_cast<uint8_t>(i));
  }
  write_flat_image(folder.path("test/a/1.png"), 16, 16, 1);
  const DataSplit split = open_data(folder.root());
  const Bytes expected = read_all(*split.train).pixels;
  const DataSplit again = open_data(folder.root());
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Bytes pixels(768);
      for (int round = 0; round < 3; ++round) {
        for (int64_t i = 0; i < 20; ++i) {
          again.train->read(i, pixels.data());
          wrong[t] += !std::equal(pixels.begin(), pixels.end(), expected.begin() + i * 768);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(ImageFolder, RefusesFoldersWithoutWhatItNeeds) {
  TemporaryFolder folder;
  expect_contains(refusal(folder.root()), "nothing recognised");
  folder.make_folder("a");
  expect_contains(refusal(folder.root()), "hold no .jpg");
  folder.make_folder("test/a");
  expect_contains(refusal(folder.root()), "no folder train");
  folder.make_folder("train/a");
  expect_contains(refusal(folder.root()), "no images to train on");
  write_flat_image(folder.path("train/a/1.png"), 8, 8, 1);
  expect_contains(refusal(folder.root()), "no images to test on");
}

TEST(ImageFolder, FollowsLinksToFilesAndClassesAndNamesALinkToNothing) {
  const TemporaryFolder folder, elsewhere;
  write_flat_image(elsewhere.path("far/1.png"), 4, 4, 1);
  write_flat_image(elsewhere.path("far/2.PNG"), 4, 4, 2);
  write_flat_image(folder.path("a/1.png"), 4, 4, 3);
  std::filesystem::create_symlink(elsewhere.path("far/1.png"), folder.path("a/2.png"));
  std::filesystem::create_directory_symlink(elsewhere.path("far"), folder.file("b"));
  const DataSplit split = open_data(folder.root());
  EXPECT_EQ(split.train->class_names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(split.train->size() + split.test->size(), 4);
  std::filesystem::create_symlink(elsewhere.file("gone.png"), folder.path("a/3.png"));
  expect_contains(refusal(folder.root()), "a/3.png");
  expect_contains(refusal(folder.root()), "No such file");
}

// Opening a pipe waits for someone to write to it.
TEST(ImageFolder, LeavesPipesOutWhateverTheirName) {
  const TemporaryFolder folder;
  write_flat_image(folder.path("a/1.png"), 4, 4, 1);
  write_flat_image(folder.path("a/2.png"), 4, 4, 1);
  ASSERT_EQ(mkfifo(folder.path("a/3.png").c_str(), 0600), 0);
  const DataSplit split = open_data(folder.root());
  EXPECT_EQ(split.train->size() + split.test->size(), 2);
  ASSERT_EQ(split.train->warnings().size(), 1u);
  expect_contains(split.train->warnings()[0], "1 files that are not");
}

TEST(ImageFolder, WarnsOfFilesThatAreNoImages) {
  TemporaryFolder folder;
  write_folder_with_strays(folder);
  test::write_bytes(folder.path("a/labels.csv"), {1});
  const FolderListing listing = list_image_folder(folder.root());
  EXPECT_EQ(listing.images.size(), 6u);
  expect_contains(listing.warnings.back(), "1 files that are not .jpg");
}

}  // namespace
}  // namespace headroom
