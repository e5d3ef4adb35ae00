// Activation checkpointing: a block that runs twice must look as if it had run once.
#include <cmath>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "nn/layers.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

using Block = std::function<Tensor(const Tensor&)>;

class CheckpointCase : public CaseTest {};
HEADROOM_CASES(CheckpointCase);

// fn itself (depth 0), under a checkpoint, or under one inside another.
Block nested(int depth, Block fn) {
  for (int i = 0; i < depth; ++i) {
    fn = [inner = std::move(fn)](const Tensor& in) { return checkpoint(inner, in); };
  }
  return fn;
}

TEST_P(CheckpointCase, O25_RecomputationMustNotUpdateBatchNormTwice) {
  for (const MemoryFormat format : testing_kernels::kFormats) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      for (int form = 0; form < 4; ++form) {
        for (int depth = 0; depth < 3; ++depth) {
          const bool relu = (form & 1) != 0, with_residual = (form & 2) != 0;
          BatchNorm2d norm({.channels = 1, .relu = relu}, {DType::f32, device()});
          const Tensor x = tensor({3, 7}, {2, 1, 1, 1}, dtype, format);
          const Block block = nested(depth, [&](const Tensor& in) {
            return with_residual ? norm.with_residual(in, in) : norm(in);
          });
          const auto expect_once = [&](const char* when) {
            const auto buffers = norm.named_buffers();
            EXPECT_NEAR(buffers[0].tensor.item(), 0.5, 1e-6) << when;
            EXPECT_NEAR(buffers[1].tensor.item(), 1.7, 1e-6) << when;
            EXPECT_EQ(norm.batches_tracked(), 1) << when;
          };
          const Tensor y = block(x);
          expect_once("before backward");
          const Tensor loss = sum(mul(y, y));
          backward(loss, {}, {.retain_graph = true});
          expect_once("after backward");
          backward(loss);
          expect_once("after a second backward");
          EXPECT_TRUE(norm.named_parameters()[0].tensor.grad().defined());
        }
      }
    }
  }
}

TEST_P(CheckpointCase, O26_TheSameDropoutMaskOnRecomputation) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (int depth = 0; depth < 3; ++depth) {
      Tensor x = leaf(Values(4096, 1), {4096}, dtype);
      manual_seed(123);
      const Tensor y = nested(depth, [](const Tensor& in) { return dropout(in, {.p = 0.3}); })(x);
      Tensor between = empty({10}, {dtype, device()});
      uniform_(between);  // what is drawn until backward is not drawn again
      const GeneratorState later = default_generator().state();
      backward(sum(y), scalar(1, {dtype, device()}));
      EXPECT_EQ(default_generator().state(), later);
      EXPECT_EQ(values_of(x.grad()), values_of(y));
      const double survivor = dtype == DType::f32 ? 1.4285715f : 1.4287109375;
      int zeros = 0;
      for (const double v : values_of(y)) {
        ASSERT_TRUE(v == 0 || v == survivor) << v;
        zeros += v == 0;
      }
      EXPECT_NEAR(zeros / 4096.0, 0.3, 0.03);
    }
  }
}

TEST_P(CheckpointCase, O27_CheckpointWhoseInputNeedsNoGradient) {
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (int depth = 0; depth < 3; ++depth) {
      const Tensor x = tensor({1, 2}, {2}, dtype);
      Tensor w = leaf({3, 4}, {2}, dtype);
      const Tensor y = nested(depth, [&](const Tensor& in) { return mul(in, w); })(x);
      EXPECT_TRUE(y.requires_grad());
      backward(sum(y));
      EXPECT_EQ(values_of(w.grad()), (Values{1, 2}));
    }
  }
}

// Refused at once, for every form of writing, also where the block sits in another.
TEST_P(CheckpointCase, O28_InPlaceChangeOfTheCheckpointsOwnInput) {
  struct Write {
    std::function<void(Tensor&)> twice;
    bool recorded;  // in the graph
  };
  const std::vector<Write> writes = {
      {[](Tensor& t) { mul_(t, 2.0); }, true},
      {[](Tensor& t) { copy_(t, mul(t, 2.0)); }, true},
      {[](Tensor& t) { add_(t, t.detach()); }, false},
      {[](Tensor& t) {
         const NoGrad no_grad;
         Tensor view = reshape(t, {1, 2});
         mul_(view, 2.0);
       },
       false},
  };
  for (const auto& [write, recorded] : writes) {
    for (int depth = 1; depth < 3; ++depth) {
      Tensor p = leaf({1, 2}, {2}), w = leaf({3, 3}, {2});
      const auto block = [&, &write = write](const Tensor& in) {
        Tensor x = in;
        write(x);
        return mul(x, w);
      };
      const std::string message = message_of([&] { nested(depth, block)(mul(p, 1)); });
      EXPECT_NE(message.find("in place"), std::string::npos) << message;
      EXPECT_NE(message.find("clone"), std::string::npos) << message;
      const Tensor y = nested(depth, [&](const Tensor& in) { return block(clone(in)); })(mul(p, 1));
      backward(sum(y));
      EXPECT_EQ(values_of(w.grad()), (Values{2, 4}));
      EXPECT_EQ(values_of(p.grad()), recorded ? (Values{6, 6}) : (Values{3, 3}));
    }
  }
  // A ReLU in place as the first layer of a block, and the input written after the call.
  Tensor p = leaf({-1, 2}, {2}), w = leaf({3, 3}, {2});
  const auto relu_first = [&](const Tensor& in) {
    Tensor x = in;
    return mul(relu_(x), w);
  };
  EXPECT_NE(message_of([&] { checkpoint(relu_first, mul(p, 1)); }).find("in place"),
            std::string::npos);
  Tensor h = mul(p, 1);
  const Tensor y = checkpoint([&](const Tensor& in) { return mul(in, w); }, h);
  relu_(h);
  EXPECT_NE(message_of([&] { backward(sum(y)); }).find("in place"), std::string::npos);
  EXPECT_FALSE(w.grad().defined());
}

TEST_P(CheckpointCase, O29_RecomputationKeepsTheAutocastState) {
  for (const DType half : {DType::f16, DType::bf16}) {
    for (int depth = 0; depth < 3; ++depth) {
      Tensor w = leaf({1}, {1, 1});
      const Tensor x = full({1, 1}, 2049, {DType::f32, device()});
      const Block block = nested(depth, [&](const Tensor& in) { return linear(in, w); });
      Tensor y;
      {
        const Autocast region(half);
        y = block(x);
      }
      EXPECT_EQ(y.dtype(), half);
      EXPECT_EQ(y.item(), 2048);
      backward(sum(cast(y, DType::f32)));
      EXPECT_EQ(w.grad().item(), 2048);
      EXPECT_EQ(w.grad().dtype(), DType::f32);
      EXPECT_FALSE(autocast_state().enabled);

      // An f32 run stays f32 when backward happens inside a region, and so does an f32 island.
      for (const bool island : {false, true}) {
        w.set_grad({});
        {
          const Autocast outer(half, island);
          const Autocast inner(half, false);
          y = block(x);
        }
        const Autocast region(half);
        backward(sum(y));
        EXPECT_EQ(w.grad().item(), 2049);
      }
    }
  }
}

}  // namespace
}  // namespace headroom::cases
