// The plain-data parameters that ops hand to kernels.
#pragma once

#include <array>
#include <cstdint>

#include "core/base/dtype.h"

namespace headroom {

// alpha is: the slope of leaky_relu, the addend of add_scalar, the factor of mul_scalar, the
// exponent of pow_scalar; unused elsewhere.
enum class UnaryOp : uint8_t {
  neg,
  exp,
  log,
  sqrt,
  abs,
  relu,
  leaky_relu,
  sigmoid,
  tanh,
  silu,
  add_scalar,
  mul_scalar,
  pow_scalar,
};
constexpr int kUnaryOpCount = 13;
const char* name_of(UnaryOp op);

// What the derivative is computed from: the input, the output, or nothing (it is constant).
enum class UnarySaves : uint8_t { input, output, nothing };
constexpr UnarySaves unary_saves(UnaryOp op) {
  switch (op) {
    case UnaryOp::exp:
    case UnaryOp::sqrt:
    case UnaryOp::relu:
    case UnaryOp::sigmoid:
    case UnaryOp::tanh:
      return UnarySaves::output;
    case UnaryOp::neg:
    case UnaryOp::add_scalar:
    case UnaryOp::mul_scalar:
      return UnarySaves::nothing;
    default:
      return UnarySaves::input;
  }
}

enum class BinaryOp : uint8_t { add, sub, mul, div, maximum, minimum };
const char* name_of(BinaryOp op);

enum class ReduceOp : uint8_t { sum, mean };  // of no elements: 0, NaN

struct MatmulParams {
  bool transpose_a = false;
  bool transpose_b = false;
};

// Which implementation a convolution uses on CUDA; the CPU has one.
enum class ConvAlgorithm : uint8_t { library, native };

// Pairs are {vertical, horizontal}.
struct Conv2dParams {
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};
  int64_t groups = 1;
  ConvAlgorithm algorithm = ConvAlgorithm::library;
};

struct Pool2dParams {
  std::array<int64_t, 2> kernel = {1, 1};
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};  // max pooling only
  bool count_padding = true;                 // average pooling only
};

struct BatchNormParams {
  double eps = 1e-5;
  double momentum = 0.1;
  bool relu = false;
  bool training = true;
};

enum class Reduction : uint8_t { mean, sum };

struct CrossEntropyParams {
  Reduction reduction =
      Reduction::mean;         // mean: over counted rows (NaN if none are); sum: divisor 1
  double label_smoothing = 0;  // in [0, 1]
  int64_t ignored_label = -100;
};

// Fields of the control tensor that a fused optimizer step reads on the device.
enum ControlField : int {
  kLr,
  kInvScale,
  kFoundInf,
  kClip,
  kGradNorm,
  kBias1,
  kBias2,
  kControlFields
};

// p <- p - lr * lr_factor * update, as in Sutskever et al. 2013 in PyTorch's form: g += decay * p;
// buf = g on the first applied step, else momentum * buf + (1 - dampening) * g; update = nesterov ?
// g + momentum * buf : buf. The first step is told by control[kBias1]: see PrepareParams.
struct SgdParams {
  double lr_factor = 1;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

// Kingma & Ba 2015; decoupled: Loshchilov & Hutter 2019 (AdamW). control[kBias1] = 1 - beta1^t,
// control[kBias2] = 1 - beta2^t.
struct AdamParams {
  double lr_factor = 1;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;
  bool maximize = false;
};

// SGD (adam = false): kBias1 is 0 on the first applied step (t = 1) and 1 later.
struct PrepareParams {
  bool adam = false;
  double beta1 = 0;
  double beta2 = 0;
};

struct ScalerParams {
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  double min_scale = 1.0 / 16777216.0;      // 2^-24: never 0; below it halves gain nothing
  double max_scale = 16777216.0 * 65536.0;  // 2^40: never inf
};

}  // namespace headroom
