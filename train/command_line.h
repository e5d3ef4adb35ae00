// The command line of `train`: arguments to a configuration, and the help text.
#pragma once

#include <string>
#include <vector>

#include "train/config.h"

namespace headroom {

struct CommandLine {
  enum class Action { train, show_help, show_version };
  Action action = Action::train;
  TrainConfig config;
};

// Reads the arguments, without the program's name. --help, -h and --version are seen first,
// wherever they stand. A flag given twice has its last value. Throws InvalidArgument for unknown
// flags (with the nearest known one), values that are missing, malformed or out of range, and flags
// that exclude each other; the configuration returned has passed validate().
CommandLine parse_command_line(const std::vector<std::string>& arguments);

// Usage, every flag by group with its default, examples and exit codes; at most 80 columns.
std::string help_text();

}  // namespace headroom
