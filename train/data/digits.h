// The data set that `train` has built in: digits drawn from a vector font, each different. A real
// task, with no file to fetch: a small convolutional network gets about 98 to 99 % of the test set
// right after a few epochs, a linear classifier two thirds.
#pragma once

#include <cstdint>

#include "train/data/dataset.h"

namespace headroom {

constexpr int64_t kDigitSide = 28;
constexpr int64_t kTrainDigits = 10000;
constexpr int64_t kTestDigits = 2000;

enum class DigitSplit : uint64_t { train = 0, test = 1 };

// Draws image `index` into pixels [28, 28], bright ink on black, u8; a function of the arguments
// alone. Random are: style, wobble of the points, size, slant, rotation, shift, stroke width,
// brightness, a stray stroke in some, and noise. Its label is digit_label(index).
void draw_digit(uint64_t seed, DigitSplit split, int64_t index, uint8_t* pixels);

// Classes take turns, so that every split is balanced.
constexpr int64_t digit_label(int64_t index) { return index % 10; }

// Both sets of 1x28x28 images, drawn in parallel and kept as bytes.
DataSplit make_digits(uint64_t seed, int64_t train_count = kTrainDigits,
                      int64_t test_count = kTestDigits);

}  // namespace headroom
