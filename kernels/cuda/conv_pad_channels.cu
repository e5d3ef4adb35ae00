// Appends zero channels to an nhwc image, so that tensor cores can read a 3-channel input, or drops
// channels again from a gradient.
#include <algorithm>

#include "kernels/cuda/conv_pad_channels.h"
#include "kernels/cuda/cuda_common.h"

namespace headroom {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 1 << 20;  // a grid-stride loop does the rest

// One thread per pixel that becomes kChannels wide: a whole pixel is one store.
template <int kChannels, class X, class Y>
__global__ void __launch_bounds__(kThreads)
    pad_pixels_kernel(const X* x, Y* y, int64_t pixels, int64_t x_channels) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < pixels; i += step) {
    Pack<Y, kChannels> out;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      out.value[c] = from_float<Y>(c < x_channels ? to_float(x[i * x_channels + c]) : 0.0F);
    }
    store_pack(y + i * kChannels, out);
  }
}

// One thread per element of y.
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    pad_elements_kernel(const X* x, Y* y, int64_t numel, int64_t x_channels, int64_t y_channels) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < numel; i += step) {
    const int64_t pixel = i / y_channels, c = i % y_channels;
    y[i] = from_float<Y>(c < x_channels ? to_float(x[pixel * x_channels + c]) : 0.0F);
  }
}

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>(std::min(ceil_div(threads, kThreads), kMaxBlocks));
}

}  // namespace

void cuda_pad_channels(const View& x, const View& y) {
  CHECK(x.rank() == 4 && y.rank() == 4 && x.shape[0] == y.shape[0] && x.shape[2] == y.shape[2] &&
            x.shape[3] == y.shape[3],
        describe(x), " ", describe(y));
  if (y.numel() == 0) return;
  const int64_t x_channels = x.shape[1], y_channels = y.shape[1];
  const int64_t pixels = y.numel() / y_channels;
  dispatch_cuda_floating(x.dtype, "pad_channels", [&](auto x_tag) {
    dispatch_cuda_floating(y.dtype, "pad_channels", [&](auto y_tag) {
      using X = decltype(x_tag);
      using Y = decltype(y_tag);
      constexpr int kWide = 4;  // what a 3-channel image is padded to
      if (y_channels == kWide && is_aligned(y.data, alignof(Pack<Y, kWide>))) {
        launch("pad_channels", pad_pixels_kernel<kWide, X, Y>, dim3(blocks_for(pixels)),
               dim3(kThreads), 0, x.as<const X>(), y.as<Y>(), pixels, x_channels);
      } else {
        launch("pad_channels", pad_elements_kernel<X, Y>, dim3(blocks_for(y.numel())),
               dim3(kThreads), 0, x.as<const X>(), y.as<Y>(), y.numel(), x_channels, y_channels);
      }
    });
  });
}

}  // namespace headroom
