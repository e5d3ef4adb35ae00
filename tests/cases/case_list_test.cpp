// Every case O01 to O66 has a test that carries its number.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace headroom {
namespace {

constexpr int kCases = 66;

TEST(CaseList, EveryCaseHasATest) {
  std::set<std::string> found;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const std::string name = suite.GetTestInfo(t)->name();
      if (name.size() > 4 && name[0] == 'O' && name[3] == '_') found.insert(name.substr(0, 3));
    }
  }
  for (int i = 1; i <= kCases; ++i) {
    const std::string id = fmt::format("O{:02}", i);
    EXPECT_EQ(found.count(id), 1u) << id;
  }
}

}  // namespace
}  // namespace headroom
