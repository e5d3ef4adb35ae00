// A small vector font of the ten digits, several styles of each, from round handwriting to the
// seven segments of a display.
#pragma once

#include <vector>

namespace headroom {

// In a box of 1 x 1: x to the right, y downwards.
struct GlyphPoint {
  float x = 0, y = 0;
};

struct GlyphStroke {
  enum class Kind {
    straight,  // lines from point to point
    smooth,    // a Catmull-Rom curve through the points
    closed,    // the same, back to the first point
  };
  Kind kind = Kind::straight;
  std::vector<GlyphPoint> points;  // two or more
};

using Glyph = std::vector<GlyphStroke>;

// digit_font()[digit]: the styles of a digit, at least three.
const std::vector<std::vector<Glyph>>& digit_font();

// The stroke as a chain of points joined by lines, eight per curved span.
std::vector<GlyphPoint> flatten(const GlyphStroke& stroke);

}  // namespace headroom
