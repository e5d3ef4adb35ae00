// Reading and showing values.
#include "train/flag_kinds.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/memory/caching_allocator.h"
#include "train/parse_value.h"

namespace headroom::flag_kinds {
namespace {

using Json = nlohmann::ordered_json;

// "--weight-decay" has the key "weight_decay".
std::string key_of(const std::string& name) {
  std::string key = name.substr(2);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

}  // namespace

std::string joined(const std::vector<std::string>& names, const char* separator) {
  return fmt::format("{}", fmt::join(names, separator));
}

Flag value_flag(const std::string& name, const std::string& placeholder, const std::string& help,
                const std::string& default_text) {
  Flag flag;
  flag.name = name;
  flag.placeholder = placeholder;
  flag.help = help;
  flag.default_text = default_text;
  flag.key = key_of(name);
  return flag;
}

Flag integer(const std::string& name, int64_t TrainConfig::*field, int64_t low,
             const std::string& help, const std::string& default_text) {
  const int64_t initial = TrainConfig{}.*field;
  const bool has_default = default_text.empty() && initial >= low;
  Flag flag = value_flag(name, "N", help, has_default ? std::to_string(initial) : default_text);
  flag.set = [name, field, low](TrainConfig& c, const std::string& text) {
    c.*field = parse_integer(name, text);
    CHECK_ARG(c.*field >= low, name, ": must be at least ", low, ", got ", text);
  };
  flag.show = [field, low](const TrainConfig& c) {
    return c.*field < low ? Json(nullptr) : Json(c.*field);
  };
  return flag;
}

Flag real(const std::string& name, double TrainConfig::*field, const std::string& help,
          const std::string& default_text) {
  Flag flag =
      value_flag(name, "X", help,
                 default_text.empty() ? fmt::format("{}", TrainConfig{}.*field) : default_text);
  flag.set = [name, field](TrainConfig& c, const std::string& text) {
    c.*field = parse_real(name, text);
  };
  flag.show = [field](const TrainConfig& c) { return Json(c.*field); };
  return flag;
}

Flag bytes(const std::string& name, int64_t TrainConfig::*field, const std::string& help,
           const std::string& default_text) {
  Flag flag = value_flag(name, "SIZE", help,
                         default_text.empty() ? format_bytes(TrainConfig{}.*field) : default_text);
  flag.set = [name, field](TrainConfig& c, const std::string& text) {
    c.*field = parse_bytes(name, text);
  };
  flag.show = [field](const TrainConfig& c) { return Json(c.*field); };
  return flag;
}

Flag text(const std::string& name, std::string TrainConfig::*field, const std::string& placeholder,
          const std::string& help, const std::string& default_text) {
  Flag flag = value_flag(name, placeholder, help,
                         default_text.empty() ? TrainConfig{}.*field : default_text);
  flag.set = [name, placeholder, field](TrainConfig& c, const std::string& value) {
    CHECK_ARG(!value.empty() && value[0] != '-', name, ": needs ", placeholder, ", got '", value,
              "' (a name that begins with '-' can be written ./-name)");
    c.*field = value;
  };
  flag.show = [field](const TrainConfig& c) {
    return (c.*field).empty() ? Json(nullptr) : Json(c.*field);
  };
  return flag;
}

Flag name(const std::string& flag_name, std::string TrainConfig::*field,
          const std::vector<std::string>& names, const std::string& help) {
  Flag flag =
      value_flag(flag_name, "NAME", help + ": " + joined(names, ", "), TrainConfig{}.*field);
  flag.set = [field](TrainConfig& c, const std::string& value) { c.*field = value; };
  flag.show = [field](const TrainConfig& c) { return Json(c.*field); };
  return flag;
}

Flag toggle(const std::string& name, bool TrainConfig::*field, bool value,
            const std::string& help) {
  Flag flag = value_flag(name, "", help, "");
  flag.kind = FlagKind::toggle;
  flag.set = [field, value](TrainConfig& c, const std::string&) { c.*field = value; };
  // "--no-cudnn" is shown as "cudnn": false.
  if (!value) flag.key = key_of("--" + name.substr(std::string("--no-").size()));
  flag.show = [field](const TrainConfig& c) { return Json(c.*field); };
  return flag;
}

Flag hidden_in_reports(Flag flag) {
  flag.key.clear();
  flag.show = nullptr;
  return flag;
}

}  // namespace headroom::flag_kinds
