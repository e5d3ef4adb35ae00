// Parsing: every flag is read by train's own parser.
#include "train/compare/configuration.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "train/command_line.h"
#include "train/flags.h"
#include "train/parse_value.h"

namespace headroom {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kBase = "base";

// Without the batch sizes, which follow --batch.
const Words kRemedies = {"accum=2",
                         "accum=4",
                         "amp",
                         "amp=bf16",
                         "checkpoint",
                         "saved=keep",
                         "saved=pack",
                         "saved=offload",
                         "step-in-backward",
                         "no-inplace",
                         "amp+checkpoint",
                         "amp+accum=4",
                         "amp+accum=4+checkpoint",
                         "no-cudnn",
                         "cudnn-benchmark",
                         "workspace-limit=0",
                         "layout=nchw",
                         "optimizer=adam",
                         "expandable-segments",
                         "no-eval",
                         "eval-with-grad",
                         "classifier=pool",
                         "classifier=linear",
                         "classifier=conv"};

// What rows have to share to be comparable, and what one process per row cannot write.
const std::set<std::string> kNotPerRow = {"device",      "steps",    "epochs", "save",
                                          "resume",      "log",      "json",   "memory-report",
                                          "conv-report", "snapshot", "trace"};

Words split(const std::string& text, char separator) {
  Words out;
  size_t begin = 0;
  for (;;) {
    const size_t end = text.find(separator, begin);
    out.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return out;
    begin = end + 1;
  }
}

std::string key_of(const std::string& item) { return item.substr(0, item.find('=')); }

std::string quoted(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) ||
           std::string("-_=+:,./@%").find(static_cast<char>(c)) != std::string::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// `flag` as "FLAG FILE" or "FLAG=FILE" at position `at`, which then stands on its last word.
bool takes_file(const Words& words, size_t& at, const std::string& flag, std::string& file) {
  const std::string& word = words[at];
  if (word != flag && word.compare(0, flag.size() + 1, flag + "=") != 0) return false;
  if (word == flag) {
    CHECK_ARG(at + 1 < words.size() && words[at + 1] != "--", flag, ": needs a FILE");
    file = words[++at];
  } else {
    file = word.substr(flag.size() + 1);
  }
  CHECK_ARG(!file.empty() && file[0] != '-', flag, ": needs a FILE, got '", file, "'");
  return true;
}

// An item that is the comparison's own; its value.
std::optional<int64_t> number_of(const Words& items, const std::string& key) {
  for (const std::string& item : items) {
    if (key_of(item) != key) continue;
    CHECK_ARG(item.size() > key.size() + 1, key, ": needs a number, as in ", key, "=4");
    const int64_t value = parse_integer(key, item.substr(key.size() + 1));
    CHECK_ARG(value >= 1, key, ": must be at least 1, got ", value);
    return value;
  }
  return std::nullopt;
}

// --batch and --accum of a row, where its items change them.
Words batch_flags(const Words& items, const TrainConfig& shared) {
  const std::optional<int64_t> batch = number_of(items, "batch"), accum = number_of(items, "accum");
  Words out;
  if (!accum) {
    if (batch) out.push_back(fmt::format("--batch={}", *batch));
    return out;
  }
  const int64_t images = batch.value_or(shared.batch) * shared.accum;
  CHECK_ARG(images % *accum == 0, "accum=", *accum, ": does not divide the ", images,
            " images of a step");
  out.push_back(fmt::format("--batch={}", images / *accum));
  out.push_back(fmt::format("--accum={}", *accum));
  return out;
}

Configuration make_row(const std::string& name, const CompareLine& line) {
  Configuration row;
  row.name = name;
  if (name != kBase) row.items = split(name, '+');
  std::set<std::string> keys;
  for (const std::string& item : row.items) {
    const std::string key = key_of(item);
    CHECK_ARG(!key.empty() && item[0] != '-', "needs flags of train without their dashes, got '",
              item, "'; a flag of all rows stands before the --");
    CHECK_ARG(key != kBase, "'base' stands alone: it is the row without changes");
    CHECK_ARG(keys.insert(key).second, "'", key, "' is given twice");
    CHECK_ARG(
        !kNotPerRow.count(key), "--", key, " is not a row's own",
        key == "device" || key == "steps" || key == "epochs" ? "; give it before the --" : "");
    if (key != "batch" && key != "accum") row.flags.push_back("--" + item);
  }
  for (const std::string& flag : batch_flags(row.items, line.config)) row.flags.push_back(flag);
  Words all = line.shared;
  all.insert(all.end(), row.flags.begin(), row.flags.end());
  row.config = parse_command_line(all).config;
  return row;
}

std::string settings_of(const Configuration& row) { return config_to_json(row.config).dump(); }

void add_given_rows(const Words& names, CompareLine& line) {
  CHECK_ARG(!names.empty(), "needs configurations after --, such as base amp checkpoint");
  std::map<std::string, std::string> seen;
  for (const std::string& name : names) {
    try {
      Configuration row = make_row(name, line);
      const auto [other, is_new] = seen.emplace(settings_of(row), name);
      CHECK_ARG(is_new, other->second == name ? "is given twice"
                                              : "is the same as '" + other->second + "'");
      line.rows.push_back(std::move(row));
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(detail::concat("configuration '", name, "': ", error.what()));
    }
  }
}

void add_default_rows(CompareLine& line) {
  Words names = {kBase};
  if (line.config.batch > 1) names.push_back(fmt::format("batch={}", line.config.batch / 2));
  names.insert(names.end(), kRemedies.begin(), kRemedies.end());
  std::map<std::string, std::string> seen;
  for (const std::string& name : names) {
    Configuration row;
    try {
      row = make_row(name, line);
      const auto [other, is_new] = seen.emplace(settings_of(row), name);
      if (!is_new) row.left_out = "the same as " + other->second;
    } catch (const InvalidArgument& error) {
      row.name = name;
      row.left_out = error.what();
    }
    line.rows.push_back(std::move(row));
  }
}

// Why the item changes nothing on the device; empty if it may.
std::string why_meaningless(const std::string& item, Device device) {
  const std::string key = key_of(item);
  static const std::map<std::string, std::string> of_gpus = {
      {"no-cudnn", "cuDNN computes on a GPU only"},
      {"cudnn-benchmark", "cuDNN computes on a GPU only"},
      {"workspace-limit", "the limit is that of a GPU's convolutions"},
      {"tf32", "only a GPU has TF32"},
      {"deterministic", "off a GPU the same bits come anyway"}};
  const auto entry = of_gpus.find(key);
  const bool is_gpu = device.stands_for == DeviceType::cuda;
  if (entry != of_gpus.end() && !is_gpu) return entry->second;
  if (key == "cudnn-benchmark" && device.is_meta()) return "a meta device times no plans";
  if (key == "expandable-segments" && has_runtime(device) &&
      runtime_of(device).page_granularity() == 0) {
    return "the device has no virtual memory";
  }
  return {};
}

constexpr const char* kUsage =
    R"(usage: memory-compare [flags of train] [--json FILE] [--csv FILE] [--html FILE]
                      [-- CONFIGURATION...]

Trains each configuration in a process of its own, a few steps long, and prints
one table: what each saves, what it costs, and whether it changes the training.

  flags of train     what all rows share: --model, --data, --batch, --device ...
                     (train --help lists them); --steps is 10 unless given
  CONFIGURATION      flags without their dashes, joined by '+': amp, amp=bf16,
                     checkpoint, no-inplace, layout=nchw, amp+checkpoint; and
                       base      no change
                       accum=N   the same images per step in N smaller passes
                       batch=N   another number of images per pass
                     The first row that runs to its end is what the others are
                     compared with. Without a list: every remedy of this program
  --json FILE        the rows with their parts and the memory over one step
  --csv FILE         the rows for a spreadsheet
  --html FILE        a page with charts; files are replaced whole or not at all
  -h, --help         this text
  --version          the version

Examples
  memory-compare --model resnet18 --data cifar-10-batches-bin --batch 64
      every remedy
  memory-compare --model resnet50 --data random:3x224x224:1000 --batch 64 \
        --device meta:cuda -- base amp checkpoint amp+accum=4+checkpoint
      the peaks that a GPU would see, without one

Columns
  peak      allocated, the most in any step after the first
  saved     of the peak of the first row that ran to its end
  reserved  held from the device at most
  eval      allocated, the most in evaluation
  device    what the driver gave the process: context and libraries included
  gradient  largest relative difference from that row's after one step
  fidelity  bit-identical, rounding, or changes training

Exit codes
  0  done, also where rows ran out of memory
  1  a row failed otherwise, or a file could not be written
  2  wrong input: a flag, a configuration, a file; nothing was run
  130  interrupted; the rows that were done are printed and written
)";

}  // namespace

CompareLine parse_compare_line(const std::vector<std::string>& arguments) {
  CompareLine line;
  line.command = "memory-compare";
  for (const std::string& word : arguments) line.command += " " + quoted(word);
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  const Words flags(arguments.begin(), dashes);
  for (size_t at = 0; at < flags.size(); ++at) {
    if (takes_file(flags, at, "--json", line.json)) continue;
    if (takes_file(flags, at, "--csv", line.csv)) continue;
    if (takes_file(flags, at, "--html", line.html)) continue;
    line.shared.push_back(flags[at]);
  }
  const CommandLine common = parse_command_line(line.shared);
  if (common.action == CommandLine::Action::show_help) line.action = CompareLine::Action::show_help;
  if (common.action == CommandLine::Action::show_version) {
    line.action = CompareLine::Action::show_version;
  }
  if (line.action != CompareLine::Action::compare) return line;
  line.config = common.config;
  for (const auto& [flag, value] :
       std::map<std::string, std::string>{{"--save", line.config.save},
                                          {"--resume", line.config.resume},
                                          {"--log", line.config.log},
                                          {"--memory-report", line.config.memory_report},
                                          {"--conv-report", line.config.conv_report},
                                          {"--snapshot", line.config.snapshot},
                                          {"--trace", line.config.trace}}) {
    CHECK_ARG(value.empty(), flag, ": is train's; a comparison has --json, --csv and --html");
  }
  if (line.config.steps == 0 && line.config.epochs == 0) {
    line.config.steps = kCompareSteps;
    line.shared.push_back(fmt::format("--steps={}", kCompareSteps));
  }
  if (dashes == arguments.end()) {
    add_default_rows(line);
  } else {
    add_given_rows({dashes + 1, arguments.end()}, line);
  }
  return line;
}

void leave_out_meaningless(std::vector<Configuration>& rows, Device device) {
  for (Configuration& row : rows) {
    for (const std::string& item : row.items) {
      const std::string why = why_meaningless(item, device);
      if (why.empty() || !row.left_out.empty()) continue;
      row.left_out = row.items.size() > 1 ? key_of(item) + ": " + why : why;
    }
  }
}

std::string compare_help_text() { return kUsage; }

}  // namespace headroom
