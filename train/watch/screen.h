// A text of many lines that is drawn again and again on a terminal.
#pragma once

#include <cstdio>
#include <string>

#include "train/terminal.h"

namespace headroom {

// The text as it fits: lines are cut to the columns, and the last one says how many are missing.
std::string fitted(const std::string& text, TerminalSize size);

// The terminal's other screen, while it lives. What stood there before comes back at its end.
class Screen {
 public:
  explicit Screen(std::FILE* stream);
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void draw(const std::string& text);

 private:
  std::FILE* stream_;
};

}  // namespace headroom
