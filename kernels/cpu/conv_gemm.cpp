// Convolution as matrix products over gathered panels (im2col in blocks that stay in cache):
// forward and backward to the input. Blocks of pixels are shared out among threads.
#include <algorithm>
#include <vector>

#include "core/base/parallel.h"
#include "kernels/cpu/conv_gather.h"
#include "kernels/cpu/conv_kernels.h"
#include "kernels/cpu/half_convert.h"
#include "kernels/cpu/matmul_block.h"

namespace headroom::cpu {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class T>
class GatherProduct {
 public:
  using Sum = compute_t<T>;
  static constexpr bool kConverts = !std::is_same_v<T, Sum>;

  GatherProduct(const ConvCall& call, const ConvPlan& plan, std::vector<PixelGrid> grids)
      : call_(call), plan_(plan), grids_(std::move(grids)), groups_(call.params.groups) {
    taps_ = call.weight.shape[2] * call.weight.shape[3];
    source_channels_ = call.source.shape[1];
    output_channels_ = call.output.shape[1];
    inner_ = source_channels_ / groups_;
    outputs_ = output_channels_ / groups_;
    column_blocks_ = divide_up(outputs_, plan.columns);
    int64_t blocks = 0, taps_before = 0;
    for (const PixelGrid& grid : grids_) {
      first_block_.push_back(blocks);
      first_tap_.push_back(taps_before);
      blocks += divide_up(grid.pixels(), plan.rows) * groups_ * column_blocks_;
      taps_before += static_cast<int64_t>(grid.taps.size());
    }
    first_block_.push_back(blocks);
    packed_ = plan.pack_weight ? reinterpret_cast<const Sum*>(call.workspace) : nullptr;
  }

  void run() {
    if (plan_.pack_weight) pack_weight();
    const int64_t blocks = first_block_.back();
    parallel_for(plan_.tasks, [&](int64_t task) {
      char* scratch = call_.workspace + plan_.weight_bytes + task * plan_.task_bytes();
      const int64_t end = blocks * (task + 1) / plan_.tasks;
      for (int64_t block = blocks * task / plan_.tasks; block < end; ++block) {
        run_block(block, scratch);
      }
    });
  }

 private:
  // Forward: the weight in f32 as it lies. Backward: [group][grid][tap][k][c], so that the taps of
  // a grid are rows of one matrix.
  void pack_weight() {
    const T* weight = call_.weight.as<const T>();
    Sum* packed = reinterpret_cast<Sum*>(call_.workspace);
    const int64_t outputs = call_.weight.shape[0], channels = call_.weight.shape[1];
    parallel_for(outputs, [&](int64_t k) {
      const T* from = weight + k * taps_ * channels;
      if (call_.forward()) {
        convert_run(from, packed + k * taps_ * channels, taps_ * channels);
        return;
      }
      Sum* group = packed + k / inner_ * inner_ * taps_ * channels;
      for (size_t g = 0; g < grids_.size(); ++g) {
        for (size_t t = 0; t < grids_[g].taps.size(); ++t) {
          const int64_t place = (first_tap_[g] + static_cast<int64_t>(t)) * inner_ + k % inner_;
          convert_run(from + grids_[g].taps[t].index * channels, group + place * channels,
                      channels);
        }
      }
    });
  }

  // The weights that taps [tap, ...) of a grid meet: [taps * inner, columns from `column`].
  Block<const Sum> weight_block(size_t g, int64_t group, int64_t tap, int64_t column) const {
    const int64_t channels = call_.weight.shape[1];
    const Sum* weight = packed_;
    if constexpr (!kConverts) {
      if (weight == nullptr) weight = call_.weight.as<const Sum>();
    }
    if (call_.forward()) {
      const int64_t row = group * outputs_ + column;
      return {weight + row * taps_ * channels + tap * channels, taps_ * channels, true};
    }
    weight += group * inner_ * taps_ * channels;
    if (packed_ != nullptr) {
      return {weight + (first_tap_[g] + tap) * inner_ * channels + column, channels, false};
    }
    return {weight + grids_[g].taps[tap].index * channels + column, taps_ * channels, false};
  }

  void run_block(int64_t block, char* scratch) {
    const size_t g =
        static_cast<size_t>(std::upper_bound(first_block_.begin(), first_block_.end(), block) -
                            first_block_.begin() - 1);
    const PixelGrid& grid = grids_[g];
    block -= first_block_[g];
    const int64_t group = block / column_blocks_ % groups_;
    const int64_t column = block % column_blocks_ * plan_.columns;
    const int64_t columns = std::min(plan_.columns, outputs_ - column);
    const int64_t begin = block / column_blocks_ / groups_ * plan_.rows;
    const int64_t end = std::min(grid.pixels(), begin + plan_.rows);

    Block<Sum> sum{reinterpret_cast<Sum*>(scratch + plan_.panel_bytes), columns, false};
    bool in_place = false;
    if constexpr (!kConverts) {
      if (grid.is_whole()) {
        in_place = true;
        sum = {call_.output.as<Sum>() + begin * output_channels_ + group * outputs_ + column,
               output_channels_, false};
      }
    }
    start(sum, end - begin, columns, group * outputs_ + column);
    multiply(g, group, column, columns, begin, end, reinterpret_cast<Sum*>(scratch), sum);
    if (in_place) return;
    T* output = call_.output.as<T>() + group * outputs_ + column;
    for (int64_t row = begin; row < end; ++row) {
      convert_run(sum.data + (row - begin) * columns,
                  output + grid.output_pixel(row) * output_channels_, columns);
    }
  }

  void start(const Block<Sum>& sum, int64_t rows, int64_t columns, int64_t channel) const {
    for (int64_t row = 0; row < rows; ++row) {
      Sum* out = sum.data + row * sum.row_stride;
      if (!call_.bias) {
        std::fill_n(out, columns, Sum(0));
      } else if (row == 0) {
        for (int64_t j = 0; j < columns; ++j) out[j] = element_of<Sum>(call_.bias, channel + j);
      } else {
        std::copy_n(sum.data, columns, out);
      }
    }
  }

  void multiply(size_t g, int64_t group, int64_t column, int64_t columns, int64_t begin,
                int64_t end, Sum* panel, const Block<Sum>& sum) const {
    const PixelGrid& grid = grids_[g];
    const T* source = call_.source.as<const T>();
    const int64_t taps = static_cast<int64_t>(grid.taps.size());
    if (taps == 0) return;
    const int64_t chunk = divide_up(taps, divide_up(taps, plan_.chunk_taps));
    for (int64_t tap = 0; tap < taps; tap += chunk) {
      const int64_t count = std::min(chunk, taps - tap);
      Block<const Sum> pixels{panel, count * inner_, false};
      bool gathered = false;
      if constexpr (!kConverts) {
        if (plan_.in_place) {
          pixels = {source + begin * source_channels_ + group * inner_, source_channels_, false};
          gathered = true;
        }
      }
      if (!gathered) {
        gather_panel(source, {grid, tap, tap + count, source_channels_, group * inner_, inner_},
                     begin, end, panel);
      }
      add_product<Sum>(end - begin, columns, count * inner_, pixels,
                       weight_block(g, group, tap, column), sum);
    }
  }

  const ConvCall& call_;
  const ConvPlan& plan_;
  std::vector<PixelGrid> grids_;
  std::vector<int64_t> first_block_;  // of each grid, and the number of blocks
  std::vector<int64_t> first_tap_;    // of each grid, in the packed weight
  int64_t groups_, taps_, source_channels_, output_channels_;
  int64_t inner_, outputs_;  // channels gathered and produced, per group
  int64_t column_blocks_;
  const Sum* packed_;
};

}  // namespace

void conv_gemm(const ConvCall& call, const ConvPlan& plan) {
  dispatch_floating(call.source.dtype, "conv2d", [&](auto tag) {
    std::vector<PixelGrid> grids;
    if (call.forward()) {
      grids.push_back(forward_grid(call.source, call.weight, call.output, call.params));
    } else {
      grids = backward_grids(call.output, call.weight, call.source, call.params);
    }
    GatherProduct<decltype(tag)>(call, plan, std::move(grids)).run();
  });
}

}  // namespace headroom::cpu
