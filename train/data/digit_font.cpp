// The font's strokes and their flattening.
#include "train/data/digit_font.h"

#include <algorithm>

namespace headroom {
namespace {

GlyphStroke straight(std::vector<GlyphPoint> points) {
  return {GlyphStroke::Kind::straight, std::move(points)};
}
GlyphStroke smooth(std::vector<GlyphPoint> points) {
  return {GlyphStroke::Kind::smooth, std::move(points)};
}
GlyphStroke closed(std::vector<GlyphPoint> points) {
  return {GlyphStroke::Kind::closed, std::move(points)};
}

// clang-format off
std::vector<std::vector<Glyph>> make_font() {
  return {
      {  // 0
          {closed({{.5f, 0}, {.16f, .18f}, {.08f, .5f}, {.16f, .82f}, {.5f, 1}, {.84f, .82f},
                   {.92f, .5f}, {.84f, .18f}})},
          {closed({{.5f, 0}, {.24f, .2f}, {.18f, .5f}, {.24f, .8f}, {.5f, 1}, {.76f, .8f},
                   {.82f, .5f}, {.76f, .2f}}),
           straight({{.32f, .78f}, {.68f, .22f}})},
          {smooth({{.62f, .05f}, {.3f, .08f}, {.1f, .5f}, {.3f, .94f}, {.66f, .93f}, {.9f, .5f},
                   {.7f, .08f}, {.42f, .06f}})},
          {straight({{.1f, 0}, {.9f, 0}, {.9f, 1}, {.1f, 1}, {.1f, 0}})},
      },
      {  // 1
          {straight({{.5f, 0}, {.5f, 1}})},
          {straight({{.25f, .28f}, {.56f, 0}, {.56f, 1}})},
          {straight({{.25f, .24f}, {.54f, 0}, {.54f, 1}}), straight({{.2f, 1}, {.86f, 1}})},
          {straight({{.66f, 0}, {.36f, 1}})},
      },
      {  // 2
          {smooth({{.1f, .25f}, {.26f, .05f}, {.55f, 0}, {.85f, .2f}, {.74f, .48f}, {.4f, .75f},
                   {.1f, 1}}),
           straight({{.1f, 1}, {.92f, 1}})},
          {smooth({{.12f, .22f}, {.45f, 0}, {.85f, .2f}, {.66f, .58f}, {.26f, .94f}, {.1f, .86f},
                   {.3f, .8f}, {.62f, .96f}, {.95f, .88f}})},
          {smooth({{.14f, .2f}, {.5f, 0}, {.86f, .24f}, {.72f, .5f}}),
           straight({{.72f, .5f}, {.1f, 1}, {.9f, 1}})},
          {straight({{.1f, 0}, {.9f, 0}, {.9f, .5f}, {.1f, .5f}, {.1f, 1}, {.9f, 1}})},
      },
      {  // 3
          {smooth({{.12f, .15f}, {.45f, 0}, {.82f, .2f}, {.75f, .4f}, {.4f, .48f}}),
           smooth({{.4f, .48f}, {.8f, .56f}, {.9f, .78f}, {.5f, 1}, {.08f, .86f}})},
          {straight({{.1f, 0}, {.85f, 0}, {.42f, .4f}}),
           smooth({{.42f, .4f}, {.8f, .48f}, {.9f, .75f}, {.5f, 1}, {.08f, .88f}})},
          {smooth({{.18f, .06f}, {.6f, .02f}, {.8f, .22f}, {.5f, .45f}, {.86f, .66f}, {.72f, .94f},
                   {.14f, .97f}})},
          {straight({{.1f, 0}, {.9f, 0}, {.9f, 1}, {.1f, 1}}), straight({{.2f, .5f}, {.9f, .5f}})},
      },
      {  // 4
          {straight({{.22f, 0}, {.12f, .58f}, {.92f, .58f}}), straight({{.7f, .22f}, {.66f, 1}})},
          {straight({{.66f, 1}, {.66f, 0}, {.06f, .68f}, {.95f, .68f}})},
          {smooth({{.3f, 0}, {.14f, .4f}, {.24f, .56f}, {.9f, .5f}}),
           straight({{.78f, .1f}, {.62f, 1}})},
          {straight({{.1f, 0}, {.1f, .5f}, {.9f, .5f}}), straight({{.9f, 0}, {.9f, 1}})},
      },
      {  // 5
          {straight({{.85f, 0}, {.22f, 0}, {.16f, .44f}}),
           smooth({{.16f, .44f}, {.5f, .36f}, {.88f, .6f}, {.72f, .92f}, {.36f, 1}, {.08f, .88f}})},
          {smooth({{.86f, .03f}, {.34f, .05f}, {.2f, .38f}, {.62f, .43f}, {.88f, .7f}, {.55f, 1},
                   {.1f, .9f}})},
          {straight({{.2f, .04f}, {.2f, .45f}}), straight({{.2f, .04f}, {.88f, .02f}}),
           smooth({{.2f, .45f}, {.66f, .4f}, {.9f, .68f}, {.6f, .98f}, {.12f, .94f}})},
          {straight({{.9f, 0}, {.1f, 0}, {.1f, .5f}, {.9f, .5f}, {.9f, 1}, {.1f, 1}})},
      },
      {  // 6
          {smooth({{.76f, .03f}, {.36f, .22f}, {.12f, .62f}, {.3f, .95f}, {.64f, .99f},
                   {.88f, .74f}, {.68f, .5f}, {.35f, .52f}, {.14f, .72f}})},
          {smooth({{.58f, 0}, {.24f, .42f}, {.12f, .72f}}),
           closed({{.5f, .46f}, {.12f, .73f}, {.5f, 1}, {.88f, .73f}})},
          {smooth({{.84f, .12f}, {.55f, 0}, {.2f, .2f}, {.1f, .65f}, {.42f, 1}, {.84f, .8f},
                   {.74f, .52f}, {.4f, .46f}, {.14f, .62f}})},
          {straight({{.9f, 0}, {.1f, 0}, {.1f, 1}, {.9f, 1}, {.9f, .5f}, {.1f, .5f}})},
      },
      {  // 7
          {straight({{.08f, 0}, {.92f, 0}, {.36f, 1}})},
          {straight({{.08f, 0}, {.92f, 0}, {.4f, 1}}), straight({{.28f, .5f}, {.82f, .5f}})},
          {straight({{.1f, .16f}, {.12f, .02f}, {.9f, .02f}}),
           smooth({{.9f, .02f}, {.6f, .45f}, {.46f, 1}})},
          {straight({{.1f, 0}, {.9f, 0}, {.9f, 1}})},
      },
      {  // 8
          {closed({{.5f, 0}, {.18f, .22f}, {.5f, .46f}, {.82f, .22f}}),
           closed({{.5f, .46f}, {.1f, .74f}, {.5f, 1}, {.9f, .74f}})},
          {closed({{.78f, .1f}, {.45f, .01f}, {.2f, .2f}, {.5f, .46f}, {.86f, .76f}, {.5f, 1},
                   {.14f, .76f}, {.5f, .48f}, {.82f, .24f}})},
          {closed({{.5f, .02f}, {.24f, .22f}, {.5f, .42f}, {.76f, .22f}}),
           closed({{.5f, .42f}, {.16f, .56f}, {.14f, .84f}, {.5f, 1}, {.86f, .84f},
                   {.84f, .56f}})},
          {straight({{.1f, 0}, {.9f, 0}, {.9f, 1}, {.1f, 1}, {.1f, 0}}),
           straight({{.1f, .5f}, {.9f, .5f}})},
      },
      {  // 9
          {closed({{.5f, 0}, {.12f, .27f}, {.5f, .54f}, {.86f, .27f}}),
           smooth({{.86f, .27f}, {.84f, .6f}, {.7f, 1}})},
          {smooth({{.86f, .22f}, {.52f, 0}, {.13f, .25f}, {.42f, .52f}, {.82f, .34f}, {.87f, .14f},
                   {.84f, .6f}, {.52f, 1}, {.18f, .9f}})},
          {closed({{.48f, .02f}, {.14f, .26f}, {.46f, .5f}, {.84f, .24f}}),
           straight({{.84f, .06f}, {.84f, 1}})},
          {straight({{.9f, .5f}, {.1f, .5f}, {.1f, 0}, {.9f, 0}, {.9f, 1}, {.1f, 1}})},
      },
  };
}
// clang-format on

// The point at t in [0, 1] between b and c, of the uniform Catmull-Rom spline through a, b, c, d.
GlyphPoint catmull_rom(GlyphPoint a, GlyphPoint b, GlyphPoint c, GlyphPoint d, float t) {
  const auto along = [t](float p, float q, float r, float s) {
    return 0.5f *
           (2 * q + t * (r - p + t * (2 * p - 5 * q + 4 * r - s + t * (3 * (q - r) + s - p))));
  };
  return {along(a.x, b.x, c.x, d.x), along(a.y, b.y, c.y, d.y)};
}

}  // namespace

const std::vector<std::vector<Glyph>>& digit_font() {
  static const std::vector<std::vector<Glyph>> font = make_font();
  return font;
}

std::vector<GlyphPoint> flatten(const GlyphStroke& stroke) {
  constexpr int kSteps = 8;
  const std::vector<GlyphPoint>& points = stroke.points;
  if (stroke.kind == GlyphStroke::Kind::straight) return points;
  const bool closed = stroke.kind == GlyphStroke::Kind::closed;
  const int count = static_cast<int>(points.size());
  const auto at = [&](int i) {
    return points[closed ? (i + count) % count : std::clamp(i, 0, count - 1)];
  };
  std::vector<GlyphPoint> chain = {points[0]};
  for (int i = 0; i < (closed ? count : count - 1); ++i) {
    for (int step = 1; step <= kSteps; ++step) {
      chain.push_back(
          catmull_rom(at(i - 1), at(i), at(i + 1), at(i + 2), static_cast<float>(step) / kSteps));
    }
  }
  return chain;
}

}  // namespace headroom
