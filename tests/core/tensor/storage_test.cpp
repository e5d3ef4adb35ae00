// Storage: bytes, tags and versions.
#include <gtest/gtest.h>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"

namespace headroom {
namespace {

const Device kMeta = Device::meta(DeviceType::cpu);

int64_t bytes_tagged(Device device, Tag tag) {
  return allocator_of(device).stats().current_by_tag[static_cast<size_t>(tag)];
}

TEST(Storage, GivesItsBytesBackWhenTheLastHandleGoes) {
  const int64_t before = memory_allocated(Device::cpu());
  {
    const Tensor x = empty({1000});
    EXPECT_EQ(x.storage()->bytes(), 4000);
    EXPECT_EQ(x.storage()->block_bytes(), 4096);
    const Tensor other = x.detach();
    EXPECT_EQ(memory_allocated(Device::cpu()), before + 4096);
  }
  EXPECT_EQ(memory_allocated(Device::cpu()), before);
}

TEST(Storage, AnEmptyTensorHasAnAddressAndABlock) {
  const Tensor x = empty({0, 3});
  EXPECT_EQ(x.storage()->bytes(), 0);
  EXPECT_EQ(x.storage()->block_bytes(), 512);
  EXPECT_NE(x.view().data, nullptr);
}

TEST(Storage, CarriesTheTagAndPathItWasMadeUnder) {
  const TagScope tag(Tag::input);
  const PathScope path("net.stem");
  const Tensor x = empty({4});
  EXPECT_EQ(x.storage()->tag(), Tag::input);
  EXPECT_EQ(path_name(x.storage()->path()), "net.stem");
}

TEST(Storage, ATemporaryIsASavedActivationWhileItIsSaved) {
  Tensor x = empty({256});
  x.storage()->begin_saved();
  x.storage()->begin_saved();
  EXPECT_EQ(x.storage()->tag(), Tag::saved_activation);
  x.storage()->end_saved();
  EXPECT_EQ(x.storage()->tag(), Tag::saved_activation);
  x.storage()->end_saved();
  EXPECT_EQ(x.storage()->tag(), Tag::temporary);
}

TEST(Storage, OtherTagsStayWhileTheyAreSaved) {
  Tensor x = empty({256});
  x.storage()->set_tag(Tag::parameter);
  x.storage()->begin_saved();
  EXPECT_EQ(x.storage()->tag(), Tag::parameter);
  x.storage()->end_saved();
  EXPECT_EQ(x.storage()->tag(), Tag::parameter);
}

TEST(Storage, BytesMoveBetweenTagsAndTheirSumStays) {
  const int64_t temporary = bytes_tagged(kMeta, Tag::temporary);
  const int64_t gradient = bytes_tagged(kMeta, Tag::gradient);
  const int64_t allocated = memory_allocated(kMeta);
  const Tensor x = empty({1 << 20}, {DType::f32, kMeta});
  x.storage()->set_tag(Tag::gradient);
  EXPECT_EQ(bytes_tagged(kMeta, Tag::temporary), temporary);
  EXPECT_EQ(bytes_tagged(kMeta, Tag::gradient), gradient + (4 << 20));
  EXPECT_EQ(memory_allocated(kMeta), allocated + (4 << 20));
}

TEST(Storage, EveryInPlaceOpRaisesTheVersionByOne) {
  Tensor x = ones({4});
  Tensor b = full({4}, 2);
  int64_t version = x.storage()->version();
  const auto expect_raised = [&](const char* what) {
    EXPECT_EQ(x.storage()->version(), ++version) << what;
  };
  add_(x, b);
  expect_raised("add_");
  mul_(x, 0.5);
  expect_raised("mul_ of a number");
  relu_(x);
  expect_raised("relu_");
  fill_(x, 3);
  expect_raised("fill_");
  copy_(x, b);
  expect_raised("copy_");
  uniform_(x);
  expect_raised("uniform_");
  add(x, b);
  EXPECT_EQ(x.storage()->version(), version) << "an op out of place raised it";
}

TEST(Storage, AViewSharesTheVersionOfItsBase) {
  Tensor x = ones({2, 3});
  Tensor row = slice(x, 0, 1, 2);
  fill_(row, 7);
  EXPECT_EQ(x.storage()->version(), 1);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 1, 1, 7, 7, 7}));
}

TEST(Storage, ASizeBeyondAllMemoryIsOutOfMemoryOnEveryDevice) {
  for (const Device device : {Device::cpu(), kMeta}) {
    EXPECT_THROW(empty({int64_t{1} << 60}, {DType::f64, device}), OutOfMemory);
  }
  EXPECT_THROW(empty({int64_t{1} << 60}, {DType::u8, Device::cpu()}), OutOfMemory);
}

}  // namespace
}  // namespace headroom
