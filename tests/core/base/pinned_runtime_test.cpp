// The host memory of a device as a runtime of its own.
#include <gtest/gtest.h>

#include <string>

#include "core/base/host_runtime.h"
#include "tests/core/memory/counting_runtime.h"

namespace headroom {
namespace {

// Writes down the order of the calls that matter here.
class Noting : public testing::CountingRuntime {
 public:
  Noting() : CountingRuntime(testing::kGiB) {}
  void* host_acquire(int64_t bytes) override {
    noted += "ask ";
    if (bytes > testing::kMiB) throw OutOfMemory("pinned host memory", {});
    return &byte_;
  }
  void host_release(void* memory) noexcept override {
    noted += memory == &byte_ ? "release " : "wrong ";
  }
  void synchronize() override {
    noted += "wait ";
    if (is_broken) throw DeviceError("broken");
  }

  std::string noted;
  bool is_broken = false;

 private:
  char byte_ = 0;
};

TEST(PinnedRuntime, TakesMemoryFromTheDevicesHostSideAndNoneWhereThatIsOut) {
  Noting device;
  const auto pinned = make_pinned_runtime(device);
  EXPECT_NE(pinned->acquire(testing::kMiB), nullptr);
  EXPECT_EQ(pinned->acquire(2 * testing::kMiB), nullptr);
  EXPECT_EQ(pinned->page_granularity(), 0) << "no pages of its own to map";
  EXPECT_TRUE(device.calls.empty()) << "the device's own memory was asked";
}

TEST(PinnedRuntime, NeverAsksForMoreThanTheHostHas) {
  Noting device;
  const auto pinned = make_pinned_runtime(device);
  const MemoryInfo info = pinned->memory_info();
  EXPECT_GT(info.free_bytes, 0);
  EXPECT_LE(info.free_bytes, info.total_bytes);
  EXPECT_EQ(pinned->acquire(info.total_bytes + 1), nullptr);
  EXPECT_EQ(device.noted, "") << "pinning would end processes before it fails";
}

TEST(PinnedRuntime, WaitsForTheDeviceBeforeItGivesMemoryBackAlsoIfThatFails) {
  Noting device;
  const auto pinned = make_pinned_runtime(device);
  void* memory = pinned->acquire(512);
  pinned->release(memory, 512);
  EXPECT_EQ(device.noted, "ask wait release ");
  device.is_broken = true;
  pinned->release(memory, 512);
  EXPECT_EQ(device.noted, "ask wait release wait release ");
}

}  // namespace
}  // namespace headroom
