// Pages for a browser, each one file that needs nothing else.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace headroom {

// Of what --json of memory-compare holds (compare/comparison.h).
std::string page_of_comparison(const nlohmann::ordered_json& comparison);

}  // namespace headroom
