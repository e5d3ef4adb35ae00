// The ranges that a listener is told of.
#include "core/base/ranges.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/memory/scopes.h"
#include "core/ops/ops.h"

namespace headroom {
namespace {

// "phase forward(", "op conv2d(", ")"
class Listener : public RangeListener {
 public:
  Listener() : before_(set_range_listener(this)) {}
  ~Listener() override { set_range_listener(before_); }
  void begin_range(RangeKind kind, const char* name, int64_t number) noexcept override {
    text += std::string(name_of(kind)) + " " + name + (number ? std::to_string(number) : "") + "(";
  }
  void end_range() noexcept override { text += ")"; }
  std::string text;

 private:
  RangeListener* before_;
};

TEST(Ranges, OfScopesNestAsTheScopesDo) {
  Listener heard;
  {
    const RangeScope step(RangeKind::step, "step", 7);
    const PhaseScope phase(Phase::forward);
    const PathScope block("blocks");
    const PathScope conv("conv");
    const OpScope op("conv2d");
  }
  EXPECT_EQ(heard.text,
            "step step7(phase forward(module blocks(module blocks.conv(op conv2d()))))");
}

TEST(Ranges, AreNotBegunByAPathThatStaysOrLeavesTheModules) {
  Listener heard;
  {
    const PathScope module("fc");
    const PathId same = memory_context().path;
    const PathScope again(same);
    const PathScope none(PathId{0});
  }
  EXPECT_EQ(heard.text, "module fc()");
}

TEST(Ranges, HoldTheKernelsOfAnOpAndOnMetaNone) {
  for (const Device device : {Device::cpu(), Device::meta(DeviceType::cpu)}) {
    const Tensor x = ones({4}, {DType::f32, device});
    Listener heard;
    relu(x);
    const bool has_kernel = heard.text.find("kernel ") != std::string::npos;
    EXPECT_EQ(has_kernel, !device.is_meta()) << heard.text;
    EXPECT_EQ(heard.text.find("op relu("), 0u) << heard.text;
  }
}

TEST(Ranges, EndWhenAnExceptionPasses) {
  Listener heard;
  try {
    const PhaseScope phase(Phase::backward);
    const OpScope op("relu");
    throw InvalidArgument("stop");
  } catch (const InvalidArgument&) {
  }
  EXPECT_EQ(heard.text, "phase backward(op relu())");
}

TEST(Ranges, BegunBeforeTheListenerCameAreNotEndedForIt) {
  const OpScope outer("outer");
  std::string text;
  {
    const PhaseScope phase(Phase::forward);
    Listener heard;
    { const OpScope inner("inner"); }
    text = heard.text;
  }
  EXPECT_EQ(text, "op inner()");
}

TEST(Ranges, OfAnotherThreadAreItsOwn) {
  Listener heard;
  std::thread([] { const OpScope op("elsewhere"); }).join();
  EXPECT_EQ(heard.text, "");
}

}  // namespace
}  // namespace headroom
