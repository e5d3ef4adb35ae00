// PNG through libpng. Errors jump, as in jpeg_codec.cpp, and are kept away from C++ objects
// likewise.
#include <png.h>

#include <csetjmp>
#include <cstring>

#include "train/data/image_codec.h"
#include "train/data/image_file.h"

namespace headroom::codec {
namespace {

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf on_error;
  char message[256] = "";
  std::vector<png_bytep> rows;

  PngReader() = default;
  ~PngReader() {
    if (png != nullptr) png_destroy_read_struct(&png, &info, nullptr);
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
};

[[noreturn]] void fail(png_structp png, png_const_charp message) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::strncpy(reader->message, message, sizeof reader->message - 1);
  std::longjmp(reader->on_error, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

void start(PngReader& reader, std::FILE* file) {
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, fail, ignore_warning);
  if (reader.png == nullptr) throw DataError("libpng cannot be started");
  reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) throw DataError("libpng cannot be started");
  png_init_io(reader.png, file);
  // Of what a picture does not need, libpng would hold whole chunks, of the length they claim.
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_set_user_limits(reader.png, kMaxImagePixels, kMaxImagePixels);
  png_read_info(reader.png, reader.info);
}

ImageShape shape_of(const PngReader& reader, std::FILE* file) {
  constexpr int64_t kMaxInflation = 1032;  // zlib, "Maximum Compression Factor"
  const int64_t height = png_get_image_height(reader.png, reader.info);
  const int64_t width = png_get_image_width(reader.png, reader.info);
  check_image_size(height, width);
  const auto row_bytes = static_cast<int64_t>(png_get_rowbytes(reader.png, reader.info));
  check_file_holds(file, height, width, height * row_bytes / kMaxInflation);
  // PNG_COLOR_MASK_COLOR is set for a palette too.
  const bool colour = png_get_color_type(reader.png, reader.info) & PNG_COLOR_MASK_COLOR;
  return {colour ? 3 : 1, height, width};
}

void decode_rows(PngReader& reader, const ImageShape& shape, std::vector<uint8_t>& pixels) {
  png_structp png = reader.png;
  png_set_scale_16(png);
  const png_byte type = png_get_color_type(png, reader.info);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (type == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png);
  // A transparent colour or palette entry is not expanded to alpha, except by the look-up of a
  // palette, so stripping covers all.
  png_set_strip_alpha(png);
  if (shape.channels == 3) png_set_gray_to_rgb(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, reader.info);
  const auto row_bytes = static_cast<int64_t>(png_get_rowbytes(png, reader.info));
  if (row_bytes != shape.width * shape.channels) throw DataError("unexpected pixel format");
  pixels.resize(static_cast<size_t>(row_bytes * shape.height));
  reader.rows.resize(static_cast<size_t>(shape.height));
  for (int64_t y = 0; y < shape.height; ++y) reader.rows[y] = pixels.data() + y * row_bytes;
  png_read_image(png, reader.rows.data());
  png_read_end(png, nullptr);
}

}  // namespace

ImageShape png_header(std::FILE* file) {
  PngReader reader;
  if (setjmp(reader.on_error) != 0) throw DataError(reader.message);
  start(reader, file);
  return shape_of(reader, file);
}

ImageShape png_decode(std::FILE* file, int64_t channels, std::vector<uint8_t>& pixels) {
  PngReader reader;
  if (setjmp(reader.on_error) != 0) throw DataError(reader.message);
  start(reader, file);
  ImageShape shape = shape_of(reader, file);
  if (channels < shape.channels) throw DataError("has colour where a gray image is needed");
  shape.channels = channels;
  decode_rows(reader, shape, pixels);
  return shape;
}

}  // namespace headroom::codec
