// JPEG and PNG files as bytes in H,W,C order. What a file is, its first bytes say, not its name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/data/dataset.h"

namespace headroom {

// More pixels than any photo has: a header that claims more is taken for damage (or an attack).
constexpr int64_t kMaxImagePixels = int64_t{1} << 27;

// Memory is taken for the pixels that a header claims only if the file is long enough to hold them:
// deflate packs at most 1032 bytes of a PNG into one, and a JPEG's smallest block of 8 x 8 pixels
// takes a bit. (Arithmetic coding could go below it, for flat pictures of megapixels.)

// Reads no further than the header. channels is 1 for gray images, with alpha or without, and 3 for
// all others. Throws DataError, naming the file, if it is not a JPEG or PNG file, or if its header
// is damaged or claims more than the file can hold.
ImageShape read_image_header(const std::string& path);

// Decodes into pixels [height, width, channels], which is resized to fit, and returns that shape.
// channels must be 3, or 1 if the file's are. Conversions:
//   gray to 3 channels  the value is repeated
//   alpha               dropped, the colour stays as stored; a palette is looked up, its alpha
//                       dropped
//   16 bits             scaled to 8; 1, 2 and 4 bits gray are scaled to 0..255
//   CMYK, YCCK (JPEG)   r = c k / 255 and so on, for the inverted inks that Adobe's files hold
// Gamma, colour profiles and EXIF orientation are not applied.
// Throws DataError, naming the file, if it is damaged or ends early.
ImageShape decode_image(const std::string& path, int64_t channels, std::vector<uint8_t>& pixels);

}  // namespace headroom
