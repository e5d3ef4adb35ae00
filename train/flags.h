// The flags of `train`: each one's place in the configuration, how its value is read and shown, and
// its help. The command line, the help text and the configuration in reports are all made from this
// one table.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "train/config.h"

namespace headroom {

enum class FlagKind : uint8_t {
  value,           // --batch N
  optional_value,  // --amp or --amp=f16; the value only after a '='
  toggle,          // --json
};

struct Flag {
  std::string name;  // "--batch"
  FlagKind kind = FlagKind::value;
  std::string placeholder;  // "N" in the help; for a toggle empty
  std::string help;
  std::string default_text;  // shown behind the help; empty: nothing
  // Stores a value. Throws InvalidArgument naming the flag, what is allowed and what came. A
  // toggle, and an optional value that was left out, get "".
  std::function<void(TrainConfig&, const std::string& value)> set;
  // Where reports put the value, and the value: null where the configuration leaves it open. Both
  // empty for the second of a pair of flags, such as --nesterov and --no-nesterov.
  std::string key;
  std::function<nlohmann::ordered_json(const TrainConfig&)> show;
};

struct FlagGroup {
  std::string title;
  std::string about;  // one line
  std::vector<Flag> flags;
};

const std::vector<FlagGroup>& flag_groups();

// As --on-threshold takes it: "empty-cache".
const char* name_of(OnThreshold action);

// Every flag's value by its key, in the order of the help.
nlohmann::ordered_json config_to_json(const TrainConfig& config);

}  // namespace headroom
