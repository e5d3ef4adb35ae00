// Backward to the weight as matrix products dy^T * panel: each task owns a block of dw for a range
// of pixels, so that no task writes what another does.
#include <algorithm>

#include "core/base/parallel.h"
#include "kernels/cpu/conv_gather.h"
#include "kernels/cpu/conv_kernels.h"
#include "kernels/cpu/half_convert.h"
#include "kernels/cpu/matmul_block.h"

namespace headroom::cpu {
namespace {

template <class T>
class WeightProduct {
 public:
  using Sum = compute_t<T>;
  static constexpr bool kConverts = !std::is_same_v<T, Sum>;

  WeightProduct(const ConvWeightCall& call, const ConvWeightPlan& plan)
      : call_(call), plan_(plan), grid_(forward_grid(call.x, call.dw, call.dy, call.params)) {
    taps_ = static_cast<int64_t>(grid_.taps.size());
    inner_ = call.dw.shape[1];
    outputs_ = call.dw.shape[0] / call.params.groups;
    partials_ = reinterpret_cast<Sum*>(call.workspace + plan.tasks * plan.task_bytes());
  }

  void run() {
    const int64_t blocks =
        plan_.splits * call_.params.groups * plan_.column_blocks * plan_.tap_chunks;
    parallel_for(plan_.tasks, [&](int64_t task) {
      const int64_t end = blocks * (task + 1) / plan_.tasks;
      for (int64_t block = blocks * task / plan_.tasks; block < end; ++block) {
        run_block(block, call_.workspace + task * plan_.task_bytes());
      }
    });
    if (plan_.partials) add_partials();
  }

 private:
  void run_block(int64_t block, char* scratch) {
    const int64_t tap_chunk = block % plan_.tap_chunks;
    block /= plan_.tap_chunks;
    const int64_t column_block = block % plan_.column_blocks;
    block /= plan_.column_blocks;
    const int64_t group = block % call_.params.groups, split = block / call_.params.groups;

    const int64_t tap = tap_chunk * plan_.chunk_taps;
    const int64_t depth = (std::min(taps_, tap + plan_.chunk_taps) - tap) * inner_;
    const int64_t output = group * outputs_ + column_block * plan_.columns;
    const int64_t outputs = std::min(plan_.columns, (group + 1) * outputs_ - output);
    const int64_t row_stride = taps_ * inner_;
    Sum* base = plan_.partials ? partials_ + split * call_.dw.numel() : call_.dw.as<Sum>();
    const Block<Sum> sum{base + output * row_stride + tap * inner_, row_stride, false};
    for (int64_t k = 0; k < outputs; ++k) std::fill_n(sum.data + k * row_stride, depth, Sum(0));

    const int64_t begin = grid_.pixels() * split / plan_.splits;
    const int64_t end = grid_.pixels() * (split + 1) / plan_.splits;
    const PanelSource from{
        grid_,          tap,   std::min(taps_, tap + plan_.chunk_taps), call_.x.shape[1],
        group * inner_, inner_};
    const int64_t step = plan_.in_place ? std::max<int64_t>(1, end - begin) : plan_.rows;
    for (int64_t row = begin; row < end; row += step) {
      const int64_t rows = std::min(step, end - row);
      add_product<Sum>(
          outputs, depth, rows,
          gradient(row, rows, output, outputs, reinterpret_cast<Sum*>(scratch + plan_.panel_bytes)),
          pixels(from, row, rows, reinterpret_cast<Sum*>(scratch)), sum);
    }
  }

  // dy[rows, outputs], transposed.
  Block<const Sum> gradient(int64_t row, int64_t rows, int64_t output, int64_t outputs,
                            Sum* buffer) const {
    const int64_t stride = call_.dy.shape[1];
    const T* dy = call_.dy.as<const T>() + row * stride + output;
    if constexpr (!kConverts) {
      return {dy, stride, true};
    } else {
      for (int64_t i = 0; i < rows; ++i)
        convert_run(dy + i * stride, buffer + i * outputs, outputs);
      return {buffer, outputs, true};
    }
  }

  // What the taps reach of x: [rows, taps * channels].
  Block<const Sum> pixels(const PanelSource& from, int64_t row, int64_t rows, Sum* panel) const {
    const T* x = call_.x.as<const T>();
    if constexpr (!kConverts) {
      if (plan_.in_place) {
        return {x + row * from.channels + from.first_channel, from.channels, false};
      }
    }
    gather_panel(x, from, row, row + rows, panel);
    return {panel, (from.tap_end - from.tap_begin) * inner_, false};
  }

  void add_partials() const {
    constexpr int64_t kGrain = 1 << 13;
    const int64_t count = call_.dw.numel();
    parallel_ranges(count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t split = 1; split < plan_.splits; ++split) {
        const Sum* from = partials_ + split * count;
        for (int64_t i = begin; i < end; ++i) partials_[i] += from[i];
      }
      if (call_.dw.dtype == dtype_of<Sum>()) {
        convert_run(partials_ + begin, call_.dw.as<Sum>() + begin, end - begin);
      } else {
        convert_run(partials_ + begin, call_.dw.as<T>() + begin, end - begin);
      }
    });
  }

  const ConvWeightCall& call_;
  const ConvWeightPlan& plan_;
  PixelGrid grid_;
  int64_t taps_, inner_, outputs_;  // outputs per group
  Sum* partials_;
};

}  // namespace

void conv_weight_gemm(const ConvWeightCall& call, const ConvWeightPlan& plan) {
  dispatch_floating(call.x.dtype, "conv2d_backward_weight",
                    [&](auto tag) { WeightProduct<decltype(tag)>(call, plan).run(); });
}

}  // namespace headroom::cpu
