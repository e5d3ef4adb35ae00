// The kinds of flags that the table of `train` is made of. Each makes a Flag for a field of the
// configuration, whose default it shows.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "train/flags.h"

namespace headroom::flag_kinds {

// The words that a flag takes, and what they stand for.
template <class E>
using NamedValues = std::vector<std::pair<const char*, E>>;

std::string joined(const std::vector<std::string>& names, const char* separator);

template <class E>
std::vector<std::string> names_of(const NamedValues<E>& values) {
  std::vector<std::string> out;
  for (const auto& entry : values) out.emplace_back(entry.first);
  return out;
}

template <class E>
E parse_name(const std::string& flag, const std::string& text, const NamedValues<E>& values) {
  for (const auto& entry : values) {
    if (text == entry.first) return entry.second;
  }
  throw InvalidArgument(
      detail::concat(flag, ": allowed are ", joined(names_of(values), ", "), "; got '", text, "'"));
}

template <class E>
const char* name_in(const NamedValues<E>& values, E value) {
  for (const auto& entry : values) {
    if (entry.second == value) return entry.first;
  }
  return "?";
}

// Without set and show.
Flag value_flag(const std::string& name, const std::string& placeholder, const std::string& help,
                const std::string& default_text);

// `low` is the smallest value that may be given; a field below it is one left open. validate() has
// the largest.
Flag integer(const std::string& name, int64_t TrainConfig::*field, int64_t low,
             const std::string& help, const std::string& default_text = {});

Flag real(const std::string& name, double TrainConfig::*field, const std::string& help,
          const std::string& default_text = {});

Flag bytes(const std::string& name, int64_t TrainConfig::*field, const std::string& help,
           const std::string& default_text = {});

Flag text(const std::string& name, std::string TrainConfig::*field, const std::string& placeholder,
          const std::string& help, const std::string& default_text);

// A name that validate() looks up.
Flag name(const std::string& flag_name, std::string TrainConfig::*field,
          const std::vector<std::string>& names, const std::string& help);

// `values` must live as long as the flag.
template <class E>
Flag choice(const std::string& name, E TrainConfig::*field, const NamedValues<E>& values,
            const std::string& help) {
  Flag flag =
      value_flag(name, joined(names_of(values), "|"), help, name_in(values, TrainConfig{}.*field));
  flag.set = [name, field, &values](TrainConfig& c, const std::string& value) {
    c.*field = parse_name(name, value, values);
  };
  flag.show = [field, &values](const TrainConfig& c) {
    return nlohmann::ordered_json(name_in(values, c.*field));
  };
  return flag;
}

// A flag without a value that makes the field `value`.
Flag toggle(const std::string& name, bool TrainConfig::*field, bool value, const std::string& help);

// The second of a pair, whose value the first one shows.
Flag hidden_in_reports(Flag flag);

}  // namespace headroom::flag_kinds
