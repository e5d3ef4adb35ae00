// The table as a whole.
#include "tests/ops/op_row.h"

namespace headroom::testing_ops {

namespace {

// "relu___image" is about relu_, "relu__image" about relu.
std::string op_of(const std::string& name) {
  size_t end = name.find("__");
  if (name.substr(end + 2, 1) == "_") ++end;
  return name.substr(0, end);
}

}  // namespace

Row make_row(const std::string& name, std::vector<Input> inputs,
             std::function<Tensor(const Call&)> op, std::function<Array(const Arrays&)> reference,
             const Tolerance& tolerance) {
  Row out;
  out.name = name;
  out.covers = {op_of(name)};
  out.inputs = std::move(inputs);
  out.op = [op = std::move(op)](const Call& call) { return std::vector<Tensor>{op(call)}; };
  out.reference = [reference = std::move(reference)](const Arrays& in) {
    return Arrays{reference(in)};
  };
  out.tolerance = tolerance;
  out.exact_on_cuda = is_exact(tolerance);
  out.exact_gradient_on_cuda = is_exact(tolerance) && tolerance.gradient == 0;
  return out;
}

const std::vector<Row>& op_table() {
  static const std::vector<Row> table = [] {
    std::vector<Row> out;
    for (const auto family : {creation_rows, unary_rows, binary_rows, reduce_rows, linalg_rows,
                              conv_rows, pool_rows, norm_rows, loss_rows, shape_rows}) {
      for (Row& row : family()) out.push_back(std::move(row));
    }
    return out;
  }();
  return table;
}

}  // namespace headroom::testing_ops
