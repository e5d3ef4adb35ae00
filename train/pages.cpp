// A page that holds the data and nothing else.
#include "train/pages.h"

#include <nlohmann/json.hpp>

namespace headroom {

std::string page_of_comparison(const nlohmann::ordered_json& comparison) {
  const std::string text =
      comparison.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string escaped;
  for (const char c : text) {
    escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return "<!doctype html>\n<meta charset=\"utf-8\">\n<title>memory-compare</title>\n<pre>" +
         escaped + "</pre>\n";
}

}  // namespace headroom
