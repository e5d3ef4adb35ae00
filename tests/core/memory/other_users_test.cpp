// The sentence about who else holds a GPU's memory.
#include "core/memory/other_users.h"

#include <gtest/gtest.h>

namespace headroom {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kOwn = 7;

GpuReading gpu_with(const std::vector<GpuProcess>& processes) {
  GpuReading out;
  out.processes = processes;
  return out;
}

TEST(OtherUsers, NamesAtMostThreeAndCountsThemAll) {
  EXPECT_EQ(other_users_text(gpu_with({{11, "python3", false, 60 * kGiB},
                                       {12, "X", true, 2 * kGiB},
                                       {kOwn, "train", false, 4 * kGiB},
                                       {13, "", false, kGiB},
                                       {14, "small", false, kGiB},
                                       {15, "smaller", false, kGiB}}),
                             kOwn),
            "others hold 65.00 GiB: python3 11 60.00 GiB, X 12 2.00 GiB, 13 1.00 GiB, 2 more");
}

TEST(OtherUsers, AreNoneWhereThisProcessIsAlone) {
  EXPECT_EQ(other_users_text(gpu_with({{kOwn, "train", false, kGiB}}), kOwn),
            "no other process is on it");
}

TEST(OtherUsers, SayWhatTheDriverDoesNotGive) {
  EXPECT_EQ(other_users_text(gpu_with({{kOwn, "train", false, kGiB},
                                       {11, "a", false, kGiB},
                                       {12, "b", false, std::nullopt}}),
                             kOwn),
            "others hold at least 1.00 GiB: a 11 1.00 GiB, b 12 of unknown bytes");
  EXPECT_EQ(
      other_users_text(
          gpu_with({{kOwn, "train", false, std::nullopt}, {12, "b", false, std::nullopt}}), kOwn),
      "others hold what the driver does not give: b 12 of unknown bytes");
}

TEST(OtherUsers, AreNotToldFromThisProcessWhereTheDriverDoesNotListIt) {
  EXPECT_EQ(other_users_text(gpu_with({{11, "", false, kGiB}}), kOwn),
            "the driver lists, this process perhaps among them, 11 1.00 GiB");
  EXPECT_EQ(other_users_text(gpu_with({}), kOwn),
            "the driver lists no process on it, as in a container");
}

TEST(OtherUsers, LeaveTheBytesOfOneProcess) {
  const GpuReading gpu = gpu_with({{kOwn, "train", false, kGiB}, {12, "b", false, std::nullopt}});
  EXPECT_EQ(bytes_of_process(gpu, kOwn), kGiB);
  EXPECT_EQ(bytes_of_process(gpu, 12), std::nullopt);
  EXPECT_EQ(bytes_of_process(gpu, 13), std::nullopt);
}

}  // namespace
}  // namespace headroom
