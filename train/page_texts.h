// The files of train/pages as texts. Their definitions are generated at build time by
// cmake/HeadroomEmbed.cmake.
#pragma once

#include <string_view>

namespace headroom::page_texts {

extern const std::string_view common_css;
extern const std::string_view common_js;
extern const std::string_view comparison_html;
extern const std::string_view memory_report_html;

}  // namespace headroom::page_texts
