// The case that asks the memory comparison for its answers.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/base/device.h"
#include "tests/train/compare/compare_run.h"

namespace headroom::test {
namespace {

const std::vector<std::string> kNames = {"base", "amp", "checkpoint", "accum=4"};

std::map<std::string, int64_t> peaks_of(const Json& comparison) {
  std::map<std::string, int64_t> out;
  for (const Json& row : comparison.at("rows")) out[row.at("name")] = row.at("peak_allocated");
  return out;
}

class MemoryComparison : public testing::TestWithParam<Device> {};

// In this order, reversed, each in an invocation of its own: the same peak, and the first row is
// not charged with what is done once.
TEST_P(MemoryComparison, O63_TheMemoryToolsAnswersDoNotDependOnOrder) {
  const Device device = GetParam();
  if (!has_runtime(device)) GTEST_SKIP() << "no " << device << " on this machine";
  const std::string shared = std::string("--device ") + name_of(device) +
                             " --model lenet --data random:1x28x28:10:64 --batch 16 --steps 3" +
                             " --no-eval --threads 2 -- ";
  std::string forwards, backwards;
  for (const std::string& name : kNames) {
    forwards = forwards + name + " ";
    backwards = name + " " + backwards;
  }
  std::vector<std::map<std::string, int64_t>> answers = {
      peaks_of(compare_json(shared + forwards)), peaks_of(compare_json(shared + backwards)), {}};
  for (const std::string& name : kNames) {
    answers[2][name] = peaks_of(compare_json(shared + name)).at(name);
  }
  for (const std::string& name : kNames) {
    const int64_t peak = answers[0].at(name);
    EXPECT_GT(peak, 0) << name;
    for (const auto& answer : answers) {
      // A GPU's heuristics may choose another plan; nothing on the CPU and on meta may differ.
      const int64_t allowed = device.is_cuda() ? peak / 50 : 0;
      EXPECT_NEAR(static_cast<double>(answer.at(name)), static_cast<double>(peak),
                  static_cast<double>(allowed))
          << name;
    }
  }
  // These four are told apart at all. (So small a batch gains nothing from accumulation: gradients
  // that gather outweigh the activations.)
  EXPECT_NE(answers[0].at("base"), answers[0].at("amp"));
  EXPECT_NE(answers[0].at("base"), answers[0].at("accum=4"));
}

INSTANTIATE_TEST_SUITE_P(On, MemoryComparison,
                         testing::Values(Device::cpu(), Device::meta(DeviceType::cuda),
                                         Device::cuda()),
                         [](const testing::TestParamInfo<Device>& info) {
                           std::string name = name_of(info.param);
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

}  // namespace
}  // namespace headroom::test
