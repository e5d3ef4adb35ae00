// The command line of memory-watch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headroom {

struct WatchOptions {
  enum class Action { watch, show_help, show_version };
  Action action = Action::watch;
  bool once = false;
  bool json = false;
  std::optional<int64_t> pid;
  double interval_seconds = 1;
};

// `arguments` without the program's name. Throws InvalidArgument naming the flag.
WatchOptions parse_watch_options(const std::vector<std::string>& arguments);

std::string watch_help_text();

}  // namespace headroom
