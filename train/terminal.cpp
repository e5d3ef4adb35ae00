// Asking the terminal, drawing a bar.
#include "train/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace headroom {

bool is_terminal(std::FILE* stream) {
  const char* name = std::getenv("TERM");
  return isatty(fileno(stream)) != 0 && name && std::string(name) != "dumb";
}

TerminalSize terminal_size(std::FILE* stream) {
  TerminalSize out;
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0) return out;
  if (size.ws_col > 0) out.columns = size.ws_col;
  if (size.ws_row > 0) out.rows = size.ws_row;
  return out;
}

std::string bar(int64_t part, int64_t total, size_t columns) {
  const size_t inner = columns - 2;
  const auto shown = static_cast<size_t>(std::clamp<int64_t>(part, 0, std::max<int64_t>(total, 0)));
  const size_t filled = total > 0 ? shown * inner / static_cast<size_t>(total) : 0;
  return "[" + std::string(filled, '=') + std::string(inner - filled, ' ') + "]";
}

}  // namespace headroom
