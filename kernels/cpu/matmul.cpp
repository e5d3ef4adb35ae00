// Matrix products of the CPU backend: blocks of the result are shared out among threads, each
// multiplied by Eigen on one thread. Half operands are converted block by block and summed in f32.
#include <algorithm>

#include "core/base/error.h"
#include "core/base/parallel.h"
#include "core/ops/contract.h"
#include "core/ops/workspace_cpu.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/half_convert.h"
#include "kernels/cpu/matmul_block.h"

namespace headroom {
namespace {

using cpu::Block;
using cpu::MatmulPlan;

// Operand `op(view)[row0 :, column0 :]` as it lies in memory.
template <class T>
Block<const T> block_of(const View& view, bool transposed, int64_t row0, int64_t column0) {
  const int64_t row_stride = view.shape[1];
  const int64_t offset = transposed ? column0 * row_stride + row0 : row0 * row_stride + column0;
  return {view.as<const T>() + offset, row_stride, transposed};
}

// What one call computes, with operands of type T, results of type Y and sums of type Sum.
template <class T, class Y>
class Product {
 public:
  using Sum = compute_t<T>;
  static constexpr bool kConverts = !std::is_same_v<T, Sum>;

  Product(const View& a, const View& b, const View& bias, const MatmulParams& params,
          const View& workspace, const View& y)
      : a_(a), b_(b), bias_(bias), params_(params), y_(y.as<Y>()) {
    m_ = y.shape[0];
    n_ = y.shape[1];
    k_ = params.transpose_a ? a.shape[0] : a.shape[1];
    plan_ = cpu::plan_matmul(m_, n_, k_, a.dtype);
    const int64_t needed = plan_.workspace_bytes();
    CHECK(needed == 0 || (workspace.defined && workspace.numel() >= needed), "matmul: needs ",
          needed, " bytes of workspace");
    scratch_ = workspace.as<char>();
    partials_ = reinterpret_cast<Sum*>(scratch_ + plan_.tasks * plan_.task_bytes());
  }

  void run() {
    const int64_t blocks = plan_.row_blocks * plan_.column_blocks * plan_.k_splits;
    parallel_for(plan_.tasks, [&](int64_t task) {
      const int64_t end = blocks * (task + 1) / plan_.tasks;
      for (int64_t block = blocks * task / plan_.tasks; block < end; ++block) {
        run_block(block, scratch_ + task * plan_.task_bytes());
      }
    });
    if (plan_.k_splits > 1) add_partials();
  }

 private:
  void run_block(int64_t block, char* scratch) {
    const int64_t split = block % plan_.k_splits;
    const int64_t column_block = block / plan_.k_splits % plan_.column_blocks;
    const int64_t row_block = block / plan_.k_splits / plan_.column_blocks;
    const int64_t i0 = row_block * plan_.row_block, j0 = column_block * plan_.column_block;
    const int64_t rows = std::min(plan_.row_block, m_ - i0);
    const int64_t columns = std::min(plan_.column_block, n_ - j0);
    const int64_t k0 = split * plan_.k_block, k1 = std::min(k_, k0 + plan_.k_block);

    if (plan_.k_splits > 1) {
      const Block<Sum> sum{partials_ + (split * m_ + i0) * n_ + j0, n_, false};
      for (int64_t i = 0; i < rows; ++i) std::fill_n(sum.data + i * n_, columns, Sum(0));
      multiply(i0, j0, rows, columns, k0, k1, sum, scratch);
      return;
    }
    if constexpr (std::is_same_v<Y, Sum> && std::is_same_v<T, float>) {
      const Block<Sum> sum{y_ + i0 * n_ + j0, n_, false};
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) sum.data[i * n_ + j] = start(j0 + j);
      }
      multiply(i0, j0, rows, columns, k0, k1, sum, scratch);
    } else {
      Sum* buffer = reinterpret_cast<Sum*>(scratch + plan_.a_panel_bytes + plan_.b_panel_bytes);
      const Block<Sum> sum{buffer, columns, false};
      std::fill_n(buffer, rows * columns, Sum(0));
      multiply(i0, j0, rows, columns, k0, k1, sum, scratch);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          Y& out = y_[(i0 + i) * n_ + j0 + j];
          out = static_cast<Y>(start(j0 + j) + buffer[i * columns + j]);
        }
      }
    }
  }

  // What the product is added to in column j.
  Sum start(int64_t j) const { return bias_ ? cpu::element_of<Sum>(bias_, j) : Sum(0); }

  void multiply(int64_t i0, int64_t j0, int64_t rows, int64_t columns, int64_t k0, int64_t k1,
                Block<Sum> sum, char* scratch) {
    for (int64_t k = k0; k < k1; k += plan_.chunk) {
      const int64_t depth = std::min(plan_.chunk, k1 - k);
      const Block<const T> a = block_of<T>(a_, params_.transpose_a, i0, k);
      const Block<const T> b = block_of<T>(b_, params_.transpose_b, k, j0);
      if constexpr (kConverts) {
        Sum* a_panel = reinterpret_cast<Sum*>(scratch);
        Sum* b_panel = reinterpret_cast<Sum*>(scratch + plan_.a_panel_bytes);
        cpu::add_product<Sum>(rows, columns, depth, converted(a, rows, depth, a_panel),
                              converted(b, depth, columns, b_panel), sum);
      } else {
        cpu::add_product<Sum>(rows, columns, depth, a, b, sum);
      }
    }
  }

  // The block in f32 in `panel`, as it lies in memory.
  static Block<const Sum> converted(const Block<const T>& block, int64_t rows, int64_t columns,
                                    Sum* panel) {
    const int64_t height = block.transposed ? columns : rows;
    const int64_t width = block.transposed ? rows : columns;
    for (int64_t i = 0; i < height; ++i) {
      cpu::convert_run(block.data + i * block.row_stride, panel + i * width, width);
    }
    return {panel, width, block.transposed};
  }

  void add_partials() {
    constexpr int64_t kGrain = 1 << 13;
    parallel_ranges(m_ * n_, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) {
        Sum sum = 0;
        for (int64_t split = 0; split < plan_.k_splits; ++split) {
          sum += partials_[split * m_ * n_ + e];
        }
        y_[e] = static_cast<Y>(start(e % n_) + sum);
      }
    });
  }

  const View& a_;
  const View& b_;
  const View& bias_;
  MatmulParams params_;
  Y* y_;
  int64_t m_ = 0, n_ = 0, k_ = 0;
  MatmulPlan plan_;
  char* scratch_ = nullptr;
  Sum* partials_ = nullptr;
};

void matmul(const View& a, const View& b, const View& bias, const MatmulParams& params,
            const View& workspace, const View& y) {
  CHECK(a.is_dense() && b.is_dense() && y.is_dense(), "matmul: operands must be dense");
  CHECK(a.dtype == b.dtype, "matmul: operands must have one dtype, got ", a.dtype, " and ",
        b.dtype);
  CHECK(a.shape[params.transpose_a ? 0 : 1] == b.shape[params.transpose_b ? 1 : 0] &&
            a.shape[params.transpose_a ? 1 : 0] == y.shape[0] &&
            b.shape[params.transpose_b ? 0 : 1] == y.shape[1],
        "matmul: shapes do not fit: ", a.shape, " x ", b.shape, " -> ", y.shape);
  CHECK(!bias || bias.numel() == y.shape[1], "matmul: bias must have ", y.shape[1], " elements");
  CHECK(y.dtype == a.dtype || y.dtype == DType::f32, "matmul: cannot write ", y.dtype, " from ",
        a.dtype);
  if (y.numel() == 0) return;
  dispatch_floating(a.dtype, "matmul", [&](auto tag) {
    using T = decltype(tag);
    if (y.dtype == a.dtype) {
      Product<T, T>(a, b, bias, params, workspace, y).run();
    } else {
      Product<T, float>(a, b, bias, params, workspace, y).run();
    }
  });
}

}  // namespace

void register_cpu_matmul_kernels() { slots::matmul.set(DeviceType::cpu, &matmul); }

}  // namespace headroom
