// The command line: values, messages, help.
#include "train/command_line.h"

#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "train/flags.h"

namespace headroom {
namespace {

using Arguments = std::vector<std::string>;

TrainConfig config_of(const Arguments& arguments) { return parse_command_line(arguments).config; }

// The words between blanks.
Arguments words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

// The message that these arguments are refused with; "" if they are not.
std::string refusal_of(const Arguments& arguments) {
  try {
    parse_command_line(arguments);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(CommandLine, WithoutFlagsIsTheDefaultConfiguration) {
  EXPECT_EQ(config_to_json(config_of({})), config_to_json(TrainConfig{}));
}

TEST(CommandLine, ReadsEveryFlag) {
  const TrainConfig c = config_of(words(
      "--model vgg16 --classifier conv --data=random:3x32x32:10 --image-size 48 --batch 16 --accum "
      "4 "
      "--eval-batch 100 --epochs 7 --drop-last --augment crop-flip --optimizer sgd --lr 0.2 "
      "--momentum 0.8 --no-nesterov --weight-decay 1e-4 --schedule one-cycle --warmup 20 "
      "--clip-norm 1.5 --label-smoothing 0.1 --amp=f16 --init-scale 1024 --checkpoint --saved pack "
      "--no-inplace "
      "--cudnn-benchmark --workspace-limit 8MiB --tf32 all --deterministic --layout "
      "nchw "
      "--device meta:cuda --expandable-segments --memory-limit 2GB --on-oom halve-batch "
      "--memory-threshold 0.9 "
      "--on-threshold empty-cache --seed 12 --threads 3 "
      "--loader-threads 0 --resident "
      "--save a --resume b --log c --json --memory-report d --conv-report g --snapshot e --trace f "
      "--trace-steps 5 "
      "--launch-blocking --eval-with-grad"));
  const nlohmann::ordered_json expected = {{"model", "vgg16"},
                                           {"classifier", "conv"},
                                           {"data", "random:3x32x32:10"},
                                           {"image_size", 48},
                                           {"augment", "crop-flip"},
                                           {"resident", true},
                                           {"loader_threads", 0},
                                           {"batch", 16},
                                           {"accum", 4},
                                           {"eval_batch", 100},
                                           {"epochs", 7},
                                           {"steps", nullptr},
                                           {"drop_last", true},
                                           {"eval", true},
                                           {"eval_with_grad", true},
                                           {"optimizer", "sgd"},
                                           {"lr", 0.2},
                                           {"momentum", 0.8},
                                           {"nesterov", false},
                                           {"weight_decay", 1e-4},
                                           {"schedule", "one-cycle"},
                                           {"warmup", 20.0},
                                           {"clip_norm", 1.5},
                                           {"label_smoothing", 0.1},
                                           {"amp", "f16"},
                                           {"init_scale", 1024.0},
                                           {"tf32", "all"},
                                           {"layout", "nchw"},
                                           {"cudnn", true},
                                           {"cudnn_benchmark", true},
                                           {"deterministic", true},
                                           {"checkpoint", true},
                                           {"saved", "pack"},
                                           {"step_in_backward", false},
                                           {"inplace", false},
                                           {"workspace_limit", 8 << 20},
                                           {"expandable_segments", true},
                                           {"memory_limit", 2000000000},
                                           {"on_oom", "halve-batch"},
                                           {"memory_threshold", 0.9},
                                           {"on_threshold", "empty-cache"},
                                           {"device", "meta:cuda"},
                                           {"launch_blocking", true},
                                           {"threads", 3},
                                           {"seed", 12},
                                           {"save", "a"},
                                           {"resume", "b"},
                                           {"log", "c"},
                                           {"json", true},
                                           {"memory_report", "d"},
                                           {"conv_report", "g"},
                                           {"snapshot", "e"},
                                           {"trace", "f"},
                                           {"trace_steps", 5}};
  EXPECT_EQ(config_to_json(c), expected);
  EXPECT_FALSE(config_of({"--no-eval"}).evaluate);
}

TEST(CommandLine, AmpTakesItsValueOnlyAfterAnEqualsSign) {
  EXPECT_EQ(config_of({"--amp"}).amp, DType::f16);
  EXPECT_EQ(config_of({"--amp=f16"}).amp, DType::f16);
  EXPECT_EQ(config_of({"--amp=bf16"}).amp, DType::bf16);
  const TrainConfig c = config_of({"--amp", "--batch", "8"});
  EXPECT_EQ(c.amp, DType::f16);
  EXPECT_EQ(c.batch, 8);
  EXPECT_EQ(refusal_of({"--amp", "bf16"}), "unexpected argument 'bf16'; did you mean --amp=bf16?");
  EXPECT_EQ(refusal_of({"--amp=f32"}), "--amp: allowed are f16, bf16; got 'f32'");
}

TEST(CommandLine, TheLastOfTwoValuesCounts) {
  EXPECT_EQ(config_of({"--batch", "8", "--batch=4"}).batch, 4);
  EXPECT_EQ(config_of({"--amp", "--amp=bf16"}).amp, DType::bf16);
}

TEST(CommandLine, RefusesWithTheFlagWhatIsAllowedAndWhatCame) {
  EXPECT_EQ(refusal_of({"--batch", "0"}), "--batch: must be at least 1, got 0");
  EXPECT_EQ(refusal_of({"--batch", "x"}), "--batch: needs a whole number such as 16, got 'x'");
  EXPECT_EQ(refusal_of({"--batch", "16777217"}),
            "--batch: must lie in 1 .. 16777216, got 16777217");
  EXPECT_EQ(refusal_of({"--model", "alexnet"}),
            "--model: allowed are lenet, vgg16, resnet18, resnet50; got 'alexnet'");
  EXPECT_EQ(refusal_of({"--model", "resnet18", "--classifier", "conv"}),
            "--classifier conv: --model resnet18 has none such");
  EXPECT_EQ(refusal_of({"--tf32", "on"}), "--tf32: allowed are off, conv, all; got 'on'");
  EXPECT_EQ(refusal_of({"--momentum", "1.5"}), "--momentum: must lie in 0 .. 1, got 1.5");
  EXPECT_EQ(refusal_of({"--json=5"}), "--json: takes no value, got '5'");
  EXPECT_EQ(refusal_of({"--json="}), "--json: ends in '=' without a value");
  EXPECT_EQ(refusal_of({"--amp="}), "--amp: ends in '=' without a value");
  EXPECT_EQ(refusal_of({"--batch"}), "--batch: needs a value, see --help");
  EXPECT_NE(refusal_of({"--device", "gpu"}).find("auto, cpu, cuda"), std::string::npos);
  EXPECT_NE(refusal_of({"--batch", "--accum", "4"}).find("got '--accum'"), std::string::npos);
  EXPECT_NE(refusal_of({"--save", "--json"}).find("--save: needs FILE"), std::string::npos);
}

TEST(CommandLine, RefusesEveryKindOfBadValue) {
  const std::vector<Arguments> bad = {{"--batch", "-1"},
                                      {"--batch", "1e3"},
                                      {"--batch", "99999999999999999999"},
                                      {"--batch", "100000000000"},
                                      {"--accum", "0"},
                                      {"--eval-batch", "0"},
                                      {"--epochs", "0"},
                                      {"--steps", "0"},
                                      {"--steps", "2", "--epochs", "2"},
                                      {"--steps", "16777217"},
                                      {"--image-size", "0"},
                                      {"--image-size", "100000"},
                                      {"--lr", "0"},
                                      {"--lr", "-1"},
                                      {"--lr", "nan"},
                                      {"--lr", "0.1x"},
                                      {"--weight-decay", "-1"},
                                      {"--warmup", "1.5"},
                                      {"--warmup", "-0.1"},
                                      {"--clip-norm", "-1"},
                                      {"--label-smoothing", "2"},
                                      {"--no-eval", "--eval-with-grad"},
                                      {"--init-scale", "0", "--amp"},
                                      {"--init-scale", "8"},
                                      {"--optimizer", "lion"},
                                      {"--optimizer", "adam", "--momentum", "0.9"},
                                      {"--nesterov", "--no-nesterov"},
                                      {"--schedule", "linear"},
                                      {"--augment", "mixup"},
                                      {"--layout", "chwn"},
                                      {"--seed", "-1"},
                                      {"--threads", "-1"},
                                      {"--loader-threads", "-1"},
                                      {"--workspace-limit", "lots"},
                                      {"--memory-limit", "-1GiB"},
                                      {"--trace", "f", "--trace-steps", "0"},
                                      {"--trace-steps", "2"},
                                      {"--data", ""},
                                      {"lenet"},
                                      {"-b", "4"},
                                      {"--", "x"}};
  for (const Arguments& arguments : bad) {
    std::string line;
    for (const std::string& word : arguments) line += word + " ";
    const std::string message = refusal_of(arguments);
    EXPECT_NE(message, "") << line;
    EXPECT_EQ(message.find('\n'), std::string::npos) << line;
  }
}

TEST(CommandLine, SuggestsTheNearestFlag) {
  EXPECT_EQ(refusal_of({"--bacth", "4"}), "unknown flag --bacth; did you mean --batch?");
  EXPECT_EQ(refusal_of({"--weight_decay=1"}),
            "unknown flag --weight_decay; did you mean --weight-decay?");
  EXPECT_EQ(refusal_of({"--loader"}), "unknown flag --loader; did you mean --loader-threads?");
  EXPECT_EQ(refusal_of({"--xyzzyplugh"}), "unknown flag --xyzzyplugh; --help lists the flags");
}

TEST(CommandLine, HelpAndVersionWinOverAllElse) {
  EXPECT_EQ(parse_command_line({"--batch", "x", "--help"}).action, CommandLine::Action::show_help);
  EXPECT_EQ(parse_command_line({"-h"}).action, CommandLine::Action::show_help);
  EXPECT_EQ(parse_command_line({"--version"}).action, CommandLine::Action::show_version);
}

TEST(Help, ShowsEveryFlagOnceWithItsGroupAndFitsEightyColumns) {
  const std::string help = help_text();
  for (const FlagGroup& group : flag_groups()) {
    EXPECT_NE(help.find("\n" + group.title + ": " + group.about + "\n"), std::string::npos);
    for (const Flag& flag : group.flags) {
      const std::string head = "\n  " + flag.name;
      size_t found = 0;
      for (size_t at = help.find(head); at != std::string::npos; at = help.find(head, at + 1)) {
        const char next = help[at + head.size()];
        found += next == ' ' || next == '\n' || next == '[';
      }
      EXPECT_EQ(found, 1U) << flag.name;
    }
  }
  size_t begin = 0;
  while (begin < help.size()) {
    const size_t end = help.find('\n', begin);
    EXPECT_LE(end - begin, 80U) << help.substr(begin, end - begin);
    begin = end + 1;
  }
  for (const char* text : {"Examples", "Exit codes", "130", "default: 64", "default: 32.00 MiB"}) {
    EXPECT_NE(help.find(text), std::string::npos) << text;
  }
}

TEST(Flags, HaveDifferentNamesAndKeys) {
  std::set<std::string> names, keys;
  for (const FlagGroup& group : flag_groups()) {
    for (const Flag& flag : group.flags) {
      EXPECT_TRUE(names.insert(flag.name).second) << flag.name;
      EXPECT_EQ(flag.key.empty(), !flag.show) << flag.name;
      if (flag.show) {
        EXPECT_TRUE(keys.insert(flag.key).second) << flag.key;
      }
    }
  }
}

}  // namespace
}  // namespace headroom
