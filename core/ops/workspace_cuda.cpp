// CUDA's part of the workspace rule, for convolutions and matrix products. Nothing here asks cuDNN
// or a GPU: the numbers follow what cuDNN 9.19's heuristics want on sm_90 for the layers of the
// usual networks, and a plan has to fit into what they give.
#include <algorithm>

#include "core/base/error.h"
#include "core/ops/workspace_rules.h"

namespace headroom::rules {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kAlignmentBytes = 256;  // of the parts of one workspace
constexpr int64_t kVectorBytes = 16;      // tensor cores read channels in vectors of this size

// Half nhwc with whole channel vectors: the first choice of the heuristics fits these in 192 of 195
// cases (ResNet-18 and -50, VGG-16, LeNet, batches 16 to 512); the other three have another choice
// at place 2 or 3. Weight gradients split their long sums, the other directions hardly do.
constexpr int64_t kForwardBytes = 2 * kMiB;
constexpr int64_t kBackwardInputBytes = 2 * kMiB;
constexpr int64_t kBackwardWeightBytes = 4 * kMiB;

// The native weight gradient: enough parts to fill the device with tiles of dw, none shorter than
// a few hundred terms, and no more memory than this.
constexpr int64_t kNativeTile = 64;     // rows and columns of dw that one block computes
constexpr int64_t kNativeBlocks = 264;  // two for each multiprocessor of an H200
constexpr int64_t kNativeTermsPerPart = 512;
constexpr int64_t kNativePartsBytes = 8 * kMiB;

constexpr int64_t kMatmulBytes = 4 * kMiB;
constexpr int64_t kMatmulParts = 8;  // split sums, f32

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t value, int64_t step) { return ceil_div(value, step) * step; }
int64_t bytes_of(const View& view) {
  return view.numel() * static_cast<int64_t>(size_of(view.dtype));
}

// The bytes of an image tensor whose channels are padded to whole vectors; 0 if they are whole.
int64_t padded_copy_bytes(const View& image) {
  const int64_t size = static_cast<int64_t>(size_of(image.dtype));
  const int64_t channels = image.shape[1];
  const int64_t whole = round_up(channels, kVectorBytes / size);
  return whole == channels ? 0 : bytes_of(image) / channels * whole;
}

// A half image of four channels (three, padded) can be read as it is; for its weight gradient the
// first choice of large batches widens it all the same, and is not worth more than this.
constexpr int64_t kFourChannels = 4;
constexpr int64_t kFourChannelsWeightBytes = 8 * kMiB;

// What cuDNN copies before it can use tensor cores: everything in nchw, images with part vectors of
// channels in nhwc. Grouped convolutions with narrow groups are unfolded, as large as both images.
int64_t copy_bytes(ConvDirection direction, const View& x, const View& w, const View& y,
                   const Conv2dParams& params) {
  const int64_t w_bytes = w.numel() * static_cast<int64_t>(size_of(x.dtype));
  if (x.format == MemoryFormat::contiguous) return bytes_of(x) + bytes_of(y) + w_bytes;
  const int64_t vector = kVectorBytes / static_cast<int64_t>(size_of(x.dtype));
  if (params.groups > 1 && (w.shape[1] % vector != 0 || y.shape[1] / params.groups % vector != 0)) {
    return bytes_of(x) + bytes_of(y) + w_bytes;
  }
  int64_t x_copy = padded_copy_bytes(x);
  if (is_half(x.dtype) && x.shape[1] == kFourChannels) {
    x_copy = direction == ConvDirection::backward_weight
                 ? std::min(x_copy, kFourChannelsWeightBytes)
                 : 0;
  }
  const int64_t images = x_copy + padded_copy_bytes(y);
  return images == 0 ? 0 : images + w_bytes * vector;
}

int64_t library_bytes(ConvDirection direction, const View& x, const View& w, const View& y,
                      const Conv2dParams& params) {
  int64_t bytes = kForwardBytes;
  if (direction == ConvDirection::backward_input) bytes = kBackwardInputBytes;
  if (direction == ConvDirection::backward_weight) bytes = kBackwardWeightBytes;
  bytes = std::min(bytes, 2 * (bytes_of(x) + bytes_of(y))) + copy_bytes(direction, x, w, y, params);
  return round_up(bytes, kAlignmentBytes);
}

}  // namespace

int64_t cuda_native_weight_parts(const View& dw, const View& dy, const Conv2dParams& params) {
  if (dw.numel() == 0 || dy.numel() == 0) return 1;
  const int64_t rows = dw.shape[0] / params.groups;
  const int64_t columns = dw.numel() / dw.shape[0];
  const int64_t tiles =
      params.groups * ceil_div(rows, kNativeTile) * ceil_div(columns, kNativeTile);
  const int64_t terms = dy.shape[0] * dy.shape[2] * dy.shape[3];
  const int64_t part_bytes = dw.numel() * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, std::min({ceil_div(kNativeBlocks, tiles), terms / kNativeTermsPerPart,
                                        kNativePartsBytes / part_bytes}));
}

int64_t cuda_side_copy_bytes(int64_t numel, DType dtype) {
  return round_up(numel * static_cast<int64_t>(size_of(dtype)), kAlignmentBytes);
}

int64_t cuda_conv2d_workspace_bytes(ConvDirection direction, const View& x, const View& w,
                                    const View& y, const Conv2dParams& params,
                                    int64_t limit_bytes) {
  if (limit_bytes <= 0 || x.numel() == 0 || w.numel() == 0 || y.numel() == 0) return 0;
  int64_t bytes = 0;
  if (params.algorithm == ConvAlgorithm::native) {
    if (direction == ConvDirection::backward_weight) {
      const int64_t parts = cuda_native_weight_parts(w, y, params);
      if (parts > 1) bytes = parts * w.numel() * static_cast<int64_t>(sizeof(float));
    }
  } else {
    bytes = library_bytes(direction, x, w, y, params);
    if (direction == ConvDirection::forward) {
      bytes += cuda_side_copy_bytes(w.shape[0], x.dtype);  // the bias in y's dtype
    } else if (direction == ConvDirection::backward_weight && w.dtype != x.dtype) {
      bytes += cuda_side_copy_bytes(w.numel(), x.dtype);  // dw in x's dtype
    }
  }
  return std::min(bytes, limit_bytes);
}

int64_t cuda_matmul_workspace_bytes(int64_t m, int64_t n, int64_t k, DType /*dtype*/) {
  if (m == 0 || n == 0 || k == 0) return 0;
  const int64_t parts = kMatmulParts * static_cast<int64_t>(sizeof(float));
  const int64_t split = m >= kMatmulBytes / parts / n ? kMatmulBytes : m * n * parts;
  return round_up(split, kAlignmentBytes) + cuda_side_copy_bytes(n, DType::f32);  // and the bias
}

}  // namespace headroom::rules
