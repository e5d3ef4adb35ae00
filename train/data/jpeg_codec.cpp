// JPEG through libjpeg-turbo's classic interface.
//
// libjpeg reports an error by calling error_exit, which must not return. It jumps back to the one
// setjmp of the call. Everything that lives across a jump is in a JpegReader, made before the
// setjmp and destroyed after it; between the two there are only plain values, so no destructor is
// jumped over.
#include <cstddef>
#include <cstdint>
#include <cstdio>
// jpeglib.h needs the three above.
#include <jerror.h>
#include <jpeglib.h>

#include <csetjmp>
#include <cstring>

#include "train/data/image_codec.h"

namespace headroom::codec {
namespace {

struct JpegReader {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX] = "";
  bool made = false;          // jpeg_create_decompress has run
  std::vector<uint8_t> inks;  // one CMYK row

  JpegReader() = default;
  ~JpegReader() {
    if (made) jpeg_destroy_decompress(&info);
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;
};

[[noreturn]] void fail(j_common_ptr info) {
  auto* reader = static_cast<JpegReader*>(info->client_data);
  info->err->format_message(info, reader->message);
  std::longjmp(reader->on_error, 1);
}

// Warnings are errors here, because most tell of lost pixels, and a picture that is half gray
// trains, only worse. Excepted are those that are common in the wild and lose nothing.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;  // a trace
  switch (info->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_ICC:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      break;
    default:
      fail(info);
  }
}

void ignore_message(j_common_ptr) {}

// A scan of a few bytes may go over the whole picture, so a small file could keep a thread busy for
// hours. Encoders write about ten scans.
void limit_scans(j_common_ptr info) {
  constexpr int kMaxScans = 100;
  auto* reader = static_cast<JpegReader*>(info->client_data);
  if (reader->info.input_scan_number <= kMaxScans) return;
  std::snprintf(reader->message, sizeof reader->message, "has more than %d scans", kMaxScans);
  std::longjmp(reader->on_error, 1);
}

void start(JpegReader& reader, std::FILE* file) {
  reader.info.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = fail;
  reader.errors.emit_message = on_message;
  reader.errors.output_message = ignore_message;
  reader.info.client_data = &reader;
  jpeg_create_decompress(&reader.info);
  reader.made = true;
  reader.progress.progress_monitor = limit_scans;
  reader.info.progress = &reader.progress;
  jpeg_stdio_src(&reader.info, file);
  jpeg_read_header(&reader.info, TRUE);
}

ImageShape shape_of(const jpeg_decompress_struct& info, std::FILE* file) {
  constexpr int64_t kMaxPixelsPerByte = 8 * DCTSIZE2;
  const int64_t height = info.image_height, width = info.image_width;
  check_image_size(height, width);
  check_file_holds(file, height, width, height * width / kMaxPixelsPerByte);
  return {info.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3, info.image_height, info.image_width};
}

// Adobe's files hold inverted inks: 255 is no ink. Others hold ink.
void inks_to_rgb(const uint8_t* inks, bool inverted, int64_t width, uint8_t* rgb) {
  for (int64_t x = 0; x < width; ++x, inks += 4) {
    const int black = inverted ? inks[3] : 255 - inks[3];
    for (int c = 0; c < 3; ++c) {
      const int ink = inverted ? inks[c] : 255 - inks[c];
      *rgb++ = static_cast<uint8_t>((ink * black + 127) / 255);
    }
  }
}

void decode_rows(JpegReader& reader, int64_t channels, std::vector<uint8_t>& pixels) {
  jpeg_decompress_struct& info = reader.info;
  const bool inks = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = inks ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  // The exact integer transform, whatever the library's build takes as its default.
  info.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&info);
  const int64_t width = info.output_width, row_bytes = width * channels;
  pixels.resize(static_cast<size_t>(row_bytes * info.output_height));
  if (inks) reader.inks.resize(static_cast<size_t>(4 * width));
  while (info.output_scanline < info.output_height) {
    uint8_t* out = pixels.data() + info.output_scanline * row_bytes;
    JSAMPROW row = inks ? reader.inks.data() : out;
    jpeg_read_scanlines(&info, &row, 1);
    if (inks) inks_to_rgb(row, info.saw_Adobe_marker, width, out);
  }
  jpeg_finish_decompress(&info);
}

}  // namespace

ImageShape jpeg_header(std::FILE* file) {
  JpegReader reader;
  if (setjmp(reader.on_error) != 0) throw DataError(reader.message);
  start(reader, file);
  return shape_of(reader.info, file);
}

ImageShape jpeg_decode(std::FILE* file, int64_t channels, std::vector<uint8_t>& pixels) {
  JpegReader reader;
  if (setjmp(reader.on_error) != 0) throw DataError(reader.message);
  start(reader, file);
  ImageShape shape = shape_of(reader.info, file);
  if (channels < shape.channels) throw DataError("has colour where a gray image is needed");
  decode_rows(reader, channels, pixels);
  shape.channels = channels;
  return shape;
}

}  // namespace headroom::codec
