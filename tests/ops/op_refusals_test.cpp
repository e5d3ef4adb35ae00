// What ops refuse: an InvalidArgument whose message begins with the op's name.
#include <gtest/gtest.h>

#include "tests/ops/refusals.h"

namespace headroom::testing_ops {

namespace {

// A refusal by its place in its list: the lists hold tensors, which must not outlive a test.
struct RefusalRef {
  std::string name;
  std::vector<Refusal> (*list)();
  size_t index;
};
std::ostream& operator<<(std::ostream& out, const RefusalRef& ref) { return out << ref.name; }

std::vector<RefusalRef> refs(std::vector<Refusal> (*list)()) {
  std::vector<RefusalRef> out;
  for (const Refusal& refusal : list()) out.push_back({refusal.name, list, out.size()});
  return out;
}

class OpRefusal : public testing::TestWithParam<RefusalRef> {};

TEST_P(OpRefusal, IsAnInvalidArgumentThatNamesTheOp) {
  const Refusal refusal = GetParam().list()[GetParam().index];
  try {
    refusal.call();
    FAIL() << "nothing was refused";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.substr(0, message.find(':')), refusal.op) << message;
    EXPECT_NE(message.find(refusal.mentions), std::string::npos) << message;
  }
}

std::string refusal_name(const testing::TestParamInfo<RefusalRef>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Shapes, OpRefusal, testing::ValuesIn(refs(shape_refusals)), refusal_name);
INSTANTIATE_TEST_SUITE_P(Values, OpRefusal, testing::ValuesIn(refs(value_refusals)), refusal_name);
INSTANTIATE_TEST_SUITE_P(DTypes, OpRefusal, testing::ValuesIn(refs(dtype_refusals)), refusal_name);
INSTANTIATE_TEST_SUITE_P(Devices, OpRefusal, testing::ValuesIn(refs(device_refusals)),
                         refusal_name);

TEST(OpRefusal, LeavesARefusedTensorAsItWas) {
  Tensor x = leaf({2});
  const int64_t version = x.storage()->version();
  EXPECT_THROW(fill_(x, 5), InvalidArgument);
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{1, 1}));
  EXPECT_EQ(x.storage()->version(), version);
  EXPECT_TRUE(x.is_leaf());
}

}  // namespace
}  // namespace headroom::testing_ops
