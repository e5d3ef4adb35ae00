// What image_file.cpp needs of each format. The functions differ from those of image_file.h only in
// taking an open file, positioned at its start, and in reporting failure by DataError without a
// file name. Both formats' C libraries report errors by longjmp: see jpeg_codec.cpp for how that is
// kept away from C++ objects.
#pragma once

#include <cstdint>
#include <cstdio>
#include <vector>

#include "train/data/dataset.h"

namespace headroom::codec {

ImageShape jpeg_header(std::FILE* file);
ImageShape jpeg_decode(std::FILE* file, int64_t channels, std::vector<uint8_t>& pixels);

ImageShape png_header(std::FILE* file);
ImageShape png_decode(std::FILE* file, int64_t channels, std::vector<uint8_t>& pixels);

// Throws DataError if an image has no pixels or over kMaxImagePixels.
void check_image_size(int64_t height, int64_t width);

// Throws DataError if the pixels take more bytes of the file than it has. Call check_image_size
// before.
void check_file_holds(std::FILE* file, int64_t height, int64_t width, int64_t least_bytes);

}  // namespace headroom::codec
