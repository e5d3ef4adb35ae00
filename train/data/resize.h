// Resizing of images to a square, on bytes and in integers, so that every machine gets the same
// pixels.
#pragma once

#include <cstdint>
#include <memory>

#include "train/data/dataset.h"

namespace headroom {

// Scales `from` [height, width, channels] so that its shorter side becomes `side`, and writes the
// centre square of the result to `to` [side, side, channels].
// The filter is the triangle (bilinear) of one output pixel's width, at least one input pixel: when
// shrinking, it averages over all pixels that fall into an output pixel (no aliasing), when
// enlarging it is plain bilinear interpolation. Only the pixels of the square are computed. The
// longer side is floor(longer * side / shorter) before cropping, as in torchvision's Resize and
// CenterCrop.
void resize_to_square(const uint8_t* from, const ImageShape& shape, uint8_t* to, int64_t side);

// `source` with every image resized to side x side as it is read; `source` itself if it has that
// shape.
std::unique_ptr<Dataset> resized(std::unique_ptr<Dataset> source, int64_t side);

}  // namespace headroom
