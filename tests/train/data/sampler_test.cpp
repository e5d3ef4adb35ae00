// The order of training: permutations, windows, short ends, and going on where one stopped.
#include "train/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/base/error.h"

namespace headroom {
namespace {

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

std::vector<int64_t> iota(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), int64_t{0});
  return values;
}

// The indices of a window, joined; counts get the size of each micro-batch.
std::vector<int64_t> join(const std::vector<MicroBatch>& window,
                          std::vector<int64_t>* counts = {}) {
  std::vector<int64_t> all;
  for (const MicroBatch& batch : window) {
    all.insert(all.end(), batch.indices.begin(), batch.indices.end());
    if (counts != nullptr) counts->push_back(static_cast<int64_t>(batch.indices.size()));
  }
  return all;
}

TEST(EpochOrder, IsAPermutationOfSeedAndEpoch) {
  for (const int64_t size : {1, 2, 3, 10, 1001}) {
    EXPECT_EQ(sorted(epoch_order(size, 7, 0)), iota(size));
  }
  EXPECT_EQ(epoch_order(100, 7, 3), epoch_order(100, 7, 3));
  EXPECT_NE(epoch_order(100, 7, 3), epoch_order(100, 7, 4));
  EXPECT_NE(epoch_order(100, 7, 3), epoch_order(100, 8, 3));
}

TEST(EpochOrder, GivesEveryPermutationAboutEquallyOften) {
  std::map<std::vector<int64_t>, int> counts;
  for (int64_t epoch = 0; epoch < 24000; ++epoch) ++counts[epoch_order(4, 1, epoch)];
  EXPECT_EQ(counts.size(), 24u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 150);
}

TEST(Sampler, CutsEpochsIntoWindowsOfMicroBatches) {
  Sampler sampler(10, {.batch = 2, .accum = 2, .shuffle = false});
  EXPECT_EQ(sampler.windows_per_epoch(), 3);
  EXPECT_EQ(sampler.batches_per_epoch(), 5);
  std::vector<int64_t> counts;
  EXPECT_EQ(join(sampler.next_window(), &counts), (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(counts, (std::vector<int64_t>{2, 2}));
  sampler.next_window();
  const std::vector<MicroBatch> last = sampler.next_window();
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].indices, (std::vector<int64_t>{8, 9}));
  EXPECT_EQ(last[0].window, 2);
  EXPECT_EQ(last[0].window_images, 2);
  EXPECT_TRUE(last[0].last_in_window);
  EXPECT_TRUE(last[0].last_in_epoch);
  EXPECT_EQ(sampler.state(), (SamplerState{1, 0}));
  EXPECT_EQ(sampler.next_window()[0].epoch, 1);
}

TEST(Sampler, MarksTheEndsOfWindowsAndTheImagesTheyHold) {
  Sampler sampler(10, {.batch = 4, .accum = 3, .shuffle = false});
  std::vector<int64_t> counts;
  const std::vector<MicroBatch> window = sampler.next_window();
  join(window, &counts);
  EXPECT_EQ(counts, (std::vector<int64_t>{4, 4, 2}));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(window[i].in_window, static_cast<int64_t>(i));
    EXPECT_EQ(window[i].last_in_window, i == 2);
    EXPECT_EQ(window[i].last_in_epoch, i == 2);
    EXPECT_EQ(window[i].window_images, 10);
    EXPECT_EQ(window[i].state_after_window, (SamplerState{1, 0}));
  }
}

TEST(Sampler, GivesOneShortBatchIfTheSetIsSmallerThanABatch) {
  Sampler sampler(5, {.batch = 16, .accum = 4});
  EXPECT_EQ(sampler.windows_per_epoch(), 1);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    const std::vector<MicroBatch> window = sampler.next_window();
    ASSERT_EQ(window.size(), 1u);
    EXPECT_EQ(sorted(window[0].indices), iota(5));
    EXPECT_EQ(window[0].window_images, 5);
    EXPECT_EQ(window[0].epoch, epoch);
  }
}

TEST(Sampler, RefusesDropLastThatLeavesNoBatches) {
  try {
    Sampler(5, {.batch = 16, .accum = 4, .drop_last = true});
    FAIL() << "nothing thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("there are no batches"), std::string::npos);
  }
  EXPECT_THROW(Sampler(63, {.batch = 16, .accum = 4, .drop_last = true}), InvalidArgument);
  EXPECT_EQ(Sampler(64, {.batch = 16, .accum = 4, .drop_last = true}).windows_per_epoch(), 1);
}

TEST(Sampler, RefusesNonsense) {
  EXPECT_THROW(Sampler(0, {}), InvalidArgument);
  EXPECT_THROW(Sampler(5, {.batch = 0}), InvalidArgument);
  EXPECT_THROW(Sampler(5, {.accum = 0}), InvalidArgument);
  constexpr int64_t kHuge = int64_t{1} << 62;  // batch * accum does not fit
  EXPECT_EQ(Sampler(5, {.batch = kHuge, .accum = kHuge}).windows_per_epoch(), 1);
  EXPECT_THROW(Sampler(5, {.batch = kHuge, .accum = kHuge, .drop_last = true}), InvalidArgument);
}

TEST(Sampler, UsesEachImageOncePerEpochAndDropsTheShortWindowIfAsked) {
  for (const bool drop_last : {false, true}) {
    Sampler sampler(23, {.batch = 3, .accum = 2, .drop_last = drop_last, .seed = 7});
    EXPECT_EQ(sampler.windows_per_epoch(), drop_last ? 3 : 4);
    EXPECT_EQ(sampler.batches_per_epoch(), drop_last ? 6 : 8);
    std::vector<std::vector<int64_t>> epochs(2);
    for (std::vector<int64_t>& epoch : epochs) {
      for (int64_t w = 0; w < sampler.windows_per_epoch(); ++w) {
        const std::vector<int64_t> indices = join(sampler.next_window());
        epoch.insert(epoch.end(), indices.begin(), indices.end());
      }
      EXPECT_EQ(epoch.size(), drop_last ? 18u : 23u);
      const std::vector<int64_t> in_order = sorted(epoch);
      EXPECT_EQ(std::adjacent_find(in_order.begin(), in_order.end()), in_order.end());
    }
    EXPECT_NE(epochs[0], epochs[1]);
    EXPECT_EQ(sampler.state(), (SamplerState{2, 0}));
  }
}

TEST(Sampler, GoesOnExactlyFromAnySavedState) {
  const SamplerOptions options{.batch = 3, .accum = 2, .seed = 11};
  Sampler whole(20, options);
  std::vector<std::vector<int64_t>> windows;
  std::vector<SamplerState> states = {whole.state()};
  for (int i = 0; i < 12; ++i) {
    const std::vector<MicroBatch> window = whole.next_window();
    EXPECT_EQ(window[0].state_after_window, whole.state());
    windows.push_back(join(window));
    states.push_back(whole.state());
  }
  for (size_t start = 0; start < 12; ++start) {
    Sampler resumed(20, options);
    resumed.restore(states[start]);
    for (size_t i = start; i < 12; ++i) EXPECT_EQ(join(resumed.next_window()), windows[i]);
  }
}

TEST(Sampler, ResumesWithAnotherBatchSizeWithoutRepeatingImages) {
  Sampler first(20, {.batch = 8, .seed = 11});
  std::vector<int64_t> epoch = join(first.next_window());
  Sampler second(20, {.batch = 5, .accum = 2, .seed = 11});
  second.restore(first.state());
  while (second.state().epoch == 0) {
    const std::vector<int64_t> indices = join(second.next_window());
    epoch.insert(epoch.end(), indices.begin(), indices.end());
  }
  EXPECT_EQ(epoch, epoch_order(20, 11, 0));
}

TEST(Sampler, RefusesAStateThatIsNotOfThisSet) {
  Sampler sampler(20, {});
  EXPECT_THROW(sampler.restore({-1, 0}), InvalidArgument);
  EXPECT_THROW(sampler.restore({0, -1}), InvalidArgument);
  EXPECT_THROW(sampler.restore({0, 21}), InvalidArgument);
  EXPECT_THROW(sampler.restore({INT64_MAX, 20}), InvalidArgument);  // the next one has no number
  sampler.restore({4, 20});
  EXPECT_EQ(sampler.state(), (SamplerState{5, 0}));
}

TEST(AugmentationSeed, DiffersBySeedEpochAndIndex) {
  EXPECT_EQ(augmentation_seed(1, 2, 3), augmentation_seed(1, 2, 3));
  EXPECT_NE(augmentation_seed(1, 2, 3), augmentation_seed(1, 2, 4));
  EXPECT_NE(augmentation_seed(1, 2, 3), augmentation_seed(1, 3, 3));
  EXPECT_NE(augmentation_seed(1, 2, 3), augmentation_seed(2, 2, 3));
}

TEST(BatchSource, GivesTheMicroBatchesOfSoManyWindows) {
  BatchSource source = batch_source(Sampler(10, {.batch = 4, .accum = 2, .shuffle = false}), 3);
  std::vector<int64_t> sizes;
  while (const std::optional<MicroBatch> batch = source()) {
    sizes.push_back(static_cast<int64_t>(batch->indices.size()));
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 4, 2, 4, 4}));
  EXPECT_FALSE(source().has_value());
}

}  // namespace
}  // namespace headroom
