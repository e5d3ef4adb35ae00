// What ops refuse: an InvalidArgument whose message begins with the op's name.
#include <gtest/gtest.h>

#include "tests/ops/refusals.h"

namespace headroom::testing_ops {

// How a refusal prints in a failure.
std::ostream& operator<<(std::ostream& out, const Refusal& refusal) { return out << refusal.name; }

namespace {

class OpRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(OpRefusal, IsAnInvalidArgumentThatNamesTheOp) {
  const Refusal& refusal = GetParam();
  try {
    refusal.call();
    FAIL() << "nothing was refused";
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.substr(0, message.find(':')), refusal.op) << message;
    EXPECT_NE(message.find(refusal.mentions), std::string::npos) << message;
  }
}

std::string refusal_name(const testing::TestParamInfo<Refusal>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Shapes, OpRefusal, testing::ValuesIn(shape_refusals()), refusal_name);
INSTANTIATE_TEST_SUITE_P(Values, OpRefusal, testing::ValuesIn(value_refusals()), refusal_name);
INSTANTIATE_TEST_SUITE_P(DTypes, OpRefusal, testing::ValuesIn(dtype_refusals()), refusal_name);
INSTANTIATE_TEST_SUITE_P(Devices, OpRefusal, testing::ValuesIn(device_refusals()), refusal_name);

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
