// Makes the files that the data tests read: raw bytes, gzip, JPEG, PNG.
#pragma once

#include <cstdint>
#include <cstdio>
// jpeglib.h needs the two above.
#include <gtest/gtest.h>
#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace headroom::test {

using Bytes = std::vector<uint8_t>;

inline void write_bytes(const std::string& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  if (!out) throw std::runtime_error("cannot write " + path);
}

inline Bytes read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

inline void write_gzip(const std::string& path, const Bytes& bytes) {
  gzFile file = gzopen(path.c_str(), "wb9");
  const int written = gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  if (gzclose(file) != Z_OK || written != static_cast<int>(bytes.size())) {
    throw std::runtime_error("cannot write " + path);
  }
}

// pixels [height, width, channels]; 1, 3 or 4 channels (4: CMYK ink as given). With scans it is
// progressive.
inline void write_jpeg(const std::string& path, int height, int width, int channels,
                       const Bytes& pixels, int quality = 100,
                       const std::vector<jpeg_scan_info>& scans = {}) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error("cannot write " + path);
  jpeg_stdio_dest(&info, file);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = channels;
  info.in_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  if (!scans.empty()) {
    info.scan_info = scans.data();
    info.num_scans = static_cast<int>(scans.size());
  }
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < height; ++y) {
    Bytes row(pixels.begin() + y * width * channels, pixels.begin() + (y + 1) * width * channels);
    JSAMPROW pointer = row.data();
    jpeg_write_scanlines(&info, &pointer, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

// Everything a PNG can be: colour type and bit depth as in png.h; rows as libpng takes them
// (packed, 16 bits big-endian).
struct PngFile {
  int height = 1, width = 1;
  int colour_type = PNG_COLOR_TYPE_RGB;
  int bit_depth = 8;
  bool interlaced = false;
  Bytes rows = {};
  std::vector<png_color> palette = {};
  Bytes palette_alpha = {};
};

inline void write_png(const std::string& path, PngFile image) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error("cannot write " + path);
  png_init_io(png, file);
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), image.bit_depth, image.colour_type,
               image.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!image.palette.empty()) {
    png_set_PLTE(png, info, image.palette.data(), static_cast<int>(image.palette.size()));
  }
  if (!image.palette_alpha.empty()) {
    png_set_tRNS(png, info, image.palette_alpha.data(),
                 static_cast<int>(image.palette_alpha.size()), nullptr);
  }
  png_write_info(png, info);
  const size_t row_bytes = image.rows.size() / static_cast<size_t>(image.height);
  std::vector<png_bytep> rows;
  for (int y = 0; y < image.height; ++y) {
    rows.push_back(image.rows.data() + row_bytes * static_cast<size_t>(y));
  }
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  std::fclose(file);
}

// A one-colour JPEG or PNG, by the ending of the path.
inline void write_flat_image(const std::string& path, int height, int width, uint8_t value) {
  const Bytes pixels(static_cast<size_t>(height * width * 3), value);
  if (path.ends_with(".png")) {
    write_png(path, {.height = height, .width = width, .rows = pixels});
  } else {
    write_jpeg(path, height, width, 3, pixels);
  }
}

// An IDX file of unsigned bytes.
inline Bytes idx_bytes(const std::vector<uint32_t>& dims, const Bytes& elements) {
  Bytes bytes = {0, 0, 8, static_cast<uint8_t>(dims.size())};
  for (const uint32_t dim : dims) {
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<uint8_t>(dim >> shift));
  }
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  return bytes;
}

// The message of the exception of type E that action throws; "" if it throws none.
template <class E, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

}  // namespace headroom::test
