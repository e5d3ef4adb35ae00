// Expandable segments in training: a workload that fragments segments until they fail, and runs of
// the trainer, on every device, with the same numbers on a device and on the meta device that
// stands for it.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "nn/models/models.h"
#include "optim/optimizer.h"
#include "tests/train/program_run.h"
#include "tests/train/trainer_run.h"

namespace headroom::test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// A device's allocator with an empty cache, put back into the state that other tests expect. The
// limit, 0 for none, does not count what others hold.
class FreshAllocator {
 public:
  FreshAllocator(Device device, bool expandable, int64_t limit_bytes)
      : allocator_(allocator_of(device)) {
    allocator_.empty_cache();
    allocator_.set_expandable_segments(expandable);
    if (limit_bytes > 0) allocator_.set_memory_limit(allocator_.reserved_bytes() + limit_bytes);
    allocator_.reset_peak_stats();
    allocator_.reset_accumulated_stats();
  }
  ~FreshAllocator() {
    allocator_.empty_cache();
    allocator_.set_expandable_segments(false);
    allocator_.set_memory_limit(0);
  }
  FreshAllocator(const FreshAllocator&) = delete;
  FreshAllocator& operator=(const FreshAllocator&) = delete;

  const CachingAllocator& operator*() const { return allocator_; }

 private:
  CachingAllocator& allocator_;
};

constexpr int64_t kLastBatch = 320;

// As users meet it: each step is a little larger than the one before. The largest batch that was
// done; the message is that of the first that was not.
int64_t train_on_growing_batches(Device device, std::string* message = nullptr) {
  const TensorOptions options{DType::f32, device, MemoryFormat::channels_last};
  const auto model =
      make_model("lenet", {.classes = 10, .channels = 1, .image_size = 28, .tensor = options});
  Sgd optimizer(decay_groups(model->parameters(), 0), {.lr = 0.01, .momentum = 0.9});
  int64_t done = 0;
  try {
    for (int64_t batch = 64; batch <= kLastBatch; batch += 32) {
      const Tensor images = full({batch, 1, 28, 28}, 0.5, options);
      backward(cross_entropy((*model)(images), zeros({batch}, {DType::i64, device})));
      optimizer.step();
      optimizer.zero_grad();
      done = batch;
    }
  } catch (const OutOfMemory& error) {
    if (message) *message = error.what();
  }
  return done;
}

class GrowingBatches : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (!has_runtime(GetParam())) GTEST_SKIP() << "no " << GetParam() << " on this machine";
    if (runtime_of(GetParam()).page_granularity() == 0) {
      GTEST_SKIP() << GetParam() << " has no virtual memory";
    }
  }
};

TEST_P(GrowingBatches, FragmentSegmentsUntilTheyFailWhereExpandableOnesRunThrough) {
  constexpr int64_t kLimit = 128 * kMiB;
  std::string message;
  {
    const FreshAllocator plain(GetParam(), false, kLimit);
    EXPECT_LT(train_on_growing_batches(GetParam(), &message), kLastBatch);
  }
  EXPECT_NE(message.find("set_expandable_segments(true)"), std::string::npos) << message;
  {
    const FreshAllocator expandable(GetParam(), true, kLimit);
    EXPECT_EQ(train_on_growing_batches(GetParam(), &message), kLastBatch) << message;
    EXPECT_LE((*expandable).max_reserved_bytes(), (*expandable).memory_limit());
    EXPECT_EQ((*expandable).stats().out_of_memory, 0);
  }
}

TEST_P(GrowingBatches, ReserveLittleMoreThanTheyAllocateInExpandableSegments) {
  int64_t reserved[2] = {};
  for (const bool is_expandable : {false, true}) {
    const FreshAllocator allocator(GetParam(), is_expandable, 0);
    ASSERT_EQ(train_on_growing_batches(GetParam()), kLastBatch);
    reserved[is_expandable] = (*allocator).max_reserved_bytes();
    if (!is_expandable) continue;
    // Less than one page of each pool, and what is free on pages that are in use.
    EXPECT_LT((*allocator).max_reserved_bytes(), (*allocator).max_allocated_bytes() * 3 / 2);
  }
  EXPECT_LT(reserved[1] * 2, reserved[0]);
}

INSTANTIATE_TEST_SUITE_P(Devices, GrowingBatches,
                         testing::Values(Device::cpu(), Device::meta(DeviceType::cpu),
                                         Device::meta(DeviceType::cuda), Device::cuda()),
                         [](const auto& info) {
                           std::string name = name_of(info.param);
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

void expect_equal(const Stat& a, const Stat& b) {
  EXPECT_EQ(a.current, b.current);
  EXPECT_EQ(a.peak, b.peak);
  EXPECT_EQ(a.total_allocated, b.total_allocated);
  EXPECT_EQ(a.total_freed, b.total_freed);
}

// Every number of both pools, under a limit too, where pages come and go.
TEST(ExpandableSegmentsOnMeta, HaveTheStatisticsOfTheDevice) {
  for (const Device device : {Device::cpu(), Device::cuda()}) {
    if (!has_runtime(device) || runtime_of(device).page_granularity() == 0) continue;
    for (const int64_t limit : {int64_t{0}, 126 * kMiB, 100 * kMiB}) {
      MemoryStats stats[2];
      for (const bool meta : {false, true}) {
        const Device where = meta ? Device::meta(device.type) : device;
        const FreshAllocator allocator(where, true, limit);
        if ((*allocator).allocated_bytes() > 0) GTEST_SKIP() << "others hold blocks on " << where;
        train_on_growing_batches(where);
        stats[meta] = (*allocator).stats();
      }
      SCOPED_TRACE(testing::Message() << device << " limit " << limit);
      for (const Pool pool : {Pool::all, Pool::small, Pool::large}) {
        for (const auto member : kPoolStatMembers) {
          expect_equal(stats[0][pool].*member, stats[1][pool].*member);
        }
      }
      EXPECT_EQ(stats[0].retries, stats[1].retries);
      EXPECT_EQ(stats[0].out_of_memory, stats[1].out_of_memory);
      EXPECT_EQ(stats[0].peak_by_tag, stats[1].peak_by_tag);
    }
  }
}

TEST(ExpandableSegmentsOfTheTrainer, ChangeWhereMemoryLiesAndNothingElse) {
  std::vector<double> weights[2];
  Recorder recorded[2];
  for (const bool expandable : {false, true}) {
    TrainConfig config = small_config("resnet18", "random:3x16x16:4:40");
    config.epochs = 1;
    config.expandable_segments = expandable;
    allocator_of(Device::cpu()).empty_cache();  // segments of the run before would go on serving
    Trainer trainer(config);
    EXPECT_EQ(allocator_of(trainer.device()).expandable_segments(), expandable);
    trainer.run(recorded[expandable]);
    weights[expandable] = weights_of(trainer);
    const std::vector<SegmentInfo> segments = allocator_of(trainer.device()).snapshot();
    EXPECT_EQ(std::any_of(segments.begin(), segments.end(),
                          [](const SegmentInfo& segment) { return segment.expandable; }),
              expandable);
  }
  EXPECT_EQ(recorded[0].losses, recorded[1].losses);
  EXPECT_EQ(weights[0], weights[1]);
  allocator_of(Device::cpu()).set_expandable_segments(false);
  allocator_of(Device::cpu()).empty_cache();
}

TEST(ExpandableSegmentsOfTheProgram, AreInItsReportAndPredictedForTheCpu) {
  const std::string flags =
      "--model resnet18 --data random:3x16x16:4:64 --batch 16 --steps 3 "
      "--expandable-segments ";
  const Json on_cpu = train_json(flags + "--device cpu");
  const Json on_meta = train_json(flags + "--device meta:cpu");
  for (const Json* run : {&on_cpu, &on_meta}) {
    EXPECT_EQ((*run)["config"]["expandable_segments"], true);
  }
  EXPECT_EQ(on_cpu["peak_allocated"], on_meta["peak_allocated"]);
  EXPECT_EQ(on_cpu["peak_reserved"], on_meta["peak_reserved"]);
  const Json plain = train_json("--model lenet " + tiny_run("--device meta:cpu"));
  EXPECT_EQ(plain["config"]["expandable_segments"], false);
}

}  // namespace
}  // namespace headroom::test
