// An op of one's own: a struct whose members are what it saves, with forward and backward side by
// side. Written on kernel slots it runs on every device, meta included; its gradient is checked
// against central differences in f64.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/contract.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "kernels/register.h"

using namespace headroom;

namespace {

// y = log(1 + exp(x)), computed as max(x, 0) + log(1 + exp(-|x|)), which cannot overflow.
// dx = dy * sigmoid(x).
struct Softplus : Node {
  SavedTensor x;

  const char* name() const override { return "softplus"; }

  Tensor forward(const Tensor& in) {
    Tensor out = empty_like(in);  // ops allocate, kernels never do
    const Tensor rest = empty_like(in);
    slots::unary(UnaryOp::abs, 0, in, rest);
    slots::unary(UnaryOp::neg, 0, rest, rest);
    slots::unary(UnaryOp::exp, 0, rest, rest);
    slots::unary(UnaryOp::add_scalar, 1, rest, rest);
    slots::unary(UnaryOp::log, 0, rest, rest);
    slots::unary(UnaryOp::relu, 0, in, out);
    slots::binary(BinaryOp::add, out, rest, out);
    if (wants(0)) x = save(in);  // only if a gradient will ask for it
    return out;
  }

  Grads backward(Tensor dy) override {
    Tensor dx = empty_like(dy);
    slots::unary(UnaryOp::sigmoid, 0, x.get(), dx);  // get() checks that x was not written since
    slots::binary(BinaryOp::mul, dx, dy, dx);
    return {dx};
  }
};

Tensor softplus(const Tensor& x) { return apply(Softplus{}, x); }

// The same from ops: three nodes, which keep the outputs of exp and of add.
Tensor composed_softplus(const Tensor& x) { return log(add(exp(x), 1.0)); }

// Bytes that a result keeps for backward, itself and its input left out.
template <class Op>
int64_t kept_bytes(const Op& op, const Tensor& x) {
  const int64_t before = memory_allocated(x.device());
  const Tensor y = op(x);
  return memory_allocated(x.device()) - before - y.storage()->block_bytes();
}

// The largest difference between backward and central differences of sum(w * softplus(x)).
double gradient_error(const std::vector<double>& at) {
  const TensorOptions options{DType::f64, Device::cpu()};
  const Shape shape{static_cast<int64_t>(at.size())};
  Tensor weights = empty(shape, options);
  uniform_(weights, 0.5, 1.5);
  const auto loss_at = [&](const std::vector<double>& values) {
    return sum(mul(softplus(from_vector(values, shape, options)), weights)).item();
  };
  Tensor x = from_vector(at, shape, options);
  x.set_requires_grad(true);
  backward(sum(mul(softplus(x), weights)));
  const std::vector<double> gradient = x.grad().to_vector<double>();
  constexpr double kStep = 1e-5;
  double worst = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    std::vector<double> above = at, below = at;
    above[i] += kStep;
    below[i] -= kStep;
    const double numeric = (loss_at(above) - loss_at(below)) / (2 * kStep);
    worst = std::max(worst, std::abs(numeric - gradient[i]));
  }
  return worst;
}

}  // namespace

int main() {
  register_kernels();
  manual_seed(1);
  const double error = gradient_error({-30, -3, -0.5, 0.1, 2, 25});
  std::printf("gradient check: largest error %.1e\n", error);
  Tensor x = empty({256, 256}, {DType::f32, Device::meta(DeviceType::cuda)});
  x.set_requires_grad(true);
  const int64_t own = kept_bytes(softplus, x), composed = kept_bytes(composed_softplus, x);
  std::printf("kept for backward: %s by the op, %s by the same from three ops\n",
              format_bytes(own).c_str(), format_bytes(composed).c_str());
  return error < 1e-8 && own < composed ? 0 : 1;
}
