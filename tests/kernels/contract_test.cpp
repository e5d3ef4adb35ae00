// Every slot of the contract has a kernel on every device of this machine.
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class Contract : public KernelTest {};
HEADROOM_ON_EACH_DEVICE(Contract);

TEST_P(Contract, EverySlotHasAKernel) {
  EXPECT_GT(all_slots().size(), 30u);
  for (const SlotBase* slot : all_slots()) {
    EXPECT_TRUE(slot->has(GetParam())) << slot->name() << " on " << device();
  }
}

TEST_P(Contract, OperandsOfTwoDevicesAreRefused) {
  const Tensor here = uninitialised({3});
  const Tensor elsewhere = empty({3}, {DType::f32, Device::meta(GetParam())});
  EXPECT_THROW(slots::copy(here, elsewhere), InvalidArgument);
}

}  // namespace
}  // namespace headroom
