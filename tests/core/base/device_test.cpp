// Device names and the table of runtimes.
#include "core/base/device.h"

#include <gtest/gtest.h>

#include <set>

namespace headroom {
namespace {

const Device kAll[] = {Device::cpu(), Device::cuda(), Device::meta(DeviceType::cpu),
                       Device::meta(DeviceType::cuda)};

TEST(Device, NamesAreReadBack) {
  std::set<int> slots;
  for (const Device device : kAll) {
    EXPECT_EQ(parse_device(name_of(device)), device);
    slots.insert(device.slot());
  }
  EXPECT_EQ(slots, (std::set<int>{0, 1, 2, 3}));
}

TEST(Device, RefusesOtherNamesAndListsWhatIsAllowed) {
  for (const char* text : {"", "gpu", "CPU", "cuda:0", "meta", "meta:meta", " cpu"}) {
    try {
      parse_device(text);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const InvalidArgument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("meta:cuda"), std::string::npos) << message;
      EXPECT_NE(message.find("'" + std::string(text) + "'"), std::string::npos) << message;
    }
  }
}

TEST(Device, MetaStandsForADeviceAndIsNotIt) {
  const Device meta = Device::meta(DeviceType::cuda);
  EXPECT_TRUE(meta.is_meta());
  EXPECT_FALSE(meta.is_cuda());
  EXPECT_FALSE(meta == Device::cuda());
  EXPECT_FALSE(meta == Device::meta(DeviceType::cpu));
  EXPECT_EQ(meta.stands_for, DeviceType::cuda);
}

TEST(Device, CpuAndMetaAreAlwaysThere) {
  EXPECT_TRUE(has_runtime(Device::cpu()));
  EXPECT_TRUE(has_runtime(Device::meta(DeviceType::cpu)));
  EXPECT_TRUE(has_runtime(Device::meta(DeviceType::cuda)));
}

TEST(Device, OneThatIsMissingIsNamed) {
  if (has_runtime(Device::cuda())) GTEST_SKIP() << "this machine has a GPU";
  try {
    runtime_of(Device::cuda());
    FAIL() << "not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("device cuda: not available"), std::string::npos);
  }
}

}  // namespace
}  // namespace headroom
