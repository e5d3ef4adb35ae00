// Eigen's matrix product on strided blocks. Kept in one file: each combination of transposes is a
// kernel of its own and takes seconds to compile.
#include "kernels/cpu/matmul_block.h"

#include <Eigen/Core>

namespace headroom::cpu {
namespace {

template <class T>
using Rows = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Input = Eigen::Map<const Rows<T>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <class T>
using Output = Eigen::Map<Rows<T>, Eigen::Unaligned, Eigen::OuterStride<>>;

template <class T>
Input<T> input(int64_t rows, int64_t columns, const Block<const T>& block) {
  if (block.transposed) {
    return {block.data, columns, rows, Eigen::OuterStride<>(block.row_stride)};
  }
  return {block.data, rows, columns, Eigen::OuterStride<>(block.row_stride)};
}

}  // namespace

template <class T>
void add_product(int64_t m, int64_t n, int64_t k, Block<const T> a, Block<const T> b, Block<T> y) {
  if (m <= 0 || n <= 0 || k <= 0) return;
  const Input<T> left = input(m, k, a), right = input(k, n, b);
  Output<T> out(y.data, m, n, Eigen::OuterStride<>(y.row_stride));
  if (a.transposed && b.transposed) {
    out.noalias() += left.transpose() * right.transpose();
  } else if (a.transposed) {
    out.noalias() += left.transpose() * right;
  } else if (b.transposed) {
    out.noalias() += left * right.transpose();
  } else {
    out.noalias() += left * right;
  }
}

template void add_product<float>(int64_t, int64_t, int64_t, Block<const float>, Block<const float>,
                                 Block<float>);
template void add_product<double>(int64_t, int64_t, int64_t, Block<const double>,
                                  Block<const double>, Block<double>);

}  // namespace headroom::cpu
