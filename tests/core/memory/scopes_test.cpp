// The context that allocations are charged to.
#include "core/memory/scopes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "core/base/error.h"

namespace headroom {
namespace {

TEST(MemoryScopes, NestAndRestoreWhatTheyFound) {
  EXPECT_EQ(memory_context().tag, Tag::temporary);
  EXPECT_EQ(memory_context().path, 0);
  EXPECT_STREQ(memory_context().op, "");
  EXPECT_EQ(memory_context().phase, Phase::none);
  {
    const TagScope tag(Tag::parameter);
    const PathScope blocks("blocks.0");
    const PhaseScope phase(Phase::forward);
    const OpScope op("conv2d");
    {
      const TagScope inner_tag(Tag::workspace);
      const PathScope conv("convs.1");
      const PhaseScope inner_phase(Phase::backward);
      const OpScope inner_op("relu");
      EXPECT_EQ(memory_context().tag, Tag::workspace);
      EXPECT_EQ(path_name(memory_context().path), "blocks.0.convs.1");
      EXPECT_EQ(memory_context().phase, Phase::backward);
      EXPECT_STREQ(memory_context().op, "relu");
    }
    EXPECT_EQ(memory_context().tag, Tag::parameter);
    EXPECT_EQ(path_name(memory_context().path), "blocks.0");
    EXPECT_EQ(memory_context().phase, Phase::forward);
    EXPECT_STREQ(memory_context().op, "conv2d");
  }
  EXPECT_EQ(memory_context().tag, Tag::temporary);
  EXPECT_EQ(memory_context().path, 0);
  EXPECT_STREQ(memory_context().op, "");
  EXPECT_EQ(memory_context().phase, Phase::none);
}

TEST(MemoryScopes, RestoreWhenAnExceptionPasses) {
  try {
    const PathScope path("broken");
    const TagScope tag(Tag::input);
    throw InvalidArgument("stop");
  } catch (const InvalidArgument&) {
  }
  EXPECT_EQ(memory_context().path, 0);
  EXPECT_EQ(memory_context().tag, Tag::temporary);
}

TEST(ModulePaths, HaveOneIdHoweverTheyWereJoined) {
  PathId joined = 0;
  {
    const PathScope a("stage");
    const PathScope b("0");
    const PathScope c("conv");
    joined = memory_context().path;
  }
  EXPECT_EQ(joined, intern_path("stage.0.conv"));
  const PathScope a("stage.0");
  const PathScope b("conv");
  EXPECT_EQ(memory_context().path, joined);
}

TEST(ModulePaths, CanBeSetWholeAsBackwardDoes) {
  const PathId forward = intern_path("features.3");
  const PathScope outer("loss");
  {
    const PathScope back(forward);
    EXPECT_EQ(path_name(memory_context().path), "features.3");
    const PathScope root(PathId{0});
    EXPECT_EQ(path_name(memory_context().path), "");
  }
  EXPECT_EQ(path_name(memory_context().path), "loss");
}

TEST(ModulePaths, StayAsTheyAreForAnEmptyName) {
  const PathScope outer("head");
  const PathScope inner("");
  EXPECT_EQ(path_name(memory_context().path), "head");
}

TEST(ModulePaths, RefuseAnIdThatWasNeverHandedOut) {
  EXPECT_THROW(path_name(-1), InvalidArgument);
  EXPECT_THROW(path_name(2'000'000'000), InvalidArgument);
  EXPECT_THROW(PathScope(PathId{2'000'000'000}), InvalidArgument);
  EXPECT_EQ(memory_context().path, 0);
}

TEST(ModulePaths, AreTheSameForAllThreads) {
  constexpr int kThreads = 8, kPaths = 200;
  std::vector<std::vector<PathId>> ids(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&ids, t] {
      const PathScope root("threaded");
      for (int i = 0; i < kPaths; ++i) {
        // Each thread meets the names in another order.
        const PathScope leaf(std::to_string((i * 7 + t * 31) % kPaths));
        ids[static_cast<size_t>(t)].push_back(memory_context().path);
        EXPECT_EQ(path_name(memory_context().path).rfind("threaded.", 0), 0u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kPaths; ++i) {
      const int name = (i * 7 + t * 31) % kPaths;
      const PathId id = ids[static_cast<size_t>(t)][static_cast<size_t>(i)];
      EXPECT_EQ(path_name(id), "threaded." + std::to_string(name));
      EXPECT_EQ(id, intern_path("threaded." + std::to_string(name)));
    }
  }
  EXPECT_EQ(memory_context().path, 0);
}

TEST(Tags, HaveANameEach) {
  for (int tag = 0; tag < kTagCount; ++tag) {
    EXPECT_GT(std::strlen(name_of(static_cast<Tag>(tag))), 0u);
  }
  EXPECT_STREQ(name_of(Tag::other), "other");
  EXPECT_STREQ(name_of(Phase::search), "search");
}

}  // namespace
}  // namespace headroom
