// What the programs' displays know of a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace headroom {

// Whether lines of the stream can be drawn again.
bool is_terminal(std::FILE* stream);

struct TerminalSize {
  int columns = 80, rows = 24;  // where the terminal does not say
};
TerminalSize terminal_size(std::FILE* stream);

// "[====      ]", `columns` wide, at least 2. Parts above the total fill it.
std::string bar(int64_t part, int64_t total, size_t columns);

}  // namespace headroom
