// Section H, running out: what a step that does not fit leaves behind, and two programs on one
// device.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/memory/caching_allocator.h"
#include "tests/cases/program_case.h"
#include "tests/cases/small_net.h"

namespace headroom::cases {
namespace {

using test::Json;
using test::Process;
using test::ProcessResult;

constexpr int64_t kMiB = int64_t{1} << 20;

class OutOfMemoryCase : public ProgramCase {
 protected:
  void TearDown() override {
    if (has_runtime(device())) {
      allocator_of(device()).set_memory_limit(0);
      allocator_of(device()).set_failure_hook({});
    }
    ProgramCase::TearDown();
  }
};
HEADROOM_CASES(OutOfMemoryCase);

// What an OutOfMemory says, checked against the allocator.
void expect_facts(const OutOfMemory& error) {
  const OutOfMemory::Facts& facts = error.facts();
  EXPECT_GT(facts.requested_bytes, 0);
  EXPECT_GT(facts.allocated_bytes, 0);
  EXPECT_GE(facts.reserved_bytes, facts.allocated_bytes);
  EXPECT_GT(facts.device_free_bytes, 0);
  for (const char* part : {"allocated", "reserved", "free"}) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  for (const int64_t bytes : {facts.requested_bytes, facts.allocated_bytes, facts.reserved_bytes,
                              facts.device_free_bytes}) {
    EXPECT_NE(std::string(error.what()).find(format_bytes(bytes)), std::string::npos)
        << format_bytes(bytes) << " in " << error.what();
  }
}

// Tries a batch 1000 times too large, whose images fit and whose activations do not; the exception
// is still alive when the bytes are compared.
void try_a_batch_too_large(SmallNet& net) {
  CachingAllocator& allocator = allocator_of(net.device);
  const int64_t before = allocator.allocated_bytes();
  allocator.empty_cache();  // so that the images leave no room in a larger segment
  {
    const Tensor images = net.images_of(4000), labels = net.labels_of(4000);
    allocator.empty_cache();
    allocator.set_memory_limit(allocator.reserved_bytes() + 2 * kMiB);
    const int64_t with_images = allocator.allocated_bytes();
    try {
      net.step(images, labels);
      ADD_FAILURE() << "it did fit";
    } catch (const OutOfMemory& error) {
      expect_facts(error);
      EXPECT_EQ(allocator.allocated_bytes(), with_images);
    }
    allocator.set_memory_limit(0);
  }
  EXPECT_EQ(allocator.allocated_bytes(), before);
}

TEST_P(OutOfMemoryCase, O42_OutOfMemoryInForwardIsSurvivable) {
  settings().deterministic = true;
  const auto losses = [this](int tries) {
    SmallNet net(device());
    std::vector<double> out;
    for (int i = 0; i < 3; ++i) net.step();
    for (int i = 0; i < tries; ++i) try_a_batch_too_large(net);
    for (int i = 0; i < 10; ++i) out.push_back(net.step());
    return out;
  };
  const std::vector<double> wanted = losses(0);
  EXPECT_NE(wanted.front(), wanted.back()) << "nothing is learnt, so nothing is compared";
  EXPECT_EQ(losses(1), wanted);
  EXPECT_EQ(losses(3), wanted);
}

TEST(OutOfMemoryOnMeta, O42_OutOfMemoryInForwardIsSurvivable) {
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda}) {
    SmallNet net(Device::meta(type));
    net.step();
    try_a_batch_too_large(net);
    net.step();
  }
}

// An op that fails has not happened: no random number was drawn, no statistics moved.
TEST_P(OutOfMemoryCase, O42_OpsThatFailLeaveTheirStateAlone) {
  const Tensor x = tensor(Values(64, 1.5), {4, 4, 2, 2}).set_requires_grad(true);
  BatchNorm2d norm({.channels = 4}, {DType::f32, device()});
  const auto state = [&] {
    Values out = {static_cast<double>(default_generator().state().offset),
                  static_cast<double>(norm.batches_tracked())};
    for (const NamedTensor& buffer : norm.named_buffers()) {
      for (const double v : values_of(buffer.tensor)) out.push_back(v);
    }
    return out;
  };
  const std::vector<std::function<Tensor()>> ops = {[&] { return dropout(x, {.p = 0.5}); },
                                                    [&] { return norm(x); }};
  for (const auto& op : ops) {
    const Values before = state();
    int64_t failures = 0;
    for (bool failed = true; failed; failures += failed) {
      allocator_of(device()).set_failure_hook(
          [at = failures + 1](int64_t request, int64_t) { return request == at; });
      failed = false;
      try {
        op();
      } catch (const OutOfMemory&) {
        failed = true;
        EXPECT_EQ(state(), before) << "request " << failures + 1;
      }
      allocator_of(device()).set_failure_hook({});
    }
    EXPECT_GT(failures, 0);
    EXPECT_NE(state(), before) << "the op that went through has no state";
  }
}

TEST_P(OutOfMemoryCase, O42_TheProgramSaysWhatItAskedForAndWhatThereWas) {
  const ProcessResult result = test::train(flags(
      "--data random:1x28x28:10:16000 --batch 16000 --steps 1 --no-eval --memory-limit 150MiB"));
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_EQ(result.out, "");
  for (const char* part : {"train: error: ", "allocated", "reserved", "free", "MiB"}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << "\n" << result.err;
  }
}

TEST_P(OutOfMemoryCase, O44_TwoTrainingProcessesOnOneGpu) {
  const std::string run =
      flags("--data random:1x28x28:10:256 --batch 32 --epochs 2 --optimizer adam --json");
  const Json alone = test::train_json(run);
  Process first(test::train_command(run)), second(test::train_command(run));
  for (Process* process : {&first, &second}) {
    const ProcessResult result = process->wait();
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json json = Json::parse(result.out);
    for (const char* key : {"steps", "train_loss", "test_loss", "test_accuracy", "peak_allocated",
                            "peak_reserved", "workspace_fallbacks"}) {
      EXPECT_EQ(json[key], alone[key]) << key;
    }
  }
  // What is reserved follows what is asked for: whole segments, far from the whole device.
  EXPECT_LT(alone["peak_reserved"].get<int64_t>(),
            2 * alone["peak_allocated"].get<int64_t>() + 64 * kMiB);
}

}  // namespace
}  // namespace headroom::cases
