// Parsing with CLI11, which splits arguments into flags and values; reading the values is the work
// of the flag table.
#include "train/command_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>

#include <CLI/CLI.hpp>

#include "core/base/error.h"
#include "train/flags.h"

namespace headroom {
namespace {

// CLI11 reports a flag without a value as this text, which no user types.
constexpr const char* kNoValue = "\x01";

// A flag and, if it was given, its last value.
struct Given {
  const Flag* flag;
  std::string value;
  CLI::Option* option = nullptr;
};

void add_to(CLI::App& app, Given& given) {
  const Flag& flag = *given.flag;
  if (flag.kind == FlagKind::value) {
    given.option = app.add_option(flag.name, given.value)->type_name(flag.placeholder);
  } else {
    given.option = app.add_flag(flag.name + "{" + kNoValue + "}", given.value);
  }
  given.option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void store(const Given& given, TrainConfig& config) {
  const Flag& flag = *given.flag;
  const std::string value = given.value == kNoValue ? "" : given.value;
  CHECK_ARG(flag.kind != FlagKind::toggle || value.empty(), flag.name, ": takes no value, got '",
            value, "'");
  flag.set(config, value);
}

// "--json=" and "--amp=", which CLI11 takes for the flag alone.
void refuse_empty_values(const std::vector<std::string>& arguments) {
  for (const FlagGroup& group : flag_groups()) {
    for (const Flag& flag : group.flags) {
      CHECK_ARG(flag.kind == FlagKind::value || std::find(arguments.begin(), arguments.end(),
                                                          flag.name + "=") == arguments.end(),
                flag.name, ": ends in '=' without a value");
    }
  }
}

// Levenshtein's distance: insertions, deletions and replacements that turn a into b.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string> all_names() {
  std::vector<std::string> names = {"--help", "--version"};
  for (const FlagGroup& group : flag_groups()) {
    for (const Flag& flag : group.flags) names.push_back(flag.name);
  }
  return names;
}

// The known flag that is closest to `wrong`, unless none is near.
std::optional<std::string> nearest_flag(const std::string& wrong) {
  const size_t limit = std::max<size_t>(2, wrong.size() / 3);
  std::optional<std::string> best;
  size_t best_distance = limit + 1;
  for (const std::string& name : all_names()) {
    // A beginning of a name ("--loader") means it more than any near miss does.
    const bool is_beginning = wrong.size() > 3 && name.compare(0, wrong.size(), wrong) == 0;
    const size_t distance = is_beginning ? 0 : edit_distance(wrong, name);
    if (distance < best_distance) {
      best_distance = distance;
      best = name;
    }
  }
  return best;
}

[[noreturn]] void refuse_extra(const std::string& argument) {
  if (argument.empty() || argument[0] != '-' || argument == "-") {
    const bool is_half = argument == "f16" || argument == "bf16";
    throw InvalidArgument(fmt::format("unexpected argument '{}'{}", argument,
                                      is_half ? "; did you mean --amp=" + argument + "?"
                                              : "; every value follows its flag, see --help"));
  }
  const std::string name = argument.substr(0, argument.find('='));
  const std::optional<std::string> nearest = nearest_flag(name);
  throw InvalidArgument(
      fmt::format("unknown flag {}{}", name,
                  nearest ? "; did you mean " + *nearest + "?" : "; --help lists the flags"));
}

bool was_given(const std::deque<Given>& all, const char* name) {
  return std::any_of(all.begin(), all.end(), [&](const Given& given) {
    return given.flag->name == name && given.option->count() > 0;
  });
}

// Flags that would have no effect are refused where that is surely a mistake. Flags that one device
// ignores are not: the same command should run on every device.
void check_combinations(const std::deque<Given>& given, const TrainConfig& config) {
  for (const char* name : {"--momentum", "--nesterov", "--no-nesterov"}) {
    CHECK_ARG(config.optimizer == "sgd" || !was_given(given, name), name,
              ": only --optimizer sgd has it, got --optimizer ", config.optimizer);
  }
  CHECK_ARG(config.amp == DType::f16 || !was_given(given, "--init-scale"),
            "--init-scale: only --amp=f16 scales its loss");
  CHECK_ARG(!was_given(given, "--nesterov") || !was_given(given, "--no-nesterov"),
            "--nesterov and --no-nesterov: give one of them, not both");
  CHECK_ARG(!was_given(given, "--nesterov") || config.momentum > 0,
            "--nesterov: needs a --momentum above 0, got ", config.momentum);
  CHECK_ARG(config.memory_threshold > 0 || !was_given(given, "--on-threshold"),
            "--on-threshold: needs a --memory-threshold above 0");
  CHECK_ARG(!config.trace.empty() || !was_given(given, "--trace-steps"),
            "--trace-steps: needs --trace FILE");
  CHECK_ARG(config.cudnn || !config.cudnn_benchmark,
            "--no-cudnn and --cudnn-benchmark: give one of them, not both");
}

// ---- Help ----

constexpr size_t kHelpColumns = 80;
constexpr size_t kNameColumns = 27;

// Breaks text at blanks into lines of at most `width` columns.
std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) {
      lines.emplace_back();
    }
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return lines;
}

std::string entry(const std::string& name, const std::string& help) {
  const std::vector<std::string> lines = wrapped(help, kHelpColumns - kNameColumns);
  std::string head = "  " + name;
  std::string out;
  if (head.size() + 1 > kNameColumns) {
    out = head + "\n";
    head.clear();
  }
  for (const std::string& line : lines) {
    out += fmt::format("{:<{}}{}\n", head, kNameColumns, line);
    head.clear();
  }
  return out;
}

std::string shown_name(const Flag& flag) {
  switch (flag.kind) {
    case FlagKind::value:
      return flag.name + " " + flag.placeholder;
    case FlagKind::optional_value:
      return flag.name + "[=" + flag.placeholder + "]";
    case FlagKind::toggle:
      break;
  }
  return flag.name;
}

constexpr const char* kUsage =
    R"(usage: train [flags]

Trains a convolutional network and accounts for every byte it holds. Without
flags: lenet on a built-in set of digits, on the GPU if there is one. Progress
goes to standard error, the final table to standard output.
)";

constexpr const char* kExamples = R"(
Values follow their flag after a blank or a '='. Sizes are 512MiB, 1.5GiB,
800MB (KiB, MiB, GiB, TiB; KB, MB, GB, TB) or a number of bytes.

Examples
  train
      the digits, three epochs
  train --model resnet18 --data cifar-10-batches-bin --epochs 10 --batch 128 \
        --lr 0.2 --amp --save resnet18.safetensors
      CIFAR-10 on a GPU, with a checkpoint after every epoch
  train --model resnet18 --data cifar-10-batches-bin --batch 16 --accum 4 --amp
      steps of 64 images with the memory of 16
  train --model resnet50 --data random:3x224x224:1000 --batch 64 --amp \
        --device meta:cuda --steps 2
      the peak that a GPU would see, to the byte, without one
  train --model resnet50 --data random:3x224x224:1000 --batch 64 --checkpoint \
        --device meta:cuda --steps 2 --memory-limit 8GiB
      does it fit on a card of 8 GiB? Ends with 3 if not

Exit codes
  0  done
  1  failed while running: a device, a file that cannot be read or written
  2  wrong input: a flag, a value, a file, no such device; nothing was written
  3  out of memory
  130  interrupted; Ctrl-C ends after the running step and saves if --save is
       given, a second one ends at once
)";

}  // namespace

CommandLine parse_command_line(const std::vector<std::string>& arguments) {
  CommandLine out;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") out.action = CommandLine::Action::show_help;
    if (argument == "--version") out.action = CommandLine::Action::show_version;
    if (out.action != CommandLine::Action::train) return out;
  }
  refuse_empty_values(arguments);
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::deque<Given> given;  // CLI11 keeps addresses of its elements
  for (const FlagGroup& group : flag_groups()) {
    for (const Flag& flag : group.flags) {
      given.push_back({&flag, {}});
      add_to(app, given.back());
    }
  }
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ArgumentMismatch&) {
    // Values are checked below, so all that is left to go wrong is a last flag without its value.
    throw InvalidArgument(arguments.back() + ": needs a value, see --help");
  } catch (const CLI::Error& error) {
    throw InvalidArgument(error.what());
  }
  // Values first: a flag without its value takes the flag behind it, and what is left over then is
  // not what is wrong.
  for (const Given& entry : given) {
    if (entry.option->count() > 0) store(entry, out.config);
  }
  const std::vector<std::string> extra = app.remaining();
  if (!extra.empty()) refuse_extra(extra.front());
  check_combinations(given, out.config);
  validate(out.config);
  return out;
}

std::string help_text() {
  std::string out = kUsage;
  for (const FlagGroup& group : flag_groups()) {
    out += fmt::format("\n{}: {}\n", group.title, group.about);
    for (const Flag& flag : group.flags) {
      const std::string shown = flag.default_text.empty()
                                    ? flag.help
                                    : fmt::format("{} (default: {})", flag.help, flag.default_text);
      out += entry(shown_name(flag), shown);
    }
  }
  out += "\nAbout\n" + entry("-h, --help", "this text") + entry("--version", "the version");
  return out + kExamples;
}

}  // namespace headroom
