// What the program says of --amp.
#include "train/autocast_account.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/ops/ops.h"
#include "core/tensor/tensor.h"
#include "tests/train/program_run.h"

namespace headroom::test {
namespace {

Json account_of(const std::string& flags) {
  const ProcessResult result = train(
      "--device cpu --model resnet18 --data random:3x16x16:4:16 --batch 8 --steps 2 --threads 1 "
      "--no-eval --json " +
      flags);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return Json::parse(result.out, nullptr, false).at("autocast");
}

std::map<std::string, Json> by_op(const Json& account) {
  std::map<std::string, Json> out;
  for (const Json& op : account.at("ops")) out[op.at("op")] = op;
  return out;
}

TEST(AutocastAccount, SaysWhatBecameHalfWhatStayedF32AndWhy) {
  const Json account = account_of("--amp");
  EXPECT_EQ(account.at("dtype"), "f16");
  std::map<std::string, Json> ops = by_op(account);
  EXPECT_EQ(ops["conv2d"],
            Json({{"op", "conv2d"}, {"dtype", "f16"}, {"why", "by the half list"}, {"calls", 20}}));
  EXPECT_EQ(ops["linear"].at("calls"), 1);
  EXPECT_EQ(ops["batch_norm"].at("why"), "as inputs came");
  EXPECT_EQ(ops["batch_norm"].at("dtype"), "f16");
  EXPECT_EQ(ops["cross_entropy"].at("why"), "outside of autocast");
  EXPECT_EQ(ops["cross_entropy"].at("dtype"), "f32");
  // 20 convolutions and the linear layer have weights; the optimizer keeps their halves.
  const Json& casts = account.at("casts");
  EXPECT_EQ(casts.at("kept_weights").at("count"), 21);
  EXPECT_GT(casts.at("kept_weights").at("bytes"), 20 << 20);
  EXPECT_EQ(casts.at("made_weights").at("count"), 0);
  EXPECT_EQ(casts.at("to_half").at("count"), 0) << "images come in half";
  EXPECT_EQ(casts.at("to_f32").at("count"), 0) << "the loss reads half logits";
}

TEST(AutocastAccount, CountsEveryRunOfAnOpInTheFirstStep) {
  EXPECT_EQ(by_op(account_of("--amp=bf16")).at("conv2d").at("calls"), 20);
  // All but the stem's run again in backward.
  EXPECT_EQ(by_op(account_of("--amp=bf16 --checkpoint")).at("conv2d").at("calls"), 39);
  EXPECT_EQ(by_op(account_of("--amp=bf16 --accum 2")).at("conv2d").at("calls"), 40);
  EXPECT_TRUE(account_of("").is_null());
}

TEST(AutocastAccount, IsInTheTableToo) {
  const ProcessResult result = train(tiny_run("--amp --no-eval"));
  for (const char* part : {"ops in f16", "conv2d 2", "(by the half list)", "ops in f32",
                           "(outside of autocast)", "casts"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
}

// In a region of a program, whose tensors come in f32.
TEST(AutocastAccount, HasTheCastsOfAnyRegion) {
  AutocastAccount account;
  AutocastRecorder recorder(DType::f16, account);
  recorder.on_step_begin(1);
  {
    const PhaseScope forward(Phase::forward);
    Tensor weight = ones({4, 3}, {});
    weight.set_requires_grad(true);
    const Tensor x = ones({2, 3}, {});
    const Autocast region(DType::f16);
    const Tensor y = linear(x, weight, {});
    linear(x, weight, {});
    exp(y);
  }
  recorder.on_step({});
  EXPECT_EQ(account.of(AutocastCast::made_weight).count, 1) << "one copy serves both";
  EXPECT_EQ(account.of(AutocastCast::made_weight).bytes, 4 * 3 * 2);
  EXPECT_EQ(account.of(AutocastCast::to_half).bytes, 2 * (2 * 3 * 2));
  EXPECT_EQ(account.of(AutocastCast::to_float).bytes, 2 * 4 * 4);
  ASSERT_EQ(account.ops.size(), 2u);
  EXPECT_STREQ(reason_of(account.ops[0]), "by the half list");
  EXPECT_STREQ(reason_of(account.ops[1]), "by the f32 list");
}

}  // namespace
}  // namespace headroom::test
