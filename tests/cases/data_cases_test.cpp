// Section K: data sets as files, short sets, and batches that come in the same order and hold what
// they should.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/parallel.h"
#include "core/ops/ops.h"
#include "tests/cases/program_case.h"
#include "tests/train/data/data_files.h"
#include "train/data/cifar.h"
#include "train/data/idx.h"
#include "train/data/image_folder.h"
#include "train/input.h"

namespace headroom::cases {
namespace {

using test::Bytes;
using test::expect_contains;
using test::write_bytes;

class DataCase : public ProgramCase {
 protected:
  // A set in order, as batches on the device.
  std::vector<InputBatch> batches_of(const Dataset& data, const SamplerOptions& order,
                                     int64_t windows, InputOptions options = {}) {
    options.device = device();
    options.layout = MemoryFormat::contiguous;
    options.max_batch = order.batch;
    options.seed = order.seed;
    DeviceInput input(data, batch_source(Sampler(data.size(), order), windows), options);
    std::vector<InputBatch> out;
    while (std::optional<InputBatch> batch = input.next()) {
      batch->labels = clone(batch->labels);  // the stage is filled anew after the next call
      out.push_back(*batch);
    }
    return out;
  }

  // The whole set in one batch, as pixels scaled to [0, 1].
  Tensor pixels_of(const Dataset& data) {
    const std::vector<InputBatch> batches =
        batches_of(data, {.batch = data.size(), .shuffle = false}, 1);
    const int64_t channels = data.shape().channels;
    const auto per_channel = [&](const std::vector<float>& values) {
      return from_vector(values, {1, channels, 1, 1}, {DType::f32, device()});
    };
    return add(mul(batches.at(0).images, per_channel(data.info().std)),
               per_channel(data.info().mean));
  }
};
HEADROOM_CASES(DataCase);

const Bytes kTwoImages = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2,  0,  0,
                          0, 3, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
const Bytes kTwoLabels = {0, 0, 8, 1, 0, 0, 0, 2, 3, 9};

TEST_P(DataCase, O51_MnistHeaderCompressionTruncation) {
  const std::string images = folder_.path("train-images-idx3-ubyte");
  const std::string labels = folder_.path("train-labels-idx1-ubyte");
  // Plain and gzipped under the plain name, each file alone and both.
  for (const int compressed : {0, 1, 2, 3}) {
    SCOPED_TRACE(compressed);
    (compressed & 1 ? test::write_gzip : write_bytes)(images, kTwoImages);
    (compressed & 2 ? test::write_gzip : write_bytes)(labels, kTwoLabels);
    const auto data = open_idx(images, labels, "mnist");
    const Tensor pixels = pixels_of(*data);
    EXPECT_EQ(pixels.shape(), (Shape{2, 1, 2, 3}));
    Values expected;
    for (int i = 1; i <= 12; ++i) expected.push_back(i / 255.0);
    // (x - 0.1307) / 0.3081 and back, in f32.
    expect_values(pixels, expected, 1e-4);
    EXPECT_EQ(data->label(0), 3);
    EXPECT_EQ(data->label(1), 9);
  }
  const auto refusal = [&](const Bytes& image_bytes, const Bytes& label_bytes) {
    write_bytes(images, image_bytes);
    write_bytes(labels, label_bytes);
    return message_of([&] { open_idx(images, labels, "mnist"); });
  };
  const auto with = [](Bytes bytes, int change) {
    if (change < 0) bytes.pop_back();
    if (change > 0) bytes.push_back(0);
    return bytes;
  };
  expect_contains(refusal(with(kTwoImages, -1), kTwoLabels), "expected 28 bytes, found 27");
  expect_contains(refusal(with(kTwoImages, 1), kTwoLabels), "expected 28 bytes, found 29");
  expect_contains(refusal(kTwoImages, with(kTwoLabels, -1)), "expected 10 bytes, found 9");
  expect_contains(refusal(kTwoImages, with(kTwoLabels, 1)), "expected 10 bytes, found 11");
  // The first bytes of a gzip file, cut off behind them.
  const std::string cut = refusal({0x1F, 0x8B, 8, 8}, kTwoLabels);
  expect_contains(cut, images);
  EXPECT_NE(cut, "nothing was thrown");
}

TEST_P(DataCase, O52_CifarPlanesNotPixels) {
  Bytes bytes;
  const auto plane = [&](int value) {
    bytes.insert(bytes.end(), 1024, static_cast<uint8_t>(value));
  };
  bytes.push_back(3);
  for (const int value : {10, 20, 30}) plane(value);
  bytes.push_back(9);
  for (int k = 0; k < 3072; ++k) bytes.push_back(static_cast<uint8_t>(k % 256));
  const std::string path = folder_.path("data_batch_1.bin");
  write_bytes(path, bytes);
  const auto data = open_cifar({path}, std::vector<std::string>(10, "class"), "cifar");
  EXPECT_EQ(data->label(0), 3);
  EXPECT_EQ(data->label(1), 9);
  const Tensor pixels = pixels_of(*data);
  ASSERT_EQ(pixels.shape(), (Shape{2, 3, 32, 32}));
  const Values all = values_of(pixels);
  for (int channel = 0; channel < 3; ++channel) {
    double sum = 0;
    for (int i = 0; i < 1024; ++i) sum += all[static_cast<size_t>(channel * 1024 + i)];
    EXPECT_NEAR(sum / 1024, 10 * (channel + 1) / 255.0, 1e-6) << "channel " << channel;
  }
  const auto at = [&](int channel, int row, int column) {
    return all[static_cast<size_t>(((3 + channel) * 32 + row) * 32 + column)];
  };
  EXPECT_NEAR(at(1, 2, 5), 0.2705882, 1e-6);
  EXPECT_NEAR(at(2, 31, 31), 1.0, 1e-6);
  bytes.pop_back();
  write_bytes(path, bytes);
  write_bytes(folder_.path("test_batch.bin"), Bytes(3073));
  const std::string refusal = message_of([&] { open_data(folder_.root()); });
  expect_contains(refusal, "3073");
  expect_contains(refusal, "6145");
}

TEST_P(DataCase, O53_FewerSamplesThanTheBatchSize) {
  TrainConfig config = on_backend(test::small_config("lenet", "random:1x12x12:4:5"));
  config.batch = 16;
  config.accum = 4;
  TrainConfig exact = config;
  exact.batch = 5;
  exact.accum = 1;
  test::Recorder a, b;
  Trainer short_window(config), exact_window(exact);
  short_window.run(a);
  exact_window.run(b);
  ASSERT_EQ(a.steps.size(), 2u);
  EXPECT_EQ(a.steps[0].images, 5);
  EXPECT_EQ(a.losses, b.losses);
  for (const double loss : a.losses) EXPECT_TRUE(std::isfinite(loss));
  EXPECT_EQ(test::weights_of(short_window), test::weights_of(exact_window))
      << "the gradient has another weight";
}

TEST_P(DataCase, O53_DropLastThatLeavesNoBatchesIsRefusedAtStart) {
  // 5 images are less than a batch; 63 are less than a window of batches, though three batches.
  for (const char* images : {"5", "63"}) {
    const test::ProcessResult result = test::train(
        flags(std::string("--batch 16 --accum 4 --epochs 2 --drop-last --data random:1x28x28:10:") +
              images));
    EXPECT_EQ(result.exit_code, 2);
    expect_contains(result.err, "there are no batches");
    expect_contains(result.err, images);
    EXPECT_EQ(result.out, "");
  }
}

TEST(ImageFolderCase, O54_ImageFoldersWithStrayEntries) {
  const test::TemporaryFolder folder;
  for (const std::string name : {"c", "a", "b"}) {
    test::write_flat_image(folder.path(name + "/2.png"), 4, 4, 1);
    test::write_flat_image(folder.path(name + "/1.JPEG"), 4, 4, 1);
  }
  test::write_flat_image(folder.path(".ipynb_checkpoints/1.png"), 4, 4, 1);
  test::write_flat_image(folder.path("b/.ipynb_checkpoints/1.png"), 4, 4, 1);
  write_bytes(folder.path(".DS_Store"), {1, 2, 3});
  write_bytes(folder.path("a/.DS_Store"), {1, 2, 3});
  folder.make_folder("d");
  const FolderListing listing = list_image_folder(folder.root());
  EXPECT_EQ(listing.class_names, (std::vector<std::string>{"a", "b", "c", "d"}));
  std::vector<std::string> found;
  std::vector<int64_t> labels;
  for (const ImageEntry& image : listing.images) {
    found.push_back(image.path.substr(folder.root().size() + 1));
    labels.push_back(image.label);
  }
  EXPECT_EQ(found, (std::vector<std::string>{"a/1.JPEG", "a/2.png", "b/1.JPEG", "b/2.png",
                                             "c/1.JPEG", "c/2.png"}));
  EXPECT_EQ(labels, (std::vector<int64_t>{0, 0, 1, 1, 2, 2}));
  ASSERT_EQ(listing.warnings.size(), 1u);
  expect_contains(listing.warnings[0], "class d has no images; it keeps label 3");
  // All six are used, three of them to test with, and the warning reaches the person who trains.
  const DataSplit split = open_data(folder.root(), {.image_size = 28});
  EXPECT_EQ(split.train->size() + split.test->size(), 6);
  EXPECT_EQ(split.train->classes(), 4);
  const test::ProcessResult result =
      test::train("--device cpu --steps 1 --image-size 28 --data " + folder.root());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_contains(result.err, "class d has no images");
}

TEST_P(DataCase, O55_SameSeedAnyNumberOfLoaderThreadsSameBatches) {
  struct Epochs {
    std::vector<std::vector<int64_t>> order;
    std::vector<Values> images, labels;
    bool operator==(const Epochs&) const = default;
  };
  const DataSplit data = open_data("random:3x8x8:4:10");
  const auto run = [&](int64_t threads, bool resident = false) {
    InputOptions options;
    options.threads = threads;
    options.resident = resident;
    options.crop = options.flip = true;
    Epochs out;
    for (const InputBatch& batch : batches_of(*data.train, {.batch = 4, .seed = 7}, 6, options)) {
      out.order.push_back(batch.plan.indices);
      out.images.push_back(values_of(batch.images));
      out.labels.push_back(values_of(batch.labels));
    }
    return out;
  };
  const Epochs wanted = run(0);
  ASSERT_EQ(wanted.order.size(), 6u);
  std::vector<std::vector<int64_t>> epochs(2);
  for (size_t b = 0; b < 6; ++b) {
    EXPECT_EQ(wanted.order[b].size(), b % 3 == 2 ? 2u : 4u);
    epochs[b / 3].insert(epochs[b / 3].end(), wanted.order[b].begin(), wanted.order[b].end());
  }
  EXPECT_NE(epochs[0], epochs[1]);
  for (std::vector<int64_t>& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(epoch, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
  for (const int64_t threads : {1, 2, 3, 8}) {
    EXPECT_TRUE(run(threads) == wanted) << threads << " threads";
  }
  EXPECT_TRUE(run(0, true) == wanted) << "kept on the device";
}

// Sample i is i in every pixel; two channels carry the number, as a byte alone ends at 255.
class NumberedImages : public Dataset {
 public:
  static constexpr int64_t kSide = 64;
  NumberedImages() : Dataset(numbered_info()) {}
  int64_t size() const override { return 512; }
  int64_t label(int64_t index) const override { return index % 10; }
  void read(int64_t index, uint8_t* hwc) const override {
    for (int64_t p = 0; p < kSide * kSide; ++p) {
      hwc[2 * p] = static_cast<uint8_t>(index % 256);
      hwc[2 * p + 1] = static_cast<uint8_t>(index / 256);
    }
  }

 private:
  static DatasetInfo numbered_info() {
    DatasetInfo info;
    info.name = "numbered";
    info.shape = {2, kSide, kSide};
    info.class_names = std::vector<std::string>(10, "class");
    info.mean = {0, 0};
    info.std = {1.0f / 255, 1.0f / 255};  // so that pixels come out as their bytes
    return info;
  }
};

TEST_P(DataCase, O56_PinnedStagingBufferNotReusedTooEarly) {
  const NumberedImages data;
  // Milliseconds of work on a GPU before anything reads the batch; a CPU has no queue to fill.
  const int64_t side = device().is_cpu() ? 64 : 4096;
  const Tensor heavy = full({side, side}, 1.0 / static_cast<double>(side), {DType::f32, device()});
  constexpr double kPixels = NumberedImages::kSide * NumberedImages::kSide;
  for (const bool resident : {false, true}) {
    for (const int64_t threads : {0, 3}) {
      InputOptions options;
      options.device = device();
      options.max_batch = 8;
      options.threads = threads;
      options.resident = resident;
      DeviceInput input(data, batch_source(Sampler(512, {.batch = 8, .shuffle = false}), 64),
                        options);
      std::vector<Tensor> sums, labels;
      Tensor work = heavy;
      while (const std::optional<InputBatch> batch = input.next()) {
        for (int i = 0; i < 2; ++i) work = matmul(work, heavy);
        sums.push_back(sum(batch->images, {.axes = {0, 2, 3}}));
        labels.push_back(clone(batch->labels));
      }
      ASSERT_EQ(sums.size(), 64u);
      for (int64_t b = 0; b < 64; ++b) {
        const Values channel = values_of(sums[static_cast<size_t>(b)]);
        const double expected = static_cast<double>(8 * 8 * b + 28) * kPixels;
        // A single image of a neighbouring batch would be off by 200 times as much.
        EXPECT_NEAR(channel[0] + 256 * channel[1], expected, 1e-5 * expected) << "batch " << b;
        Values wanted_labels;
        for (int64_t i = 8 * b; i < 8 * b + 8; ++i) {
          wanted_labels.push_back(static_cast<double>(i % 10));
        }
        EXPECT_EQ(values_of(labels[static_cast<size_t>(b)]), wanted_labels) << "batch " << b;
      }
    }
  }
}

}  // namespace
}  // namespace headroom::cases
