// What happens to a batch of bytes before it is an input: gathering, augmentation and
// normalisation, padding of channels.
#include <cstring>
#include <vector>

#include "core/ops/contract.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"

namespace headroom {
namespace {

using namespace cpu;  // NOLINT: the helpers of this folder

constexpr int kByteValues = 256;

// How one image is shifted and mirrored.
struct ImageShift {
  int64_t rows = 0, columns = 0;
  bool mirror = false;
};

ImageShift shift_of(const View& offsets, int64_t image) {
  if (!offsets.defined) return {};
  const int64_t* row = offsets.as<int64_t>() + image * 3;
  return {row[0], row[1], row[2] != 0};
}

// table[channel * kByteValues + pixel]: a channel has only 256 values.
template <class T>
std::vector<T> normalisation_table(const View& mean, const View& deviation, int64_t channels) {
  std::vector<T> table(static_cast<size_t>(channels * kByteValues));
  for (int64_t c = 0; c < channels; ++c) {
    for (int pixel = 0; pixel < kByteValues; ++pixel) {
      const double value = pixel / 255.0 - static_cast<double>(mean.as<float>()[c]);
      table[static_cast<size_t>(c * kByteValues + pixel)] =
          convert_element<T>(value / static_cast<double>(deviation.as<float>()[c]));
    }
  }
  return table;
}

void normalize_images(const View& pixels, const View& offsets, const View& mean,
                      const View& deviation, const View& y) {
  CHECK(pixels.rank() == 4 && y.rank() == 4 && pixels.shape[0] == y.shape[0] &&
            pixels.shape[3] == y.shape[1],
        "normalize_images: pixels ", pixels.shape, " [n,h,w,c] for y ", y.shape);
  CHECK(pixels.is_dense() && y.is_dense(), "normalize_images: needs dense images");
  const int64_t height = pixels.shape[1], width = pixels.shape[2], channels = pixels.shape[3];
  const int64_t out_height = y.shape[2], out_width = y.shape[3];
  const int64_t row_elements = std::max<int64_t>(1, out_width * channels);
  dispatch_floating(y.dtype, "normalize_images", [&](auto tag) {
    using T = decltype(tag);
    const std::vector<T> table = normalisation_table<T>(mean, deviation, channels);
    parallel_ranges(
        y.shape[0] * out_height, std::max<int64_t>(1, kGrain / row_elements),
        [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; ++task) {
            const int64_t image = task / out_height, row = task % out_height;
            const ImageShift shift = shift_of(offsets, image);
            const int64_t source_row = row + shift.rows;
            const bool row_inside = source_row >= 0 && source_row < height;
            const uint8_t* source =
                pixels.as<uint8_t>() +
                (row_inside ? (image * height + source_row) * width * channels : 0);
            T* target = y.as<T>() + image * y.strides[0] + row * y.strides[2];
            for (int64_t column = 0; column < out_width; ++column) {
              const int64_t shifted = shift.mirror ? out_width - 1 - column : column;
              const int64_t source_column = shifted + shift.columns;
              const bool inside = row_inside && source_column >= 0 && source_column < width;
              T* to = target + column * y.strides[3];
              for (int64_t c = 0; c < channels; ++c) {
                to[c * y.strides[1]] =
                    inside ? table[static_cast<size_t>(c * kByteValues +
                                                       source[source_column * channels + c])]
                           : T(0.0f);
              }
            }
          }
        });
  });
}

void gather_rows(const View& table, const View& index, const View& rows) {
  const int64_t count = index.numel(), stored = table.shape[0], row_bytes = table.shape[1];
  CHECK(rows.shape[0] == count && rows.shape[1] == row_bytes, "gather_rows: ", rows.shape, " for ",
        count, " rows of ", row_bytes, " bytes");
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = index.as<int64_t>()[i];
    CHECK_ARG(at >= 0 && at < stored, "gather_rows: needs indices in [0, ", stored, ") but entry ",
              i, " is ", at);
  }
  parallel_ranges(count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, row_bytes)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                      std::memcpy(rows.as<uint8_t>() + i * row_bytes,
                                  table.as<uint8_t>() + index.as<int64_t>()[i] * row_bytes,
                                  static_cast<size_t>(row_bytes));
                    }
                  });
}

void pad_channels(const View& x, const View& y) {
  CHECK(x.rank() == 4 && y.rank() == 4 && x.format == MemoryFormat::channels_last &&
            y.format == MemoryFormat::channels_last && x.is_dense() && y.is_dense(),
        "pad_channels: needs dense nhwc images, got ", describe(x), " and ", describe(y));
  CHECK(x.shape[0] == y.shape[0] && x.shape[2] == y.shape[2] && x.shape[3] == y.shape[3],
        "pad_channels: shapes ", x.shape, " and ", y.shape);
  const int64_t from = x.shape[1], to = y.shape[1], kept = std::min(from, to);
  const int64_t pixels = x.shape[0] * x.shape[2] * x.shape[3];
  if (y.numel() == 0) return;
  dispatch_floating(x.dtype, "pad_channels", [&](auto x_tag) {
    dispatch_floating(y.dtype, "pad_channels", [&](auto y_tag) {
      using X = decltype(x_tag);
      using Y = decltype(y_tag);
      parallel_ranges(pixels, std::max<int64_t>(1, kGrain / to), [&](int64_t begin, int64_t end) {
        for (int64_t pixel = begin; pixel < end; ++pixel) {
          const X* source = x.as<X>() + pixel * from;
          Y* target = y.as<Y>() + pixel * to;
          for (int64_t c = 0; c < kept; ++c) target[c] = convert_element<Y>(source[c]);
          for (int64_t c = kept; c < to; ++c) target[c] = Y(0.0f);
        }
      });
    });
  });
}

}  // namespace

void register_cpu_input_kernels() {
  slots::normalize_images.set(DeviceType::cpu, &normalize_images);
  slots::gather_rows.set(DeviceType::cpu, &gather_rows);
  slots::pad_channels.set(DeviceType::cpu, &pad_channels);
}

}  // namespace headroom
