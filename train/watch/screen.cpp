// Escape sequences of the terminals that xterm set the example for.
#include "train/watch/screen.h"

#include <algorithm>
#include <vector>

namespace headroom {
namespace {

// The first `columns` characters: bytes that go on a character of UTF-8 take no column.
std::string cut(const std::string& line, size_t columns) {
  size_t end = 0;
  for (size_t seen = 0; end < line.size(); ++end) {
    const bool begins = (static_cast<unsigned char>(line[end]) & 0xC0) != 0x80;
    if (begins && seen++ == columns) break;
  }
  return line.substr(0, end);
}

void write(std::FILE* stream, const std::string& text) {
  std::fputs(text.c_str(), stream);
  std::fflush(stream);
}

}  // namespace

std::string fitted(const std::string& text, TerminalSize size) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  // The last row stays free, where the cursor stands: a full screen would scroll.
  const auto rows = static_cast<size_t>(std::max(size.rows - 1, 1));
  if (lines.size() > rows) {
    const size_t missing = lines.size() - rows + 1;
    lines.resize(rows);
    lines.back() = "... " + std::to_string(missing) + " more lines";
  }
  std::string out;
  for (const std::string& line : lines) {
    out += cut(line, static_cast<size_t>(std::max(size.columns, 1))) + "\n";
  }
  return out;
}

Screen::Screen(std::FILE* stream) : stream_(stream) { write(stream_, "\033[?1049h\033[?25l"); }
Screen::~Screen() { write(stream_, "\033[?25h\033[?1049l"); }

// Line over line instead of clearing first, which flickers.
void Screen::draw(const std::string& text) {
  std::string out = "\033[H";
  for (const char c : fitted(text, terminal_size(stream_))) {
    if (c == '\n') out += "\033[K";
    out += c;
  }
  write(stream_, out + "\033[J");
}

}  // namespace headroom
