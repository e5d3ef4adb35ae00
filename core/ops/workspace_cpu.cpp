// The blocking of the CPU kernels: constants with their reasons, and the workspace they add up to.
#include "core/ops/workspace_cpu.h"

#include <algorithm>

#include "core/ops/workspace_rules.h"

namespace headroom::cpu {
namespace {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// A panel of 64 Ki elements is 256 KiB of f32: half of a 512 KiB L2 cache, the rest is for the
// other operand and the output.
constexpr int64_t kPanelElements = int64_t{1} << 16;
// Deep enough for a product to amortise reading and writing the block it adds to.
constexpr int64_t kChunkDepth = 576;
// Fewer multiply-adds than this are not worth waking a thread: about 5 us of one core.
constexpr int64_t kTaskWork = int64_t{1} << 18;
// Partial sums beyond this cost more memory than the tasks they make are worth.
constexpr int64_t kPartialBytes = int64_t{4} << 20;

// Direct kernels were measured against panels and Eigen: below this many channels a panel costs
// more than its product, and up to the second limit they are a quarter faster, as long as the
// weights and a band of enough pixels stay in the second cache.
constexpr int64_t kFewChannels = 16;
constexpr int64_t kDirectChannels = 128;
constexpr int64_t kDirectWeightBytes = int64_t{1} << 20;
constexpr int64_t kDirectPixels = 48;
constexpr int64_t kStripBytes = int64_t{96} << 10;
constexpr int64_t kStripBytesLimit = int64_t{1} << 20;

struct Extents {
  int64_t n, c, h, w, k, p, q, r, s, groups;
  int64_t taps() const { return r * s; }
};

Extents extents_of(const View& x, const View& w, const View& y, const Conv2dParams& params) {
  return {x.shape[0], x.shape[1], x.shape[2], x.shape[3], y.shape[1],
          y.shape[2], y.shape[3], w.shape[2], w.shape[3], params.groups};
}

bool reads_pixels_in_place(const Extents& e, const Conv2dParams& params) {
  return e.taps() == 1 && params.stride[0] == 1 && params.stride[1] == 1 &&
         params.padding[0] == 0 && params.padding[1] == 0;
}

bool is_depthwise(const Extents& e) { return e.groups > 1 && e.groups == e.c && e.groups == e.k; }

// Rows and pixels per row of the strip that `rows` rows of one class of outputs read, for a source
// read with the given step; a kernel's reach is (extent - 1) * dilation.
int64_t strip_elements(int64_t rows, int64_t width, int64_t step_h, int64_t step_w, int64_t reach_h,
                       int64_t reach_w, int64_t channels) {
  return ((rows - 1) * step_h + reach_h + 1) * ((width - 1) * step_w + reach_w + 1) * channels;
}

struct Strip {
  int64_t rows = 0;
  int64_t bytes = 0;
};

// The most rows whose strip stays within kStripBytes; rows = 0 if even one row is too long.
Strip plan_strip(int64_t height, int64_t width, int64_t step_h, int64_t step_w, int64_t reach_h,
                 int64_t reach_w, int64_t channels) {
  const auto bytes = [&](int64_t rows) {
    return aligned_bytes(4 *
                         strip_elements(rows, width, step_h, step_w, reach_h, reach_w, channels));
  };
  if (height <= 0 || width <= 0 || bytes(1) > kStripBytesLimit) return {};
  int64_t rows = 1;
  while (rows < height && bytes(rows + 1) <= kStripBytes) ++rows;
  return {rows, bytes(rows)};
}

}  // namespace

MatmulPlan plan_matmul(int64_t m, int64_t n, int64_t k, DType dtype) {
  constexpr int64_t kRows = 256, kColumns = 512, kMinRows = 32, kMinColumns = 64, kMinDepth = 512;
  constexpr int64_t kConvertedDepth = 256;
  MatmulPlan plan;
  if (m <= 0 || n <= 0) return plan;
  const int64_t work = m * n * std::max<int64_t>(k, 1);
  const int64_t wanted = std::clamp<int64_t>(work / kTaskWork, 1, kMaxTasks);

  // The longer side is cut first, so that blocks come out square-ish.
  int64_t row_blocks, column_blocks;
  if (m >= n) {
    row_blocks = std::min(wanted, divide_up(m, kMinRows));
    column_blocks = std::min(divide_up(wanted, row_blocks), divide_up(n, kMinColumns));
  } else {
    column_blocks = std::min(wanted, divide_up(n, kMinColumns));
    row_blocks = std::min(divide_up(wanted, column_blocks), divide_up(m, kMinRows));
  }
  int64_t splits = std::min(wanted / (row_blocks * column_blocks), k / kMinDepth);
  splits = std::min(splits, kPartialBytes / (m * n * compute_bytes(dtype)));
  splits = std::max<int64_t>(splits, 1);

  plan.row_block = std::min(kRows, round_up(divide_up(m, row_blocks), 4));
  plan.column_block = std::min(kColumns, round_up(divide_up(n, column_blocks), 8));
  plan.k_block = std::max<int64_t>(divide_up(k, splits), 1);
  plan.row_blocks = divide_up(m, plan.row_block);
  plan.column_blocks = divide_up(n, plan.column_block);
  plan.k_splits = std::max<int64_t>(divide_up(k, plan.k_block), 1);
  plan.tasks = std::min(kMaxTasks, plan.row_blocks * plan.column_blocks * plan.k_splits);
  if (is_half(dtype)) {
    plan.chunk = std::min(plan.k_block, kConvertedDepth);
    plan.a_panel_bytes = aligned_bytes(4 * plan.row_block * plan.chunk);
    plan.b_panel_bytes = aligned_bytes(4 * plan.column_block * plan.chunk);
  } else {
    plan.chunk = plan.k_block;
  }
  if (plan.k_splits > 1) {
    plan.partial_bytes = aligned_bytes(plan.k_splits * m * n * compute_bytes(dtype));
  } else if (dtype != DType::f32) {
    plan.sum_bytes = aligned_bytes(plan.row_block * plan.column_block * compute_bytes(dtype));
  }
  return plan;
}

ConvPlan plan_conv2d(ConvDirection direction, const View& x, const View& w, const View& y,
                     const Conv2dParams& params) {
  constexpr int64_t kMinTasks = 8, kMinColumns = 128, kPackBelow = 128;
  const Extents e = extents_of(x, w, y, params);
  const bool forward = direction == ConvDirection::forward;
  const bool half = is_half(x.dtype);
  const bool strided = params.stride[0] > 1 || params.stride[1] > 1;
  const int64_t element = compute_bytes(x.dtype);
  // The gather: `inner` channels of each pixel reached, `outputs` channels of `pixels` results.
  const int64_t inner = (forward ? e.c : e.k) / e.groups;
  const int64_t outputs = (forward ? e.k : e.c) / e.groups;
  const int64_t height = forward ? e.p : e.h, width = forward ? e.q : e.w;
  const int64_t pixels = e.n * height * width;
  ConvPlan plan;
  if (pixels <= 0 || outputs <= 0 || e.groups <= 0) return plan;

  if (is_depthwise(e)) {
    plan.method = ConvMethod::depthwise;
    plan.rows = 1;
    plan.pack_weight = true;
    plan.weight_bytes = aligned_bytes(element * e.taps() * e.c);
    plan.tasks = std::min(kMaxTasks, e.n * height);
    return plan;
  }

  if (e.groups == 1 && inner > 0 && inner <= kDirectChannels && x.dtype != DType::f64) {
    // A class of a strided backward pass is read with step 1 and has 1/stride of the pixels.
    const int64_t step_h = forward ? params.stride[0] : 1, step_w = forward ? params.stride[1] : 1;
    const int64_t rows_h = forward ? height : divide_up(height, params.stride[0]);
    const int64_t rows_w = forward ? width : divide_up(width, params.stride[1]);
    const Strip strip = plan_strip(rows_h, rows_w, step_h, step_w, (e.r - 1) * params.dilation[0],
                                   (e.s - 1) * params.dilation[1], inner);
    const int64_t weight_bytes = aligned_bytes(4 * e.taps() * inner * padded_outputs(outputs));
    const bool stays_in_cache =
        weight_bytes <= kDirectWeightBytes && strip.rows * rows_w >= kDirectPixels;
    if (strip.rows > 0 && (inner <= kFewChannels || (e.taps() > 1 && stays_in_cache))) {
      plan.method = ConvMethod::direct;
      plan.rows = strip.rows;
      plan.pack_weight = true;
      plan.weight_bytes = weight_bytes;
      plan.panel_bytes = strip.bytes;
      plan.tasks = std::min(kMaxTasks, e.n * divide_up(rows_h, strip.rows));
      return plan;
    }
  }

  plan.in_place = !half && reads_pixels_in_place(e, params);
  // A backward pass that gathers few channels per tap needs the taps of a class side by side.
  plan.pack_weight = half || (!forward && !plan.in_place && inner < kPackBelow);
  if (plan.pack_weight)
    plan.weight_bytes = aligned_bytes(element * e.taps() * e.k * e.c / e.groups);
  const bool tap_by_tap = !forward && !plan.pack_weight;
  const int64_t depth_limit = std::max<int64_t>(1, kChunkDepth / std::max<int64_t>(inner, 1));
  plan.chunk_taps = tap_by_tap ? 1 : std::min(e.taps(), depth_limit);
  const int64_t depth = std::max<int64_t>(1, plan.chunk_taps * inner);
  plan.rows = plan.in_place ? 256 : std::clamp<int64_t>(kPanelElements / depth / 8 * 8, 64, 512);
  plan.rows = std::min(plan.rows, pixels);
  const int64_t row_blocks = divide_up(pixels, plan.rows);
  const int64_t column_blocks =
      std::clamp<int64_t>(divide_up(kMinTasks, row_blocks), 1, divide_up(outputs, kMinColumns));
  plan.columns = std::min(outputs, round_up(divide_up(outputs, column_blocks), 8));
  plan.tasks = std::min(kMaxTasks, e.groups * row_blocks * divide_up(outputs, plan.columns));
  if (!plan.in_place) plan.panel_bytes = aligned_bytes(element * plan.rows * depth);
  if (half || (!forward && strided)) {
    plan.sum_bytes = aligned_bytes(element * plan.rows * plan.columns);
  }
  return plan;
}

ConvWeightPlan plan_conv2d_weight(const View& x, const View& w, const View& y,
                                  const Conv2dParams& params) {
  constexpr int64_t kColumns = 256, kDepth = 256, kRowsPerSplit = 256;
  const Extents e = extents_of(x, w, y, params);
  const bool half = is_half(x.dtype);
  const int64_t element = compute_bytes(x.dtype);
  const int64_t pixels = e.n * e.p * e.q;
  ConvWeightPlan plan;
  if (w.numel() == 0 || e.groups <= 0) return plan;
  const int64_t inner = e.c / e.groups, outputs = e.k / e.groups;

  if (is_depthwise(e)) {
    plan.method = ConvMethod::depthwise;
    plan.rows = 1;
    plan.partials = true;
    plan.splits = std::clamp<int64_t>(e.n * e.p, 1, kMaxTasks);
    plan.tasks = plan.splits;
    plan.partial_bytes = aligned_bytes(plan.splits * element * e.taps() * e.c);
    return plan;
  }

  if (e.groups == 1 && inner <= kFewChannels && x.dtype != DType::f64) {
    const Strip strip =
        plan_strip(e.p, e.q, params.stride[0], params.stride[1], (e.r - 1) * params.dilation[0],
                   (e.s - 1) * params.dilation[1], inner);
    if (strip.rows > 0) {
      plan.method = ConvMethod::direct;
      plan.rows = strip.rows;
      plan.partials = true;
      plan.splits = std::clamp<int64_t>(e.n * divide_up(e.p, strip.rows), 1, kMaxTasks);
      plan.tasks = plan.splits;
      plan.panel_bytes = strip.bytes;
      if (half || outputs != padded_outputs(outputs)) {
        plan.gradient_bytes = aligned_bytes(4 * strip.rows * e.q * padded_outputs(outputs));
      }
      plan.partial_bytes =
          plan.splits * aligned_bytes(4 * e.taps() * inner * padded_outputs(outputs));
      return plan;
    }
  }

  plan.in_place = !half && reads_pixels_in_place(e, params);
  plan.columns = std::min(outputs, kColumns);
  plan.column_blocks = divide_up(outputs, plan.columns);
  plan.chunk_taps = std::clamp<int64_t>(divide_up(kDepth, inner), 1, e.taps());
  plan.tap_chunks = divide_up(e.taps(), plan.chunk_taps);
  plan.chunk_taps = divide_up(e.taps(), plan.tap_chunks);
  const int64_t depth = plan.chunk_taps * inner;
  plan.rows = std::clamp<int64_t>(kPanelElements / depth / 8 * 8, 64, 512);
  const int64_t blocks = e.groups * plan.column_blocks * plan.tap_chunks;
  int64_t splits = std::min(divide_up(kMaxTasks, blocks), pixels / kRowsPerSplit);
  splits = std::min(splits, kPartialBytes / (w.numel() * element));
  plan.splits = std::max<int64_t>(splits, 1);
  plan.tasks = std::min(kMaxTasks, blocks * plan.splits);
  plan.partials = half || plan.splits > 1;
  if (!plan.in_place) plan.panel_bytes = aligned_bytes(element * plan.rows * depth);
  if (half) plan.gradient_bytes = aligned_bytes(element * plan.rows * plan.columns);
  if (plan.partials) plan.partial_bytes = aligned_bytes(plan.splits * w.numel() * element);
  return plan;
}

BatchNormPlan plan_batch_norm(const View& x) {
  constexpr int64_t kMinLanes = 64, kRunElements = int64_t{1} << 15, kSplitElements = 1 << 14;
  constexpr int64_t kMinGroups = 8, kMaxGroups = 256;
  const int64_t channels = x.shape[1];
  BatchNormPlan plan;
  if (x.numel() == 0) return plan;
  plan.planes = x.rank() == 4 && x.format == MemoryFormat::contiguous &&
                x.shape[2] * x.shape[3] > 1 && channels > 1;
  plan.repeat = plan.planes ? kMinLanes : divide_up(kMinLanes, channels);
  plan.lanes = plan.planes ? kMinLanes : plan.repeat * channels;
  plan.groups_per_run = std::clamp(kRunElements / plan.lanes, kMinGroups, kMaxGroups);
  const int64_t parts = plan.planes ? channels : divide_up(x.numel(), plan.lanes);
  plan.splits = std::clamp<int64_t>(std::min(parts, x.numel() / kSplitElements), 1, kMaxTasks);
  return plan;
}

}  // namespace headroom::cpu

namespace headroom::rules {

int64_t cpu_conv2d_workspace_bytes(ConvDirection direction, const View& x, const View& w,
                                   const View& y, const Conv2dParams& params) {
  if (direction == ConvDirection::backward_weight) {
    return cpu::plan_conv2d_weight(x, w, y, params).workspace_bytes();
  }
  return cpu::plan_conv2d(direction, x, w, y, params).workspace_bytes();
}

int64_t cpu_matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, DType dtype) {
  return cpu::plan_matmul(m, n, k, dtype).workspace_bytes();
}

int64_t cpu_batch_norm_workspace_bytes(const View& x) {
  return cpu::plan_batch_norm(x).workspace_bytes();
}

}  // namespace headroom::rules
