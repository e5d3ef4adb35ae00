// Contract of normalize_images, gather_rows and pad_channels.
#include "tests/kernels/kernel_test.h"

namespace headroom {
namespace {

using namespace testing_kernels;

class InputKernels : public KernelTest {
 protected:
  Tensor bytes(const Shape& shape) const {
    Values values(static_cast<size_t>(numel_of(shape)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 37 % 256);
    return tensor(values, shape, DType::u8);
  }
};
HEADROOM_ON_EACH_DEVICE(InputKernels);

TEST_P(InputKernels, NormalizesShiftsAndMirrors) {
  const int64_t n = 3, h = 7, w = 9, c = 3;
  const Values mean = {0.5, 0.4375, 0.25}, deviation = {0.25, 0.1875, 0.375};
  const Tensor pixels = bytes({n, h, w, c});
  const Values source = values_of(pixels);
  const std::vector<int64_t> moves = {0, 0, 0, -2, 3, 1, 100, -1, 0};
  for (const bool shifted : {false, true}) {
    for (const MemoryFormat format : kFormats) {
      for (const DType dtype : dtypes()) {
        const Tensor y = uninitialised({n, c, h, w}, dtype, format);
        const Tensor offsets = shifted ? integers(moves, {n, 3}) : Tensor();
        slots::normalize_images(pixels, offsets.defined() ? offsets.view() : View{},
                                tensor(mean, {c}), tensor(deviation, {c}), y);
        Values expected;
        for (int64_t image = 0; image < n; ++image) {
          for (int64_t channel = 0; channel < c; ++channel) {
            for (int64_t row = 0; row < h; ++row) {
              for (int64_t column = 0; column < w; ++column) {
                const int64_t* move = &moves[static_cast<size_t>(image) * 3];
                const int64_t from_row = row + (shifted ? move[0] : 0);
                const int64_t mirrored = shifted && move[2] ? w - 1 - column : column;
                const int64_t from_column = mirrored + (shifted ? move[1] : 0);
                const bool inside =
                    from_row >= 0 && from_row < h && from_column >= 0 && from_column < w;
                const size_t k = static_cast<size_t>(channel);
                expected.push_back(
                    inside ? (source[static_cast<size_t>(
                                  ((image * h + from_row) * w + from_column) * c + channel)] /
                                  255 -
                              mean[k]) /
                                 deviation[k]
                           : 0);
              }
            }
          }
        }
        expect_near(y, expected, 2, 8);
      }
    }
  }
}

TEST_P(InputKernels, NormalizesIntoAnotherSizeAndOneChannel) {
  const Tensor pixels = bytes({2, 28, 28, 1});
  const Tensor y = uninitialised({2, 1, 32, 30});
  const Tensor offsets = integers({-2, -1, 0, -2, -1, 0}, {2, 3});
  slots::normalize_images(pixels, offsets, tensor({0}, {1}), tensor({1}, {1}), y);
  const Values source = values_of(pixels);
  Values expected(2 * 32 * 30, 0);
  for (size_t image = 0; image < 2; ++image) {
    for (size_t row = 0; row < 28; ++row) {
      for (size_t column = 0; column < 28; ++column) {
        expected[(image * 32 + row + 2) * 30 + column + 1] =
            source[(image * 28 + row) * 28 + column] / 255;
      }
    }
  }
  expect_near(y, expected, 2);
}

TEST_P(InputKernels, GathersRows) {
  const Tensor table = bytes({50, 37});
  const Values stored = values_of(table);
  const std::vector<int64_t> index = {49, 0, 7, 7, 23};
  const Tensor rows = uninitialised({5, 37}, DType::u8);
  slots::gather_rows(table, integers(index, {5}), rows);
  const Values gathered = values_of(rows);
  for (size_t i = 0; i < gathered.size(); ++i) {
    EXPECT_EQ(gathered[i], stored[static_cast<size_t>(index[i / 37]) * 37 + i % 37]);
  }
  slots::gather_rows(table, integers({}, {0}), uninitialised({0, 37}, DType::u8));
}

TEST_P(InputKernels, GatherRefusesRowsThatAreNotThere) {
  if (device().is_cuda()) GTEST_SKIP() << "indices on the device are not read by the host";
  const Tensor table = bytes({5, 4}), rows = uninitialised({1, 4}, DType::u8);
  for (const int64_t bad : {-1, 5}) {
    EXPECT_THROW(slots::gather_rows(table, integers({bad}, {1}), rows), InvalidArgument);
  }
}

TEST_P(InputKernels, PadsAndDropsChannels) {
  for (const DType from : dtypes()) {
    for (const DType to : dtypes()) {
      for (const auto& [before, after] :
           {std::pair<int64_t, int64_t>{3, 4}, {4, 3}, {1, 8}, {5, 5}}) {
        const int64_t n = 2, h = 5, w = 7;
        const Tensor x = tensor(test_values(n * before * h * w), {n, before, h, w}, from,
                                MemoryFormat::channels_last);
        const Tensor y = uninitialised({n, after, h, w}, to, MemoryFormat::channels_last);
        slots::pad_channels(x, y);
        const Values source = values_of(x);
        Values expected;
        for (int64_t image = 0; image < n; ++image) {
          for (int64_t channel = 0; channel < after; ++channel) {
            for (int64_t i = 0; i < h * w; ++i) {
              const int64_t at = (image * before + channel) * h * w + i;
              expected.push_back(channel < before ? source[static_cast<size_t>(at)] : 0);
            }
          }
        }
        expect_near(y, expected, 1);
      }
    }
  }
}

}  // namespace
}  // namespace headroom
