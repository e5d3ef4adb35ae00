// The text of the pages: what goes in comes out again, and nothing is loaded from elsewhere.
#include "train/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/memory/tag.h"
#include "tests/train/page_samples.h"
#include "train/page_texts.h"

namespace headroom::test {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDataBegin = "<script type=\"application/json\" id=\"data\">";

// What a browser takes for the data: all up to the first end of a script element.
Json data_of(const std::string& page) {
  const size_t begin = page.find(kDataBegin);
  if (begin == std::string::npos) return nullptr;
  const size_t text = begin + std::string(kDataBegin).size();
  return Json::parse(page.substr(text, page.find("</script", text) - text), nullptr, false);
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

struct PageKind {
  const char* name;
  std::string (*make)(const Json&);
};
const std::array<PageKind, 2> kPages = {PageKind{"comparison", page_of_comparison},
                                        PageKind{"memory report", page_of_memory_report}};

TEST(Pages, GiveBackTheDataThatTheyHold) {
  const Json data = sample_comparison();
  for (const PageKind& page : kPages) EXPECT_EQ(data_of(page.make(data)), data) << page.name;
}

TEST(Pages, TakeAnyTextAsText) {
  Json data = sample_comparison();
  const std::vector<std::string> texts = {
      "</script><script>throw 1</script>",           "<!-- <script>",   "]]>",
      "\"quoted\" \\ \n\t and \xE2\x80\xA8",  // the line separator that ends a line of JavaScript
      "/* common.js */ /* common.css */ /* data */", "&lt;/script&gt;", "</SCRIPT >"};
  for (const std::string& text : texts) {
    data["rows"][0]["name"] = text;
    for (const PageKind& page : kPages) {
      const std::string html = page.make(data), plain = page.make(Json::object());
      EXPECT_EQ(data_of(html), data) << page.name << ": " << text;
      for (const char* part : {"<script", "</script", "</SCRIPT", "<!--"}) {
        EXPECT_EQ(count_of(html, part), count_of(plain, part)) << page.name << ": " << text;
      }
    }
  }
}

TEST(Pages, ReplaceBytesThatAreNotText) {
  const std::string html = page_of_comparison({{"model", "a\xFF"}});
  EXPECT_EQ(data_of(html)["model"], "a\xEF\xBF\xBD");
}

TEST(Pages, AreSmallWithoutTheirData) {
  constexpr size_t kLimitBytes = 60 << 10;
  for (const PageKind& page : kPages) {
    const std::string html = page.make(Json::object());
    EXPECT_LT(html.size(), kLimitBytes) << page.name;
    EXPECT_TRUE(html.starts_with("<!DOCTYPE html>")) << page.name;
    EXPECT_TRUE(html.ends_with("</html>\n")) << page.name;
  }
}

TEST(Pages, LoadNothing) {
  for (const PageKind& page : kPages) {
    const std::string html = page.make(Json::object());
    for (const char* part : {"http://", "https://", "src=", "href=", "url(", "@import", "fetch(",
                             "XMLHttpRequest", "import(", "WebSocket", "<link", "<img"}) {
      EXPECT_EQ(html.find(part), std::string::npos) << page.name << " has " << part;
    }
    // And a browser holds them to it.
    EXPECT_NE(html.find("default-src 'none'"), std::string::npos) << page.name;
  }
}

// ---- Colours ----

using Color = std::array<double, 3>;  // linear red, green, blue

// The colour of each tag in a part of the style sheet: "--parameter: #575eb7;".
std::map<std::string, Color> palette_in(const std::string& css, const Json& tags) {
  std::map<std::string, Color> out;
  for (const Json& tag : tags) {
    const std::string name = "--" + tag.get<std::string>() + ": #";
    const size_t at = css.find(name);
    if (at == std::string::npos) continue;
    Color color;
    for (size_t i = 0; i < 3; ++i) {
      const double s = std::stoi(css.substr(at + name.size() + 2 * i, 2), nullptr, 16) / 255.0;
      color[i] = s <= 0.04045 ? s / 12.92 : std::pow((s + 0.055) / 1.055, 2.4);
    }
    out[tag.get<std::string>()] = color;
  }
  return out;
}

using Matrix = std::array<Color, 3>;

Color times(const Matrix& m, const Color& c) {
  Color out{};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) out[i] += m[i][j] * c[j];
  }
  return out;
}

// Oklab, in which distances are as large as they look.
Color oklab(const Color& rgb) {
  Color lms = times({{{0.4122214708, 0.5363325363, 0.0514459929},
                      {0.2119034982, 0.6806995451, 0.1073969566},
                      {0.0883024619, 0.2817188376, 0.6299787005}}},
                    rgb);
  for (double& each : lms) each = std::cbrt(each);
  return times({{{0.2104542553, 0.7936177850, -0.0040720468},
                 {1.9779984951, -2.4285922050, 0.4505937099},
                 {0.0259040371, 0.7827717662, -0.8086757660}}},
               lms);
}

double distance(const Color& a, const Color& b) {
  return std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

// What a reader without one kind of cone sees (Machado, Oliveira and Fernandes 2009, severity 1).
const std::map<std::string, Matrix> kVisions = {
    {"three cones", {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}}},
    {"protanopia",
     {{{0.152286, 1.052583, -0.204868},
       {0.114503, 0.786281, 0.099216},
       {-0.003882, -0.048116, 1.051998}}}},
    {"deuteranopia",
     {{{0.367322, 0.860646, -0.227968},
       {0.280085, 0.672501, 0.047413},
       {-0.011820, 0.042940, 0.968881}}}},
    {"tritanopia",
     {{{1.255528, -0.076749, -0.178779},
       {-0.078411, 0.930809, 0.147602},
       {0.004733, 0.691367, 0.303900}}}}};

Color seen(const Matrix& vision, const Color& color) {
  Color out = times(vision, color);
  for (double& each : out) each = std::clamp(each, 0.0, 1.0);
  return oklab(out);
}

TEST(Pages, ColoursOfTagsStayApartForColourBlindReaders) {
  const std::string css(page_texts::common_css);
  const size_t dark_at = css.find("prefers-color-scheme: dark");
  ASSERT_NE(dark_at, std::string::npos);
  const Json tags = {"parameter", "gradient",  "optimizer_state", "buffer",    "saved_activation",
                     "cast_copy", "workspace", "input",           "temporary", "other"};
  // Text-book just noticeable differences are near 0.02; patches side by side need a few of them.
  constexpr double kApart = 0.06;
  for (const bool dark : {false, true}) {
    const auto palette = palette_in(dark ? css.substr(dark_at) : css.substr(0, dark_at), tags);
    ASSERT_EQ(palette.size(), tags.size()) << (dark ? "dark" : "light");
    for (const auto& [vision, matrix] : kVisions) {
      for (auto a = palette.begin(); a != palette.end(); ++a) {
        for (auto b = std::next(a); b != palette.end(); ++b) {
          EXPECT_GT(distance(seen(matrix, a->second), seen(matrix, b->second)), kApart)
              << a->first << " and " << b->first << ", " << vision << (dark ? ", dark" : ", light");
        }
      }
    }
  }
}

TEST(Pages, KnowAColourAndAPlaceInTheStackForEveryTag) {
  const std::string css(page_texts::common_css), script(page_texts::common_js);
  const size_t stack = script.find("const kTags");
  const std::string tags = script.substr(stack, script.find("];", stack) - stack);
  for (int tag = 0; tag < kTagCount; ++tag) {
    const std::string name = name_of(static_cast<Tag>(tag));
    EXPECT_EQ(count_of(css, "--" + name + ": #"), 2u) << name;  // light and dark
    EXPECT_EQ(count_of(tags, '"' + name + '"'), 1u) << name;
  }
}

}  // namespace
}  // namespace headroom::test
