// Names of the elementwise ops, as messages and traces show them.
#include "core/ops/params.h"

namespace headroom {

const char* name_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::neg:
      return "neg";
    case UnaryOp::exp:
      return "exp";
    case UnaryOp::log:
      return "log";
    case UnaryOp::sqrt:
      return "sqrt";
    case UnaryOp::abs:
      return "abs";
    case UnaryOp::relu:
      return "relu";
    case UnaryOp::leaky_relu:
      return "leaky_relu";
    case UnaryOp::sigmoid:
      return "sigmoid";
    case UnaryOp::tanh:
      return "tanh";
    case UnaryOp::silu:
      return "silu";
    case UnaryOp::add_scalar:
      return "add_scalar";
    case UnaryOp::mul_scalar:
      return "mul_scalar";
    case UnaryOp::pow_scalar:
      return "pow_scalar";
  }
  return "?";
}

const char* name_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::add:
      return "add";
    case BinaryOp::sub:
      return "sub";
    case BinaryOp::mul:
      return "mul";
    case BinaryOp::div:
      return "div";
    case BinaryOp::maximum:
      return "maximum";
    case BinaryOp::minimum:
      return "minimum";
  }
  return "?";
}

}  // namespace headroom
