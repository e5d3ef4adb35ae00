// The loader: the same batches for any number of threads, in order, from buffers that are not
// reused too early, with exceptions at their place and a clean end at any time.
#include "train/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/philox.h"

namespace headroom {
namespace {

// Image i is filled with the value i (mod 256), its label is i mod 5. Counts and can be made to
// fail.
class CountingDataset : public Dataset {
 public:
  explicit CountingDataset(int64_t size, ImageShape shape = {1, 4, 4})
      : Dataset({.name = "counting",
                 .shape = shape,
                 .class_names = {"a", "b", "c", "d", "e"},
                 .mean = std::vector<float>(static_cast<size_t>(shape.channels), 0.5f),
                 .std = std::vector<float>(static_cast<size_t>(shape.channels), 0.5f),
                 .warnings = {}}),
        size_(size) {}

  int64_t size() const override { return size_; }
  int64_t label(int64_t index) const override { return index % 5; }
  void read(int64_t index, uint8_t* hwc) const override {
    ++reads;
    if (delay_us > 0) {
      // Uneven, so that batches finish out of order.
      const auto wait = delay_us * (1 + static_cast<int64_t>(philox_word(9, 0, index) % 4));
      std::this_thread::sleep_for(std::chrono::microseconds(wait));
    }
    if (bad.contains(index)) throw DataError("image " + std::to_string(index) + " is bad");
    std::fill_n(hwc, shape().bytes(), static_cast<uint8_t>(index));
  }

  mutable std::atomic<int64_t> reads{0};
  int64_t delay_us = 0;
  std::set<int64_t> bad;

 private:
  int64_t size_;
};

// A batch, copied out of its slot.
struct Copy {
  std::vector<int64_t> indices, labels;
  std::vector<uint8_t> pixels;
  std::vector<uint64_t> seeds;
  bool operator==(const Copy&) const = default;
};

Copy copy(const Batch& batch, const Dataset& data) {
  return {batch.plan.indices,
          {batch.labels, batch.labels + batch.count},
          {batch.pixels, batch.pixels + batch.count * data.shape().bytes()},
          {batch.augmentation_seeds, batch.augmentation_seeds + batch.count}};
}

std::vector<Copy> load_all(const Dataset& data, const SamplerOptions& order, int64_t windows,
                           LoaderOptions options) {
  options.max_batch = order.batch;
  options.seed = order.seed;
  Loader loader(data, batch_source(Sampler(data.size(), order), windows), options);
  std::vector<Copy> batches;
  while (const std::optional<Batch> batch = loader.next()) {
    batches.push_back(copy(*batch, data));
    loader.release(*batch);
  }
  EXPECT_FALSE(loader.next().has_value());
  return batches;
}

TEST(Loader, GivesTheSameBatchesForAnyNumberOfThreadsAndSlots) {
  CountingDataset data(10);
  data.delay_us = 50;
  const SamplerOptions order{.batch = 4, .seed = 7};
  const std::vector<Copy> expected = load_all(data, order, 6, {.threads = 0});
  ASSERT_EQ(expected.size(), 6u);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> images;
    for (int b = 0; b < 3; ++b) {
      const Copy& batch = expected[epoch * 3 + b];
      EXPECT_EQ(batch.indices.size(), b == 2 ? 2u : 4u);
      images.insert(images.end(), batch.indices.begin(), batch.indices.end());
    }
    EXPECT_EQ(images, epoch_order(10, 7, epoch));
  }
  for (const int64_t threads : {0, 1, 3, 8}) {
    for (const int64_t slots : {1, 2, 5}) {
      EXPECT_EQ(load_all(data, order, 6, {.threads = threads, .slots = slots}), expected)
          << threads << " threads, " << slots << " slots";
    }
  }
}

TEST(Loader, FillsPixelsLabelsAndSeedsOfEachImage) {
  // Images so large that one task takes one image: workers share a batch.
  CountingDataset data(20, {3, 256, 256});
  for (const Copy& batch : load_all(data, {.batch = 6, .seed = 3}, 4, {.threads = 3})) {
    for (size_t i = 0; i < batch.indices.size(); ++i) {
      const int64_t index = batch.indices[i];
      EXPECT_EQ(batch.labels[i], index % 5);
      EXPECT_EQ(batch.seeds[i], augmentation_seed(3, 0, index));
      const auto first = batch.pixels.begin() + static_cast<ptrdiff_t>(i) * data.shape().bytes();
      EXPECT_EQ(std::count(first, first + data.shape().bytes(), index), data.shape().bytes());
    }
  }
}

TEST(Loader, KeepsABufferUntilItIsReleased) {
  CountingDataset data(512);
  const Sampler sampler(512, {.batch = 8, .shuffle = false});
  Loader loader(data, batch_source(sampler, 64), {.threads = 3, .slots = 3, .max_batch = 8});
  const auto sum_of = [](const Batch& batch) {
    int64_t sum = 0;
    for (int64_t i = 0; i < batch.count * 16; ++i) sum += batch.pixels[i];
    return sum;
  };
  std::vector<Batch> held;
  for (int64_t b = 0; b < 64; ++b) {
    held.push_back(*loader.next());
    if (held.size() < 3) continue;
    // The oldest batch has been held while the loader could run two batches ahead.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const int64_t oldest = b - 2;
    int64_t expected = 0;
    for (int64_t i = 8 * oldest; i < 8 * oldest + 8; ++i) expected += i % 256 * 16;
    ASSERT_EQ(sum_of(held.front()), expected) << "batch " << oldest;
    loader.release(held.front());
    held.erase(held.begin());
  }
}

TEST(Loader, ReadsAheadNoFurtherThanItsSlots) {
  CountingDataset data(1000);
  Loader loader(data, batch_source(Sampler(1000, {.batch = 10}), 100),
                {.threads = 2, .slots = 3, .max_batch = 10});
  const std::optional<Batch> batch = loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(data.reads, 30);
  loader.release(*batch);
  loader.next();
}

TEST(Loader, RefusesToWaitForASlotThatItsCallerHolds) {
  CountingDataset data(100);
  for (const int64_t threads : {0, 2}) {
    Loader loader(data, batch_source(Sampler(100, {.batch = 10}), 3),
                  {.threads = threads, .slots = 2, .max_batch = 10});
    const Batch first = *loader.next(), second = *loader.next();
    EXPECT_THROW(loader.next(), InvalidArgument);
    loader.release(second);
    EXPECT_THROW(loader.next(), InvalidArgument);  // the turn is first's slot
    loader.release(first);
    EXPECT_EQ(loader.next()->plan.window, 2);
    EXPECT_FALSE(loader.next().has_value());
  }
}

TEST(Loader, EndsEvenIfAllSlotsAreHeld) {
  CountingDataset data(100);
  for (const int64_t threads : {0, 2}) {
    Loader loader(data, batch_source(Sampler(100, {.batch = 10}), 2),
                  {.threads = threads, .slots = 2, .max_batch = 10});
    loader.next();
    loader.next();
    EXPECT_FALSE(loader.next().has_value());
  }
}

TEST(Loader, RefusesReleaseOfWhatIsNotHeld) {
  CountingDataset data(100);
  Loader loader(data, batch_source(Sampler(100, {.batch = 10}), 5), {.max_batch = 10});
  const Batch batch = *loader.next();
  loader.release(batch);
  EXPECT_THROW(loader.release(batch), InvalidArgument);
  EXPECT_THROW(loader.release(Batch{}), InvalidArgument);
  Batch wrong = batch;
  wrong.slot = 99;
  EXPECT_THROW(loader.release(wrong), InvalidArgument);
}

TEST(Loader, ThrowsAWorkersExceptionAtItsBatchAndFromThenOn) {
  CountingDataset data(100);
  data.delay_us = 20;
  data.bad = {37, 34, 55};
  for (const int64_t threads : {0, 1, 4}) {
    Loader loader(data, batch_source(Sampler(100, {.batch = 10, .shuffle = false}), 10),
                  {.threads = threads, .max_batch = 10});
    for (int64_t b = 0; b < 3; ++b) {
      const std::optional<Batch> batch = loader.next();
      ASSERT_TRUE(batch.has_value());
      EXPECT_EQ(batch->pixels[0], 10 * b);
      loader.release(*batch);
    }
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        loader.next();
        FAIL() << "nothing thrown";
      } catch (const DataError& error) {
        EXPECT_STREQ(error.what(), "image 34 is bad");  // the first of the batch, whoever read it
      }
    }
  }
}

TEST(Loader, NamesTheFirstBadImageOfABatchThatManyWorkersShare) {
  CountingDataset data(64, {3, 256, 256});  // one image a task
  data.delay_us = 100;
  data.bad = {3, 4, 5, 6, 7, 40};
  for (int round = 0; round < 10; ++round) {
    Loader loader(data, batch_source(Sampler(64, {.batch = 64, .shuffle = false}), 1),
                  {.threads = 4, .slots = 1, .max_batch = 64});
    try {
      loader.next();
      FAIL() << "nothing thrown";
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(), "image 3 is bad");
    }
  }
}

TEST(Loader, PassesOnWhatItsSourceThrowsAfterTheBatchesBefore) {
  CountingDataset data(100);
  for (const int64_t threads : {0, 3}) {
    for (const bool hold : {false, true}) {
      int64_t calls = 0;
      const BatchSource source = [&]() -> std::optional<MicroBatch> {
        if (calls++ == 2) throw std::runtime_error("no more plans");
        return MicroBatch{.indices = {calls}, .state_after_window = {}};
      };
      Loader loader(data, source, {.threads = threads, .slots = 2});
      const Batch first = *loader.next();
      if (!hold) loader.release(first);
      const Batch second = *loader.next();
      if (hold) {
        EXPECT_THROW(loader.next(), InvalidArgument);
        loader.release(first);
      }
      EXPECT_THROW(loader.next(), std::runtime_error);
      loader.release(second);
    }
  }
}

TEST(Loader, RefusesPlansThatDoNotFit) {
  CountingDataset data(10);
  for (const std::vector<int64_t>& indices :
       {std::vector<int64_t>{10}, {-1}, {}, {0, 1, 2, 3, 4}}) {
    for (const int64_t threads : {0, 2}) {
      const BatchSource source = [&] {
        return MicroBatch{.indices = indices, .state_after_window = {}};
      };
      Loader loader(data, source, {.threads = threads, .max_batch = 4});
      EXPECT_THROW(loader.next(), InvalidArgument);
    }
  }
}

TEST(Loader, RefusesOptionsOutOfRange) {
  CountingDataset data(10);
  const BatchSource source = [] { return std::nullopt; };
  EXPECT_THROW(Loader(data, source, {.threads = -1}), InvalidArgument);
  EXPECT_THROW(Loader(data, source, {.slots = 0}), InvalidArgument);
  EXPECT_THROW(Loader(data, source, {.max_batch = 0}), InvalidArgument);
  EXPECT_THROW(Loader(data, source, {.max_batch = int64_t{1} << 60}), InvalidArgument);
}

TEST(Loader, UsesTheBuffersOfItsCallerAndGivesThemBack) {
  CountingDataset data(10);
  int64_t live = 0, made = 0, bytes_asked = 0;
  const HostBufferFactory factory = [&](int64_t bytes) {
    ++made;
    ++live;
    bytes_asked = bytes;
    return HostBuffer(new std::byte[static_cast<size_t>(bytes)], [&live](std::byte* memory) {
      delete[] memory;
      --live;
    });
  };
  {
    Loader loader(data, batch_source(Sampler(10, {.batch = 4}), 100),
                  {.threads = 2, .slots = 5, .max_batch = 4, .make_buffer = factory});
    loader.next();
    EXPECT_EQ(made, 5);
    EXPECT_EQ(bytes_asked, loader.slot_bytes());
    EXPECT_GE(loader.slot_bytes(), 4 * (16 + 8 + 8));
  }
  EXPECT_EQ(live, 0);
}

TEST(Loader, FreesBuffersWhenTheFactoryThrows) {
  CountingDataset data(10);
  int64_t live = 0, made = 0;
  const HostBufferFactory factory = [&](int64_t bytes) {
    if (made++ == 2) throw std::runtime_error("no page-locked memory left");
    ++live;
    return HostBuffer(new std::byte[static_cast<size_t>(bytes)], [&live](std::byte* memory) {
      delete[] memory;
      --live;
    });
  };
  EXPECT_THROW(Loader(data, batch_source(Sampler(10, {}), 1), {.make_buffer = factory}),
               std::runtime_error);
  EXPECT_EQ(live, 0);
}

TEST(Loader, CanBeDestroyedAtAnyMoment) {
  CountingDataset data(64);
  for (uint64_t round = 0; round < 300; ++round) {
    const PhiloxWords random = philox(round, 0, 0);
    data.delay_us = random.word[0] % 3 * 10;
    data.bad = random.word[1] % 4 == 0 ? std::set<int64_t>{17} : std::set<int64_t>{};
    const auto threads = static_cast<int64_t>(random.word[2] % 5);
    const auto slots = static_cast<int64_t>(1 + random.word[3] % 4);
    auto loader =
        std::make_unique<Loader>(data, batch_source(Sampler(64, {.batch = 5, .seed = round}), 20),
                                 LoaderOptions{.threads = threads, .slots = slots, .max_batch = 5});
    const auto taken = static_cast<int64_t>(philox(round, 1, 0).word[0] % 25);
    std::vector<Batch> held;
    try {
      for (int64_t i = 0; i < taken; ++i) {
        if (static_cast<int64_t>(held.size()) == slots) {
          loader->release(held.front());
          held.erase(held.begin());
        }
        const std::optional<Batch> batch = loader->next();
        if (!batch) break;
        held.push_back(*batch);
      }
    } catch (const DataError&) {
    }
    loader.reset();
  }
}

TEST(Loader, CanBeReleasedFromAnotherThread) {
  CountingDataset data(640);
  Loader loader(data, batch_source(Sampler(640, {.batch = 10, .shuffle = false}), 64),
                {.threads = 2, .slots = 8, .max_batch = 10});
  std::mutex mutex;
  std::vector<Batch> done;
  std::atomic<bool> finished{false};
  std::thread releaser([&] {
    for (bool last = false; !last;) {
      last = finished;
      std::vector<Batch> mine;
      {
        const std::lock_guard lock(mutex);
        mine.swap(done);
      }
      for (const Batch& batch : mine) loader.release(batch);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  });
  int64_t batches = 0;
  for (;;) {
    std::optional<Batch> batch;
    try {
      batch = loader.next();
    } catch (const InvalidArgument&) {  // all are waiting for the other thread
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      continue;
    }
    if (!batch) break;
    EXPECT_EQ(batch->pixels[0], static_cast<uint8_t>(10 * batches++));
    const std::lock_guard lock(mutex);
    done.push_back(*batch);
  }
  finished = true;
  releaser.join();
  EXPECT_EQ(batches, 64);
}

}  // namespace
}  // namespace headroom
