// In-place ops: what is allowed, what is refused, and that a stale saved tensor is always noticed.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/autograd/autograd.h"
#include "core/ops/ops.h"
#include "tests/core/autograd/tape_helpers.h"

namespace headroom {
namespace {

using namespace testing_autograd;

void expect_says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
  }
}

TEST(InPlace, AnAddBeforeTheReluIsFine) {
  Tensor x = leaf({-1, 2});
  Tensor a = mul(x, 3);
  add_(a, from_vector(Floats{5, -3}, {2}));
  relu_(a);
  backward(sum(a));
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{3, 3}));
}

TEST(InPlace, OnATensorThatNobodySavedIsFine) {
  Tensor w = leaf({1, 2});
  Tensor y = add(w, 1.0);  // keeps nothing
  mul_(y, 3.0);
  add_(y, y.detach());
  backward(sum(y));
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{3, 3}));
}

TEST(InPlace, MakesAPlainTensorPartOfTheGraph) {
  Tensor x = ones({2});
  Tensor w = leaf({3, 4});
  mul_(x, w);
  EXPECT_FALSE(x.is_leaf());
  add_(x, w);
  backward(sum(x));
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{2, 2}));
}

TEST(InPlace, TheSecondFactorIsNoticedWhenItIsOverwritten) {
  Tensor w = leaf({3, 4});
  Tensor x = mul(w, 1.0);
  Tensor b = full({2}, 2);
  mul_(x, b);
  fill_(b, 100);
  expect_says(message_of([&] { backward(sum(x)); }), {"mul", "in place"});
}

TEST(InPlace, AFactorWithAGradientGetsTheOldContents) {
  Tensor w = leaf({3, 4}), v = leaf({1, 2});
  Tensor x = mul(w, 1.0);
  mul_(x, v);  // dv needs x as it was
  backward(sum(x));
  EXPECT_EQ(v.grad().to_vector<float>(), (Floats{3, 4}));
  EXPECT_EQ(w.grad().to_vector<float>(), (Floats{1, 2}));
}

TEST(InPlace, OverwritingCutsTheOldGraphAndKeepsTheNewOne) {
  Tensor old = leaf({1, 2}), fresh = leaf({5, 6});
  Tensor x = mul(old, 2);
  copy_(x, mul(fresh, 3));
  backward(sum(x));
  EXPECT_EQ(fresh.grad().to_vector<float>(), (Floats{3, 3}));
  EXPECT_FALSE(old.grad().defined());
  Tensor filled = mul(old, 2);
  fill_(filled, 7);
  backward(sum(add(filled, mul(old, 1))));
  EXPECT_EQ(old.grad().to_vector<float>(), (Floats{1, 1}));
}

TEST(InPlace, OnViewsAndTheirBasesIsRefusedWhileGradientsAreRecorded) {
  Tensor w = from_vector(Floats{1, 2, 3, 4}, {2, 2});
  w.set_requires_grad(true);
  Tensor x = mul(w, 1);
  Tensor row = slice(x, 0, 0, 1);
  expect_says(message_of([&] { relu_(row); }), {"view", "clone"});
  expect_says(message_of([&] { relu_(x); }), {"views"});
  const NoGrad no_grad;
  relu_(row);
  EXPECT_EQ(x.storage()->version(), 1);
}

TEST(InPlace, AGradientThatIsAddedToIsNoticedByAGraphThatUsedIt) {
  Tensor w = leaf({1, 2}), z = leaf({3, 4});
  backward(sum(mul(w, 2)));
  const Tensor y = sum(mul(w.grad(), z));
  backward(sum(mul(w, 2)));
  EXPECT_NE(message_of([&] { backward(y); }).find("in place"), std::string::npos);
}

TEST(InPlace, AWriteThroughAViewIsNoticed) {
  Tensor w = from_vector(Floats{1, 2, 3, 4}, {2, 2});
  w.set_requires_grad(true);
  Tensor x = mul(w, 1);
  const Tensor y = sum(mul(x, x));
  {
    const NoGrad no_grad;
    Tensor row = slice(x, 0, 0, 1);
    fill_(row, 9);
  }
  EXPECT_NE(message_of([&] { backward(y); }).find("in place"), std::string::npos);
}

// x += transpose(x) would read what it has just written.
TEST(InPlace, AnOperandThatOverlapsTheResultOtherwiseIsRefused) {
  Tensor x = from_vector(Floats{1, 2, 3, 4}, {2, 2});
  expect_says(message_of([&] { add_(x, transpose(x, 0, 1)); }), {"add_", "overlap", "clone"});
  Tensor row = slice(x, 0, 0, 1);
  EXPECT_THROW(mul_(x, row), InvalidArgument);
  EXPECT_THROW(copy_(x, transpose(x, 0, 1)), InvalidArgument);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1, 2, 3, 4}));
  add_(x, x);  // element by element it is the same place
  EXPECT_EQ(x.to_vector<float>(), (Floats{2, 4, 6, 8}));
  mul_(row, slice(x, 0, 1, 2));  // another row
  EXPECT_EQ(x.to_vector<float>(), (Floats{12, 32, 6, 8}));
}

TEST(InPlace, AnIntegerOperandIsRefused) {
  Tensor x = ones({2});
  EXPECT_THROW(add_(x, ones({2}, {DType::i64})), InvalidArgument);
  Tensor counts = zeros({2}, {DType::i64});
  EXPECT_THROW(relu_(counts), InvalidArgument);
}

TEST(InPlace, KeepsTheDtypeAndTheShapeOfItsTarget) {
  Tensor x = ones({2}, {DType::f16});
  add_(x, full({1}, 0.5));
  EXPECT_EQ(x.dtype(), DType::f16);
  EXPECT_EQ(x.to_vector<float>(), (Floats{1.5, 1.5}));
  EXPECT_THROW(add_(x, ones({3, 2})), InvalidArgument);
}

TEST(InPlace, HasTheGradientsOfItsOutOfPlaceForm) {
  const Floats values = {-1.5f, -0.25f, 0.75f, 2};
  struct Pair {
    const char* name;
    std::function<Tensor(const Tensor&)> plain;
    std::function<void(Tensor&)> in_place;
  };
  const std::vector<Pair> pairs = {
      {"relu", [](const Tensor& x) { return relu(x); }, [](Tensor& x) { relu_(x); }},
      {"leaky_relu", [](const Tensor& x) { return leaky_relu(x, 0.1); },
       [](Tensor& x) { leaky_relu_(x, 0.1); }},
      {"sigmoid", [](const Tensor& x) { return sigmoid(x); }, [](Tensor& x) { sigmoid_(x); }},
      {"tanh", [](const Tensor& x) { return tanh(x); }, [](Tensor& x) { tanh_(x); }},
      {"exp", [](const Tensor& x) { return exp(x); }, [](Tensor& x) { exp_(x); }},
      {"neg", [](const Tensor& x) { return neg(x); }, [](Tensor& x) { neg_(x); }},
      {"div", [](const Tensor& x) { return div(x, full({4}, 3)); },
       [](Tensor& x) { div_(x, full({4}, 3)); }},
      {"sub", [](const Tensor& x) { return sub(x, full({4}, 3)); },
       [](Tensor& x) { sub_(x, full({4}, 3)); }},
  };
  for (const Pair& pair : pairs) {
    Tensor a = leaf(values), b = leaf(values);
    const Tensor y = pair.plain(mul(a, 1));
    Tensor z = mul(b, 1);
    const void* address = z.view().data;
    pair.in_place(z);
    EXPECT_EQ(z.view().data, address) << pair.name;
    EXPECT_EQ(z.to_vector<float>(), y.to_vector<float>()) << pair.name;
    backward(sum(mul(y, 2)));
    backward(sum(mul(z, 2)));
    EXPECT_EQ(b.grad().to_vector<float>(), a.grad().to_vector<float>()) << pair.name;
  }
}

TEST(InPlace, SqrtHasTheGradientOfItsOutput) {
  Tensor x = leaf({4, 16});
  Tensor y = mul(x, 1);
  sqrt_(y);
  backward(sum(y));
  EXPECT_EQ(x.grad().to_vector<float>(), (Floats{0.25, 0.125}));
}

TEST(InPlace, OverwritingAnInputThatTheDerivativeNeedsIsRefusedWhileItIsRecorded) {
  struct Case {
    const char* name;
    std::function<void(Tensor&)> op;
    Floats wanted;
  };
  const std::vector<Case> cases = {
      {"log", [](Tensor& x) { log_(x); }, {0, std::log(2.0f)}},
      {"abs", [](Tensor& x) { abs_(x); }, {1, 2}},
      {"silu", [](Tensor& x) { silu_(x); }, {0.7310586f, 1.7615942f}},
      {"pow", [](Tensor& x) { pow_(x, 3); }, {1, 8}},
      {"leaky_relu", [](Tensor& x) { leaky_relu_(x, -1); }, {1, 2}},
  };
  for (const Case& item : cases) {
    SCOPED_TRACE(item.name);
    Tensor w = leaf({1, 2});
    Tensor x = mul(w, 1);
    expect_says(message_of([&] { item.op(x); }), {item.name, "input", "no_grad", "f32[2]"});
    EXPECT_EQ(x.to_vector<float>(), (Floats{1, 2}));
    EXPECT_EQ(x.storage()->version(), 0);
    backward(sum(x));  // the refusal left the graph as it was
    EXPECT_EQ(w.grad().to_vector<float>(), (Floats{1, 1}));
    Tensor plain = from_vector(Floats{1, 2}, {2});
    item.op(plain);
    const NoGrad no_grad;
    item.op(x);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(x.to_vector<float>()[i], item.wanted[i], 1e-6);
      EXPECT_EQ(plain.to_vector<float>()[i], x.to_vector<float>()[i]);
    }
    EXPECT_EQ(x.storage()->version(), 1);
  }
}

TEST(InPlace, ReluTakesNoMemoryOfItsOwn) {
  Tensor x = leaf(Floats(1 << 16, 1));
  const int64_t before = memory_allocated(Device::cpu());
  Tensor y = mul(x, 2);
  relu_(y);
  EXPECT_EQ(memory_allocated(Device::cpu()) - before, 4 << 16);
}

}  // namespace
}  // namespace headroom
