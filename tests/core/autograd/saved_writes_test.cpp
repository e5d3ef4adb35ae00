// Writes to what an op took or made, between forward and backward: whatever the op, backward either
// gives the gradient that belonged to the forward or says that something was written in place.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"

namespace headroom {
namespace {

using Floats = std::vector<float>;
using Tensors = std::vector<Tensor>;

constexpr MemoryFormat kNhwc = MemoryFormat::channels_last;

struct Row {
  const char* name;
  std::vector<Shape> inputs;
  std::function<Tensor(const Tensors&)> op;
};

const Shape kImage{2, 4, 4, 4}, kMatrix{4, 4}, kChannels{4};

std::vector<Row> rows() {
  const auto unary = [](const char* name, Tensor (*fn)(const Tensor&)) {
    return Row{name, {kImage}, [fn](const Tensors& t) { return fn(t[0]); }};
  };
  using Pair = Tensor (*)(const Tensor&, const Tensor&);
  const auto binary = [](const char* name, Pair fn) {
    return Row{name, {kImage, kImage}, [fn](const Tensors& t) { return fn(t[0], t[1]); }};
  };
  const auto norm = [](const char* name, BatchNormOptions options, bool residual) {
    return Row{name, {kImage, kChannels, kChannels, kImage}, [=](const Tensors& t) {
                 const BatchNormState state{t[1], t[2], zeros({4}), ones({4})};
                 return batch_norm(t[0], state, options, residual ? t[3] : Tensor());
               }};
  };
  const auto image = [](const char* name, std::function<Tensor(const Tensor&)> fn) {
    return Row{name, {kImage}, [fn](const Tensors& t) { return fn(t[0]); }};
  };
  return {
      unary("neg", neg),
      unary("exp", exp),
      unary("log", log),
      unary("sqrt", sqrt),
      unary("abs", abs),
      unary("relu", relu),
      unary("sigmoid", sigmoid),
      unary("tanh", tanh),
      unary("silu", silu),
      unary("global_avg_pool2d", global_avg_pool2d),
      binary("add", add),
      binary("sub", sub),
      binary("mul", mul),
      binary("div", div),
      binary("maximum", maximum),
      binary("minimum", minimum),
      image("leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.1); }),
      image("pow", [](const Tensor& x) { return pow(x, 3); }),
      image("add scalar", [](const Tensor& x) { return add(x, 3); }),
      image("mul scalar", [](const Tensor& x) { return mul(x, 3); }),
      image("cast", [](const Tensor& x) { return cast(x, DType::f16); }),
      image("contiguous", [](const Tensor& x) { return contiguous(x); }),
      image("clone", [](const Tensor& x) { return clone(x); }),
      image("dropout", [](const Tensor& x) { return dropout(x, {.p = 0.5}); }),
      image("max_pool2d", [](const Tensor& x) { return max_pool2d(x); }),
      image("avg_pool2d", [](const Tensor& x) { return avg_pool2d(x); }),
      image("sum", [](const Tensor& x) { return sum(x, {.axes = {1}}); }),
      image("mean", [](const Tensor& x) { return mean(x); }),
      image("max", [](const Tensor& x) { return max(x); }),
      image("max along", [](const Tensor& x) { return max(x, 1).values; }),
      image("reshape",
            [](const Tensor& x) {
              return reshape(x, {8, 16});
            }),
      image("permute",
            [](const Tensor& x) {
              return permute(x, {3, 1, 0, 2});
            }),
      image("slice", [](const Tensor& x) { return slice(x, 1, 1, 3); }),
      image("expand",
            [](const Tensor& x) {
              return expand(slice(x, 1, 1, 2), {2, 4, 4, 4});
            }),
      {"concat",
       {kImage, kImage},
       [](const Tensors& t) {
         return concat({t[0], t[1]}, 1);
       }},
      {"softmax", {kMatrix}, [](const Tensors& t) { return softmax(t[0], 1); }},
      {"log_softmax", {kMatrix}, [](const Tensors& t) { return log_softmax(t[0], 1); }},
      {"cross_entropy",
       {kMatrix},
       [](const Tensors& t) {
         return cross_entropy(t[0],
                              from_vector(std::vector<int64_t>{3, 0, 1, 2}, {4}, {DType::i64}));
       }},
      {"mse_loss", {kMatrix, kMatrix}, [](const Tensors& t) { return mse_loss(t[0], t[1]); }},
      {"matmul",
       {kMatrix, kMatrix, kChannels},
       [](const Tensors& t) { return matmul(t[0], t[1], t[2]); }},
      {"linear",
       {kMatrix, kMatrix, kChannels},
       [](const Tensors& t) { return linear(t[0], t[1], t[2]); }},
      {"linear under autocast",
       {kMatrix, kMatrix, kChannels},
       [](const Tensors& t) {
         const Autocast region(DType::f16);
         return linear(t[0], t[1], t[2]);
       }},
      {"conv2d",
       {kImage, {4, 4, 3, 3}, kChannels},
       [](const Tensors& t) {
         return conv2d(t[0], t[1], t[2], {.padding = {1, 1}});
       }},
      {"conv2d of a norm",
       {kImage, {4, 4, 1, 1}, kChannels},
       [](const Tensors& t) {
         return conv2d(batch_norm(t[0], {t[2], {}, {}, {}}, {.relu = true}), t[1]);
       }},
      {"checkpoint",
       {kImage, kImage},
       [](const Tensors& t) {
         return checkpoint([b = t[1]](const Tensor& in) { return mul(tanh(in), b); }, t[0]);
       }},
      norm("batch_norm", {}, false),
      norm("batch_norm in evaluation", {.training = false}, false),
      norm("batch_norm with relu", {.relu = true}, false),
      norm("batch_norm with residual", {}, true),
      norm("batch_norm with residual and relu", {.relu = true}, true),
  };
}

struct OneRun {
  Tensors leaves, inputs;
  Tensor output;

  // Inputs are leaves, or tensors that an op made.
  OneRun(const Row& row, bool inputs_are_leaves) {
    manual_seed(9);
    for (const Shape& shape : row.inputs) {
      const MemoryFormat format = shape.rank() == 4 ? kNhwc : MemoryFormat::contiguous;
      Tensor x = empty(shape, {DType::f32, Device::cpu(), format});
      uniform_(x, 0.5, 2);  // positive, for log and its like
      leaves.push_back(x.set_requires_grad(true));
      inputs.push_back(inputs_are_leaves ? x : add(x, 0.0));
    }
    output = row.op(inputs);
  }
  std::vector<Floats> gradients() {
    Tensor seed = empty(output.shape(), {DType::f32});
    manual_seed(10);
    uniform_(seed, -1, 1);
    backward(output, seed);
    std::vector<Floats> out;
    for (const Tensor& leaf : leaves) {
      out.push_back(leaf.grad().defined() ? leaf.grad().to_vector<float>() : Floats());
    }
    return out;
  }
};

TEST(SavedWrites, AreNoticedOrDoNoHarm) {
  for (const Row& row : rows()) {
    for (const bool inputs_are_leaves : {false, true}) {
      const std::vector<Floats> wanted = OneRun(row, inputs_are_leaves).gradients();
      // Each input in turn, then the output.
      for (size_t written = 0; written <= row.inputs.size(); ++written) {
        OneRun run(row, inputs_are_leaves);
        {
          const NoGrad no_grad;
          Tensor target = written < run.inputs.size() ? run.inputs[written] : run.output;
          fill_(target, 0.75);
        }
        std::vector<Floats> now;
        try {
          now = run.gradients();
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("in place"), std::string::npos)
              << row.name << ": " << error.what();
          continue;
        }
        EXPECT_EQ(now, wanted) << row.name << ", operand " << written;
      }
    }
  }
}

// The same with a write that is part of the graph: the gradient through it is thrice the plain one.
TEST(SavedWrites, ThatAreRecordedCountOrAreNoticed) {
  for (const Row& row : rows()) {
    OneRun plain(row, false);
    plain.output = mul(plain.output, 3.0);
    const std::vector<Floats> wanted = plain.gradients();
    OneRun run(row, false);
    std::vector<Floats> now;
    try {
      mul_(run.output, 3.0);
      now = run.gradients();
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.find("in place") != std::string::npos) << row.name << ": " << message;
      continue;
    }
    EXPECT_EQ(now, wanted) << row.name;
  }
}

}  // namespace
}  // namespace headroom
