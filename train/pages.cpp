// Putting the parts of a page together. The parts are the files of train/pages, embedded at build
// time.
#include "train/pages.h"

#include <string_view>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "train/page_texts.h"

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

// JSON that no HTML parser can take for the end of the script element, or for a comment in it: "<"
// occurs within strings alone, where \u003c means the same. Bytes that are not UTF-8, possible in
// names of files, become U+FFFD.
std::string json_for_html(const Json& data) {
  const std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

// The template with `text` in the place of the mark, which stands in it once. What was put in
// before is not searched, for data may contain any mark.
class Page {
 public:
  explicit Page(std::string_view rest) : rest_(rest) {}

  void put(std::string_view mark, std::string_view text) {
    const size_t at = rest_.find(mark);
    CHECK(at != std::string_view::npos, "page: its template has no ", mark);
    out_ += rest_.substr(0, at);
    out_ += text;
    rest_.remove_prefix(at + mark.size());
  }
  std::string finish() { return out_ += rest_; }

 private:
  std::string out_;
  std::string_view rest_;
};

std::string make_page(std::string_view html, const Json& data) {
  Page page(html);
  page.put("/* common.css */", page_texts::common_css);
  page.put("/* data */", json_for_html(data));
  page.put("/* common.js */", page_texts::common_js);
  return page.finish();
}

}  // namespace

std::string page_of_memory_report(const Json& data) {
  return make_page(page_texts::memory_report_html, data);
}

std::string page_of_comparison(const Json& data) {
  return make_page(page_texts::comparison_html, data);
}

}  // namespace headroom
