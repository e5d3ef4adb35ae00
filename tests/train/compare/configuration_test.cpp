// The command line of memory-compare: what becomes of it, and what is refused before anything runs.
#include "train/compare/configuration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace headroom {
namespace {

using Words = std::vector<std::string>;

// "--batch 64 -- base accum=4"
CompareLine parsed(const std::string& text) {
  Words words;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parse_compare_line(words);
}

std::string refusal_of(const std::string& text) {
  try {
    parsed(text);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

const Configuration& row_named(const CompareLine& line, const std::string& name) {
  const auto row = std::find_if(line.rows.begin(), line.rows.end(),
                                [&](const Configuration& r) { return r.name == name; });
  if (row == line.rows.end()) throw Error("no row " + name);
  return *row;
}

TEST(CompareLine, ItemsBecomeFlagsOfTrain) {
  const CompareLine line =
      parsed("--model resnet18 --batch 64 -- base amp amp=bf16+checkpoint layout=nchw+no-inplace");
  ASSERT_EQ(line.rows.size(), 4u);
  EXPECT_EQ(line.rows[0].name, "base");
  EXPECT_TRUE(line.rows[0].flags.empty());
  EXPECT_EQ(line.rows[1].config.amp, DType::f16);
  EXPECT_EQ(line.rows[2].config.amp, DType::bf16);
  EXPECT_TRUE(line.rows[2].config.checkpoint);
  EXPECT_EQ(line.rows[3].config.layout, MemoryFormat::contiguous);
  EXPECT_FALSE(line.rows[3].config.in_place);
  EXPECT_EQ(line.rows[3].flags, (Words{"--layout=nchw", "--no-inplace"}));
  for (const Configuration& row : line.rows) {
    EXPECT_EQ(row.config.model, "resnet18") << row.name;
    EXPECT_EQ(row.config.steps, kCompareSteps) << row.name;
  }
}

TEST(CompareLine, AccumKeepsTheImagesOfAStepAndBatchChangesThem) {
  const CompareLine line = parsed("--batch 64 -- base accum=4 batch=16 batch=32+accum=8");
  EXPECT_EQ(line.rows[1].config.batch, 16);
  EXPECT_EQ(line.rows[1].config.accum, 4);
  EXPECT_EQ(line.rows[2].config.batch, 16);
  EXPECT_EQ(line.rows[2].config.accum, 1);
  EXPECT_EQ(line.rows[3].config.batch, 4);
  EXPECT_EQ(line.rows[3].config.accum, 8);
  // Of shared flags that accumulate already, all images of a step count.
  const CompareLine shared = parsed("--batch 16 --accum 4 -- base accum=2 accum=1 batch=8");
  EXPECT_EQ(shared.rows[1].config.batch, 32);
  EXPECT_EQ(shared.rows[2].config.batch, 64);
  EXPECT_EQ(shared.rows[2].config.accum, 1);
  EXPECT_EQ(shared.rows[3].config.batch, 8);
  EXPECT_EQ(shared.rows[3].config.accum, 4);
}

TEST(CompareLine, FilesAndLengthAreTakenFromTheSharedFlags) {
  const CompareLine line =
      parsed("--json a.json --steps 3 --csv=b.csv --html c.html --batch 8 -- base amp");
  EXPECT_EQ(line.json, "a.json");
  EXPECT_EQ(line.csv, "b.csv");
  EXPECT_EQ(line.html, "c.html");
  EXPECT_EQ(line.config.steps, 3);
  EXPECT_EQ(line.shared, (Words{"--steps", "3", "--batch", "8"}));
  EXPECT_EQ(parsed("--epochs 2 -- base").config.steps, 0);
  EXPECT_EQ(parse_compare_line({"--data", "it's here", "--", "base"}).command,
            "memory-compare --data 'it'\\''s here' -- base");
  EXPECT_EQ(parsed("--help").action, CompareLine::Action::show_help);
  EXPECT_EQ(parsed("--version").action, CompareLine::Action::show_version);
}

TEST(CompareLine, RefusesWhatItCannotRunAndSaysWhichConfiguration) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"-- base chekpoint",
       "configuration 'chekpoint': unknown flag --chekpoint; did you mean "
       "--checkpoint?"},
      {"-- base base", "configuration 'base': is given twice"},
      {"-- base amp+checkpoint checkpoint+amp",
       "configuration 'checkpoint+amp': is the same as 'amp+checkpoint'"},
      {"-- amp amp=f16", "configuration 'amp=f16': is the same as 'amp'"},
      {"-- base amp+amp=bf16", "configuration 'amp+amp=bf16': 'amp' is given twice"},
      {"-- base amp=f32", "configuration 'amp=f32': --amp: allowed are f16, bf16; got 'f32'"},
      {"-- base checkpoint=1", "--checkpoint: takes no value"},
      {"-- base layout", "configuration 'layout': --layout: needs a value"},
      {"--batch 64 -- base accum=3",
       "configuration 'accum=3': accum=3: does not divide the 64 images of a step"},
      {"-- base accum=0", "accum: must be at least 1, got 0"},
      {"-- base accum", "accum: needs a number"},
      {"-- base batch=x", "batch"},
      {"-- base amp+", "needs flags of train without their dashes, got ''"},
      {"-- base --amp", "needs flags of train without their dashes, got '--amp'"},
      {"-- base base+amp", "'base' stands alone"},
      {"-- base device=cpu", "--device is not a row's own; give it before the --"},
      {"-- base steps=3", "--steps is not a row's own"},
      {"-- base save=x", "--save is not a row's own"},
      {"-- base conv-report=x", "--conv-report is not a row's own"},
      {"--trace x -- base", "--trace: is train's"},
      {"-- base no-cudnn+cudnn-benchmark", "--no-cudnn and --cudnn-benchmark"},
      {"--", "needs configurations after --"},
      {"base amp", "unexpected argument 'base'"},
      {"--save x -- base", "--save: is train's"},
      {"--json -- base", "--json: needs a FILE"},
      {"--bach 3 -- base", "unknown flag --bach; did you mean --batch?"},
  };
  for (const auto& [line, part] : cases) {
    EXPECT_NE(refusal_of(line).find(part), std::string::npos) << line << "\n" << refusal_of(line);
  }
}

TEST(CompareLine, TheDefaultListHasEveryRemedyAndLeavesOutWhatCannotBe) {
  const CompareLine line = parsed("--batch 64");
  for (const char* name : {"base",
                           "batch=32",
                           "accum=2",
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
                           "eval-with-grad"}) {
    EXPECT_EQ(row_named(line, name).left_out, "") << name;
  }
  EXPECT_EQ(line.rows[0].name, "base");
  EXPECT_EQ(row_named(line, "classifier=linear").left_out, "the same as base");
  EXPECT_EQ(row_named(line, "classifier=conv").left_out, "");
  const CompareLine resnet = parsed("--model resnet18");
  EXPECT_EQ(row_named(resnet, "classifier=pool").left_out, "the same as base");
  EXPECT_NE(row_named(resnet, "classifier=conv").left_out.find("has none such"), std::string::npos);
  const CompareLine odd = parsed("--batch 6 --amp --momentum 0.5");
  EXPECT_NE(row_named(odd, "accum=4").left_out.find("does not divide the 6"), std::string::npos);
  EXPECT_EQ(row_named(odd, "amp").left_out, "the same as base");
  EXPECT_NE(row_named(odd, "optimizer=adam").left_out.find("--momentum"), std::string::npos);
  EXPECT_EQ(row_named(odd, "accum=2").left_out, "");
  const CompareLine without_evaluation = parsed("--no-eval");
  EXPECT_NE(row_named(without_evaluation, "eval-with-grad").left_out.find("--no-eval"),
            std::string::npos);
}

TEST(CompareLine, WhatMeansNothingOnADeviceIsLeftOutWithTheReason) {
  CompareLine on_cpu = parsed("-- base no-cudnn amp+workspace-limit=0 cudnn-benchmark amp");
  leave_out_meaningless(on_cpu.rows, Device::cpu());
  EXPECT_EQ(on_cpu.rows[1].left_out, "cuDNN computes on a GPU only");
  EXPECT_NE(on_cpu.rows[2].left_out.find("workspace-limit: "), std::string::npos);
  EXPECT_NE(on_cpu.rows[3].left_out, "");
  EXPECT_EQ(on_cpu.rows[4].left_out, "");
  CompareLine on_meta = parsed("-- base no-cudnn workspace-limit=0 cudnn-benchmark");
  leave_out_meaningless(on_meta.rows, Device::meta(DeviceType::cuda));
  EXPECT_EQ(on_meta.rows[1].left_out, "");
  EXPECT_EQ(on_meta.rows[2].left_out, "");
  EXPECT_EQ(on_meta.rows[3].left_out, "a meta device times no plans");
  CompareLine on_gpu = parsed("-- base no-cudnn workspace-limit=0 cudnn-benchmark");
  leave_out_meaningless(on_gpu.rows, Device::cuda());
  for (const Configuration& row : on_gpu.rows) EXPECT_EQ(row.left_out, "") << row.name;
}

}  // namespace
}  // namespace headroom
