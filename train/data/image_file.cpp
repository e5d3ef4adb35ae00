// Opens image files, tells their format and puts their names into errors.
#include "train/data/image_file.h"

#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "train/data/image_codec.h"

namespace headroom {
namespace {

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

enum class Format { jpeg, png };

Format tell_format(std::FILE* file) {
  constexpr std::array<uint8_t, 3> kJpeg = {0xFF, 0xD8, 0xFF};
  constexpr std::array<uint8_t, 8> kPng = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  std::array<uint8_t, 8> start = {};
  const size_t got = std::fread(start.data(), 1, start.size(), file);
  std::rewind(file);
  if (got == 0) throw DataError("the file is empty or cannot be read");
  if (std::memcmp(start.data(), kJpeg.data(), kJpeg.size()) == 0) return Format::jpeg;
  if (start == kPng) return Format::png;
  throw DataError("is neither a JPEG nor a PNG file");
}

// Calls body(format, file) and puts the path into what it throws.
template <class Body>
ImageShape with_file(const std::string& path, const Body& body) {
  try {
    const File file(std::fopen(path.c_str(), "rb"));
    if (!file) throw DataError(std::strerror(errno));
    return body(tell_format(file.get()), file.get());
  } catch (const DataError& error) {
    throw DataError(detail::concat("image: ", path, ": ", error.what()));
  }
}

}  // namespace

namespace codec {

void check_image_size(int64_t height, int64_t width) {
  if (height <= 0 || width <= 0) throw DataError("the image has no pixels");
  if (height > kMaxImagePixels / width) {
    throw DataError(detail::concat("the header claims ", width, " x ", height,
                                   " pixels, the most is ", kMaxImagePixels));
  }
}

void check_file_holds(std::FILE* file, int64_t height, int64_t width, int64_t least_bytes) {
  struct stat status;
  if (fstat(fileno(file), &status) != 0) throw DataError(std::strerror(errno));
  // Of a pipe the length is not known.
  if (S_ISREG(status.st_mode) && least_bytes > status.st_size) {
    throw DataError(detail::concat("the header claims ", width, " x ", height,
                                   " pixels, which take at least ", least_bytes,
                                   " bytes, and the file has ", status.st_size));
  }
}

}  // namespace codec

ImageShape read_image_header(const std::string& path) {
  return with_file(path, [](Format format, std::FILE* file) {
    return format == Format::jpeg ? codec::jpeg_header(file) : codec::png_header(file);
  });
}

ImageShape decode_image(const std::string& path, int64_t channels, std::vector<uint8_t>& pixels) {
  CHECK(channels == 1 || channels == 3, "decode_image: ", channels, " channels");
  return with_file(path, [&](Format format, std::FILE* file) {
    return format == Format::jpeg ? codec::jpeg_decode(file, channels, pixels)
                                  : codec::png_decode(file, channels, pixels);
  });
}

}  // namespace headroom
