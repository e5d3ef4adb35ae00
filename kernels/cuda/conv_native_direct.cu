// Native convolutions with narrow groups (depthwise and its like): a thread per output element,
// with neighbouring threads on neighbouring channels. A matrix product per group would be almost
// empty.
#include "kernels/cuda/conv_native_launch.h"

namespace headroom::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 16;

dim3 blocks_for(int64_t elements) {
  const int64_t blocks = ceil_div(elements, kThreads);
  return dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
}

template <class T>
__global__ void direct_forward_kernel(ConvShape shape, const T* x, const T* w, ConvBias bias,
                                      T* y) {
  const int inputs = shape.group_inputs(), outputs = shape.group_outputs();
  const int64_t elements = shape.output_pixels() * shape.k;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements;
       i += step) {
    const int64_t pixel = i / shape.k;
    const int output = static_cast<int>(i % shape.k);
    const int column = static_cast<int>(pixel % shape.q) * shape.stride_w - shape.pad_w;
    const int row = static_cast<int>(pixel / shape.q % shape.p) * shape.stride_h - shape.pad_h;
    const int64_t image = pixel / shape.q / shape.p;
    const T* weight = w + static_cast<int64_t>(output) * shape.taps() * inputs;
    const int first_input = output / outputs * inputs;
    float sum = 0;
    for (int r = 0; r < shape.r; ++r) {
      const int h = row + r * shape.dilation_h;
      if (h < 0 || h >= shape.h) continue;
      for (int s = 0; s < shape.s; ++s) {
        const int v = column + s * shape.dilation_w;
        if (v < 0 || v >= shape.w) continue;
        const T* from = x + ((image * shape.h + h) * shape.w + v) * shape.c + first_input;
        const T* taps = weight + (r * shape.s + s) * inputs;
        for (int c = 0; c < inputs; ++c) sum = fmaf(to_float(from[c]), to_float(taps[c]), sum);
      }
    }
    if (bias.data != nullptr) sum += load_bias(bias, output);
    y[i] = from_float<T>(sum);
  }
}

template <class T>
__global__ void direct_backward_input_kernel(ConvShape shape, const T* dy, const T* w, T* dx) {
  const int inputs = shape.group_inputs(), outputs = shape.group_outputs();
  const int64_t elements = shape.n * shape.h * shape.w * shape.c;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements;
       i += step) {
    const int64_t pixel = i / shape.c;
    const int input = static_cast<int>(i % shape.c);
    const int column = static_cast<int>(pixel % shape.w) + shape.pad_w;
    const int row = static_cast<int>(pixel / shape.w % shape.h) + shape.pad_h;
    const int64_t image = pixel / shape.w / shape.h;
    const int first_output = input / inputs * outputs;
    float sum = 0;
    for (int r = 0; r < shape.r; ++r) {
      const int h = row - r * shape.dilation_h;
      if (h < 0 || h % shape.stride_h != 0 || h / shape.stride_h >= shape.p) continue;
      for (int s = 0; s < shape.s; ++s) {
        const int v = column - s * shape.dilation_w;
        if (v < 0 || v % shape.stride_w != 0 || v / shape.stride_w >= shape.q) continue;
        const T* from =
            dy + ((image * shape.p + h / shape.stride_h) * shape.q + v / shape.stride_w) * shape.k +
            first_output;
        for (int k = 0; k < outputs; ++k) {
          const int64_t line =
              static_cast<int64_t>(first_output + k) * shape.taps() + r * shape.s + s;
          sum = fmaf(to_float(from[k]), to_float(w[line * inputs + input % inputs]), sum);
        }
      }
    }
    dx[i] = from_float<T>(sum);
  }
}

constexpr int kLanes = 32;                 // output channels of a block
constexpr int kSlots = kThreads / kLanes;  // pixels that it adds up side by side

// A block sums one (tap, input of the group) for kLanes outputs over one part of the pixels.
template <class T>
__global__ __launch_bounds__(kThreads) void direct_weight_kernel(ConvShape shape, const T* x,
                                                                 const T* dy, WeightTarget target) {
  __shared__ float sums[kSlots][kLanes];
  const int inputs = shape.group_inputs(), outputs = shape.group_outputs();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int slot = static_cast<int>(threadIdx.x) / kLanes;
  const int output_blocks = (shape.k + kLanes - 1) / kLanes;
  const int output = static_cast<int>(blockIdx.x) % output_blocks * kLanes + lane;
  const int place = static_cast<int>(blockIdx.x) / output_blocks;  // (tap, input)
  const int part = static_cast<int>(blockIdx.z);
  const int64_t length = part_length(shape.output_pixels(), target.parts, kSlots);
  const int64_t begin = part * length;
  const int64_t all = shape.output_pixels();
  const int64_t end = begin + length < all ? begin + length : all;
  float sum = 0;
  if (output < shape.k) {
    const int tap = place / inputs;
    const int row_shift = tap / shape.s * shape.dilation_h - shape.pad_h;
    const int column_shift = tap % shape.s * shape.dilation_w - shape.pad_w;
    const int input = output / outputs * inputs + place % inputs;
    PixelWalk pixel(begin + slot, shape.p, shape.q, kSlots);
    for (int64_t i = begin + slot; i < end; i += kSlots) {
      const int h = pixel.row * shape.stride_h + row_shift;
      const int v = pixel.column * shape.stride_w + column_shift;
      if (h >= 0 && h < shape.h && v >= 0 && v < shape.w) {
        const int64_t source = ((pixel.image * shape.h + h) * shape.w + v) * shape.c + input;
        sum = fmaf(to_float(x[source]), to_float(dy[i * shape.k + output]), sum);
      }
      pixel.advance();
    }
  }
  sums[slot][lane] = sum;
  __syncthreads();
  if (slot != 0 || output >= shape.k) return;
  for (int s = 1; s < kSlots; ++s) sum += sums[s][lane];
  const int64_t at =
      part * shape.weight_numel() + static_cast<int64_t>(output) * shape.taps() * inputs + place;
  if (target.f32) {
    static_cast<float*>(target.data)[at] = sum;
  } else {
    static_cast<T*>(target.data)[at] = from_float<T>(sum);
  }
}

template <class T>
const T* as(const void* pointer) {
  return static_cast<const T*>(pointer);
}

}  // namespace

void direct_forward(const NativeConv& conv, const ConvBias& bias, void* y) {
  dispatch_cuda_floating(conv.dtype, "conv2d", [&](auto tag) {
    using T = decltype(tag);
    direct_forward_kernel<T>
        <<<blocks_for(conv.shape.output_pixels() * conv.shape.k), kThreads, 0, conv.stream>>>(
            conv.shape, as<T>(conv.x), as<T>(conv.w), bias, static_cast<T*>(y));
    check_launch("native_conv2d_direct");
  });
}

void direct_backward_input(const NativeConv& conv, void* dx) {
  const ConvShape& shape = conv.shape;
  dispatch_cuda_floating(conv.dtype, "conv2d_backward_input", [&](auto tag) {
    using T = decltype(tag);
    direct_backward_input_kernel<T>
        <<<blocks_for(shape.n * shape.h * shape.w * shape.c), kThreads, 0, conv.stream>>>(
            shape, as<T>(conv.y), as<T>(conv.w), static_cast<T*>(dx));
    check_launch("native_conv2d_direct_backward_input");
  });
}

void direct_backward_weight(const NativeConv& conv, const WeightTarget& target) {
  const ConvShape& shape = conv.shape;
  const int64_t blocks = ceil_div(shape.k, kLanes) * shape.taps() * shape.group_inputs();
  CHECK(blocks < (int64_t{1} << 31) && target.parts < 65536,
        "native_conv2d_backward_weight: ", blocks, " blocks x ", target.parts,
        " parts are too many for one launch");
  dispatch_cuda_floating(conv.dtype, "conv2d_backward_weight", [&](auto tag) {
    using T = decltype(tag);
    direct_weight_kernel<T>
        <<<dim3(static_cast<unsigned>(blocks), 1, static_cast<unsigned>(target.parts)), kThreads, 0,
           conv.stream>>>(shape, as<T>(conv.x), as<T>(conv.y), target);
    check_launch("native_conv2d_direct_backward_weight");
  });
}

}  // namespace headroom::cuda
