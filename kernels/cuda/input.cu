// What happens to a batch of bytes on CUDA before it is an input: gathering rows of a set kept on
// the device, augmentation and normalisation, padding of channels.
#include <algorithm>

#include "core/ops/contract.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/pixel_index.h"

namespace headroom {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kByteValues = 256;
constexpr int64_t kTableChannels = 16;  // more would not fit beside full occupancy

struct NormalizePlan {
  const uint8_t* pixels;   // [n, height, width, channels]
  const int64_t* offsets;  // [n, 3], or nullptr
  const float* mean;
  const float* deviation;
  int64_t height, width, channels;
  PixelIndex index;   // of y's pixels
  int64_t stride[4];  // of y, n c h w
};

// f64, so that the CPU's kernels give the same bits.
__device__ __forceinline__ float normalised(const NormalizePlan& plan, int pixel, int64_t c) {
  const double value = pixel / 255.0 - static_cast<double>(plan.mean[c]);
  return static_cast<float>(value / static_cast<double>(plan.deviation[c]));
}

// A thread takes all channels of a pixel. kTable: each block first tabulates the 256 values that a
// channel can have.
template <bool kTable, class T>
__global__ void __launch_bounds__(kThreads) normalize_kernel(NormalizePlan plan, T* y) {
  __shared__ T table[kTable ? kTableChannels * kByteValues : 1];
  if constexpr (kTable) {
    for (int i = threadIdx.x; i < plan.channels * kByteValues; i += kThreads) {
      table[i] = from_float<T>(normalised(plan, i % kByteValues, i / kByteValues));
    }
    __syncthreads();
  }
  for (int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x; number < plan.index.count();
       number += int64_t{gridDim.x} * kThreads) {
    const Pixel out = plan.index.at(number);
    int64_t row = out.row, column = out.column;
    if (plan.offsets != nullptr) {
      const int64_t* shift = plan.offsets + out.plane * 3;
      row += shift[0];
      column = (shift[2] != 0 ? plan.index.columns - 1 - column : column) + shift[1];
    }
    const bool inside = row >= 0 && row < plan.height && column >= 0 && column < plan.width;
    const uint8_t* from =
        plan.pixels + ((out.plane * plan.height + row) * plan.width + column) * plan.channels;
    T* to = y + out.plane * plan.stride[0] + out.row * plan.stride[2] + out.column * plan.stride[3];
    for (int64_t c = 0; c < plan.channels; ++c) {
      T value = from_float<T>(0.0f);
      if (inside) {
        if constexpr (kTable) {
          value = table[c * kByteValues + from[c]];
        } else {
          value = from_float<T>(normalised(plan, from[c], c));
        }
      }
      to[c * plan.stride[1]] = value;
    }
  }
}

void normalize_images(const View& pixels, const View& offsets, const View& mean,
                      const View& deviation, const View& y) {
  CHECK(pixels.rank() == 4 && y.rank() == 4 && pixels.shape[0] == y.shape[0] &&
            pixels.shape[3] == y.shape[1],
        "normalize_images: pixels ", pixels.shape, " [n,h,w,c] for y ", y.shape);
  CHECK(pixels.is_dense() && y.is_dense(), "normalize_images: needs dense images");
  if (y.numel() == 0) return;
  const NormalizePlan plan{.pixels = pixels.as<uint8_t>(),
                           .offsets = offsets.defined ? offsets.as<int64_t>() : nullptr,
                           .mean = mean.as<float>(),
                           .deviation = deviation.as<float>(),
                           .height = pixels.shape[1],
                           .width = pixels.shape[2],
                           .channels = pixels.shape[3],
                           .index = PixelIndex::of(y.shape[0], y.shape[2], y.shape[3], 1),
                           .stride = {y.strides[0], y.strides[1], y.strides[2], y.strides[3]}};
  const unsigned blocks = static_cast<unsigned>(
      std::min<int64_t>(ceil_div(plan.index.count(), kThreads), int64_t{sm_count()} * 8));
  dispatch_cuda_floating(y.dtype, "normalize_images", [&](auto element) {
    using T = decltype(element);
    auto* kernel =
        plan.channels <= kTableChannels ? &normalize_kernel<true, T> : &normalize_kernel<false, T>;
    launch("normalize_images", kernel, blocks, kThreads, 0, plan, y.as<T>());
  });
}

// Word is the widest type that rows are whole and aligned multiples of. An index outside the table
// is recorded and its row filled with zeros.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const Word* table, int64_t table_rows, const int64_t* index, Word* rows,
                       PixelIndex work, FaultRecord* faults) {
  for (int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x; number < work.count();
       number += int64_t{gridDim.x} * kThreads) {
    const Pixel piece = work.at(number);  // column: the row that is written; group: its word
    const int64_t from = index[piece.column];
    if (from >= 0 && from < table_rows) {
      rows[number] = table[from * work.groups + piece.group];
    } else {
      rows[number] = Word{};
      if (piece.group == 0) {
        record_fault(faults, DeviceFault::index_out_of_range, from, piece.column, table_rows);
      }
    }
  }
}

template <class Word>
void gather_words(const View& table, const View& index, const View& rows) {
  const int64_t words = table.shape[1] / static_cast<int64_t>(sizeof(Word));
  const auto work = PixelIndex::of(1, 1, index.numel(), words);
  launch("gather_rows", &gather_rows_kernel<Word>, grid_stride_blocks(work.count()), kThreads, 0,
         table.as<Word>(), table.shape[0], index.as<int64_t>(), rows.as<Word>(), work,
         fault_record());
}

void gather_rows(const View& table, const View& index, const View& rows) {
  const int64_t row_bytes = table.shape[1];
  CHECK(rows.shape[0] == index.numel() && rows.shape[1] == row_bytes && table.is_dense() &&
            rows.is_dense() && index.is_dense(),
        "gather_rows: ", rows.shape, " for ", index.numel(), " rows of ", row_bytes, " bytes");
  if (rows.numel() == 0) return;
  const auto fits = [&](int64_t bytes) {
    return row_bytes % bytes == 0 && is_aligned(table.data, static_cast<size_t>(bytes)) &&
           is_aligned(rows.data, static_cast<size_t>(bytes));
  };
  if (fits(kVectorBytes)) {
    gather_words<uint4>(table, index, rows);
  } else if (fits(4)) {
    gather_words<uint32_t>(table, index, rows);
  } else {
    gather_words<uint8_t>(table, index, rows);
  }
}

// A thread writes the kTo channels of a pixel at once.
template <int kTo, class X, class Y>
__global__ void __launch_bounds__(kThreads)
    pad_pixels_kernel(const X* x, Y* y, int64_t pixels, int from) {
  for (int64_t pixel = int64_t{blockIdx.x} * kThreads + threadIdx.x; pixel < pixels;
       pixel += int64_t{gridDim.x} * kThreads) {
    Pack<Y, kTo> out;
#pragma unroll
    for (int c = 0; c < kTo; ++c) {
      out.value[c] = c < from ? from_float<Y>(to_float(x[pixel * from + c])) : from_float<Y>(0.0f);
    }
    store_pack(y + pixel * kTo, out);
  }
}

template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    pad_channels_kernel(const X* x, Y* y, PixelIndex work, int64_t from) {
  for (int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x; number < work.count();
       number += int64_t{gridDim.x} * kThreads) {
    const Pixel at = work.at(number);  // column: the pixel; group: its channel
    y[number] = at.group < from ? from_float<Y>(to_float(x[at.column * from + at.group]))
                                : from_float<Y>(0.0f);
  }
}

void pad_channels(const View& x, const View& y) {
  CHECK(x.rank() == 4 && y.rank() == 4 && x.format == MemoryFormat::channels_last &&
            y.format == MemoryFormat::channels_last && x.is_dense() && y.is_dense(),
        "pad_channels: needs dense nhwc images, got ", describe(x), " and ", describe(y));
  CHECK(x.shape[0] == y.shape[0] && x.shape[2] == y.shape[2] && x.shape[3] == y.shape[3],
        "pad_channels: shapes ", x.shape, " and ", y.shape);
  if (y.numel() == 0) return;
  const int64_t from = x.shape[1], to = y.shape[1];
  const int64_t pixels = y.shape[0] * y.shape[2] * y.shape[3];
  dispatch_cuda_floating(x.dtype, "pad_channels", [&](auto x_element) {
    dispatch_cuda_floating(y.dtype, "pad_channels", [&](auto y_element) {
      using X = decltype(x_element);
      using Y = decltype(y_element);
      const auto whole_pixels = [&](auto* kernel) {
        launch("pad_channels", kernel, grid_stride_blocks(pixels), kThreads, 0, x.as<X>(),
               y.as<Y>(), pixels, static_cast<int>(from));
      };
      if (to == 4 && from <= 4 && is_aligned(y.data)) {
        whole_pixels(&pad_pixels_kernel<4, X, Y>);
      } else if (to == 8 && from <= 8 && is_aligned(y.data)) {
        whole_pixels(&pad_pixels_kernel<8, X, Y>);
      } else {
        const auto work = PixelIndex::of(1, 1, pixels, to);
        launch("pad_channels", &pad_channels_kernel<X, Y>, grid_stride_blocks(work.count()),
               kThreads, 0, x.as<X>(), y.as<Y>(), work, from);
      }
    });
  });
}

}  // namespace

void register_cuda_input_kernels() {
  slots::normalize_images.set(DeviceType::cuda, &normalize_images);
  slots::gather_rows.set(DeviceType::cuda, &gather_rows);
  slots::pad_channels.set(DeviceType::cuda, &pad_channels);
}

}  // namespace headroom
