// Readers of numbers and sizes.
#include "train/parse_value.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "core/base/error.h"

namespace headroom {
namespace {

// True if the whole text is one number of type T in range.
template <class T>
bool read_whole(const std::string& text, T& out) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  return error == std::errc{} && stop == end;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

struct Unit {
  const char* name;
  double bytes;
};
constexpr Unit kUnits[] = {{"", 1},         {"b", 1},        {"kib", 0x1p10}, {"mib", 0x1p20},
                           {"gib", 0x1p30}, {"tib", 0x1p40}, {"kb", 1e3},     {"mb", 1e6},
                           {"gb", 1e9},     {"tb", 1e12}};

}  // namespace

int64_t parse_integer(const std::string& flag, const std::string& text) {
  int64_t value = 0;
  CHECK_ARG(read_whole(text, value), flag, ": needs a whole number such as 16, got '", text, "'");
  return value;
}

uint64_t parse_unsigned(const std::string& flag, const std::string& text) {
  uint64_t value = 0;
  CHECK_ARG(read_whole(text, value), flag, ": needs a whole number in 0 .. ", UINT64_MAX, ", got '",
            text, "'");
  return value;
}

double parse_real(const std::string& flag, const std::string& text) {
  double value = 0;
  CHECK_ARG(read_whole(text, value) && std::isfinite(value), flag,
            ": needs a decimal number such as 0.05 or 1e-3, got '", text, "'");
  return value;
}

int64_t parse_bytes(const std::string& flag, const std::string& text) {
  constexpr double kMaxBytes = 0x1p62;
  const size_t digits = std::min(text.find_first_not_of("0123456789.eE+-"), text.size());
  const size_t unit_begin = std::min(text.find_first_not_of(' ', digits), text.size());
  const std::string unit = lower(text.substr(unit_begin));
  const auto* found = std::find_if(std::begin(kUnits), std::end(kUnits),
                                   [&](const Unit& known) { return unit == known.name; });
  double number = 0;
  const bool is_size = found != std::end(kUnits) && read_whole(text.substr(0, digits), number) &&
                       number >= 0 && number * found->bytes <= kMaxBytes;
  CHECK_ARG(is_size, flag,
            ": needs a size such as 512MiB, 1.5GiB or 800MB (KiB, MiB, GiB, TiB; KB, MB, GB, TB), ",
            "or a number of bytes, got '", text, "'");
  // Parts of a KiB need not be whole bytes: 1.1GiB is rounded down.
  CHECK_ARG(found->bytes > 1 || number == std::floor(number), flag,
            ": is a fraction of a byte, got '", text, "'; with a unit it is a size, as in 1.5GiB");
  const auto bytes = static_cast<int64_t>(number * found->bytes);
  CHECK_ARG(bytes > 0 || number == 0, flag, ": is less than a byte, got '", text, "'");
  return bytes;
}

}  // namespace headroom
