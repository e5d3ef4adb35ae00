// The program memory-compare as a person runs it.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/train/compare/compare_run.h"

namespace headroom::test {
namespace {

int64_t peak_of(const Json& comparison, const std::string& name) {
  return row_of(comparison, name).at("peak_allocated").get<int64_t>();
}

std::string label_of(const Json& comparison, const std::string& name) {
  const Json fidelity = row_of(comparison, name).at("fidelity");
  return fidelity.is_null() ? "none" : fidelity.at("label").get<std::string>();
}

TEST(MemoryCompare, WritesNoTwoFilesOfOneName) {
  const ProcessResult result = compare("--json same_file --csv ./same_file -- base");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.err.find("--json writes the same file"), std::string::npos) << result.err;
}

// An epoch of 20 images ends with a window of 4, which is another shape.
TEST(MemoryCompare, TimesWholeWindowsAlone) {
  const Json all = compare_json(
      "--device cpu --data random:1x28x28:10:20 --batch 8 --steps 12 --threads 1 -- base accum=2");
  for (const Json& row : all.at("rows")) {
    const double ms = row.at("step_ms"), rate = row.at("images_per_s");
    EXPECT_NEAR(rate * ms / 1000, 8, 1e-6) << row.at("name");
  }
}

// Every remedy on lenet: what its label says, and what becomes of the peak.
TEST(MemoryCompare, TheDefaultListRunsOnLenetAndKeepsItsPromises) {
  const Json all = compare_json(tiny_comparison(""));
  EXPECT_EQ(all.at("model"), "lenet");
  EXPECT_EQ(all.at("device"), "cpu");
  for (const Json& row : all.at("rows")) {
    const std::string name = row.at("name");
    if (name == "classifier=linear") {
      EXPECT_EQ(row.at("message"), "the same as base");
      continue;
    }
    if (name == "no-cudnn" || name == "cudnn-benchmark" || name == "workspace-limit=0") {
      EXPECT_EQ(row.at("status"), "left out") << name;
      EXPECT_NE(row.at("message"), "") << name;
      continue;
    }
    ASSERT_EQ(row.at("status"), "ok") << name << ": " << row.at("message");
    int64_t parts = 0, highest = 0;
    for (const auto& [tag, bytes] : row.at("parts").items()) parts += bytes.get<int64_t>();
    EXPECT_EQ(parts, row.at("peak_allocated")) << name;
    const Json& by_tag = row.at("timeline").at("by_tag");
    const size_t points = row.at("timeline").at("phase").size();
    EXPECT_GT(points, 20u) << name;
    EXPECT_LE(points, 400u) << name;
    for (size_t i = 0; i < points; ++i) {
      int64_t sum = 0;
      for (const Json& bytes : by_tag) sum += bytes.at(i).get<int64_t>();
      highest = std::max(highest, sum);
    }
    EXPECT_EQ(highest, row.at("peak_allocated")) << name;
    EXPECT_TRUE(row.at("device_bytes").is_null()) << name << ": no driver was asked";
    EXPECT_GT(row.at("step_ms").get<double>(), 0) << name;
    EXPECT_GT(row.at("images_per_s").get<double>(), 0) << name;
    EXPECT_EQ(row.at("evaluation_peak").is_null(), name == "no-eval") << name;
  }
  for (const char* name : {"base", "checkpoint", "saved=offload", "no-eval", "eval-with-grad"}) {
    EXPECT_EQ(label_of(all, name), "bit-identical") << name;
  }
  // Fused and separate layers, other layouts and other sums compute the same but for rounding, and
  // half precision within its own. lenet has no batch norm, so smaller passes do too.
  for (const char* name : {"no-inplace", "layout=nchw"}) {
    EXPECT_NE(label_of(all, name), "changes training") << name;
  }
  for (const char* name : {"accum=2", "accum=4", "amp", "amp=bf16", "amp+checkpoint", "amp+accum=4",
                           "amp+accum=4+checkpoint"}) {
    EXPECT_EQ(label_of(all, name), "rounding") << name;
  }
  for (const char* name : {"batch=8", "optimizer=adam", "classifier=conv", "classifier=pool"}) {
    EXPECT_EQ(label_of(all, name), "changes training") << name;
  }
  EXPECT_EQ(row_of(all, "classifier=conv").at("message"), "classifier");
  const int64_t base = peak_of(all, "base");
  EXPECT_LT(peak_of(all, "batch=8"), base);
  EXPECT_LT(peak_of(all, "checkpoint"), base);
  EXPECT_LT(peak_of(all, "accum=4"), base);
  // Nearly all of lenet is one matrix of weights. With amp they have a half copy beside them, which
  // is more than its half activations save.
  EXPECT_GT(peak_of(all, "amp"), base);
  EXPECT_GT(peak_of(all, "optimizer=adam"), base) << "it keeps two values per weight";
  EXPECT_EQ(peak_of(all, "eval-with-grad"), base) << "training has its own peak";
  EXPECT_LT(peak_of(all, "classifier=conv"), base * 3 / 4) << "most weights are in one layer";
  const auto evaluation_peak = [&](const char* name) {
    return row_of(all, name).at("evaluation_peak").get<int64_t>();
  };
  EXPECT_GT(evaluation_peak("eval-with-grad"), evaluation_peak("base"));
}

// lenet is mostly weights; activations are what these remedies act on.
TEST(MemoryCompare, PeaksFallWhereActivationsAreMostOfThem) {
  const Json meta = compare_json(
      "--device meta:cuda --model resnet18 --data random:3x32x32:10:256 --batch 64 --steps 2 "
      "--no-eval -- base accum=4 amp amp=bf16 checkpoint no-inplace amp+accum=4+checkpoint "
      "batch=32 workspace-limit=0 no-cudnn layout=nchw");
  const int64_t base = peak_of(meta, "base");
  for (const char* name : {"accum=4", "amp", "amp=bf16", "checkpoint", "batch=32"}) {
    EXPECT_LT(peak_of(meta, name), base) << name;
    EXPECT_GT(row_of(meta, name).at("saved").get<double>(), 0.1) << name;
  }
  EXPECT_LT(peak_of(meta, "amp+accum=4+checkpoint"), peak_of(meta, "amp"));
  EXPECT_LE(peak_of(meta, "workspace-limit=0"), base);
  EXPECT_GT(peak_of(meta, "no-inplace"), base);
  for (const Json& row : meta.at("rows")) {
    EXPECT_EQ(row.at("status"), "ok") << row.at("name") << row.at("message");
    EXPECT_TRUE(row.at("step_ms").is_null()) << "a meta device takes no time";
    EXPECT_TRUE(row.at("fidelity").is_null()) << "and computes nothing";
    EXPECT_TRUE(row.at("device_bytes").is_null());
  }
}

// With batch norm, smaller passes are another training; what is only recomputed is not.
TEST(MemoryCompare, BatchNormTellsAccumulationFromTheLargeBatch) {
  const Json out = compare_json(
      "--device cpu --model resnet18 --data random:3x8x8:4:32 --batch 8 --steps 2 --no-eval "
      "--threads 2 -- base checkpoint accum=2 no-inplace");
  EXPECT_EQ(label_of(out, "checkpoint"), "bit-identical");
  EXPECT_EQ(label_of(out, "accum=2"), "changes training");
  EXPECT_NE(label_of(out, "no-inplace"), "changes training");
  const Json accumulated = row_of(out, "accum=2");
  EXPECT_NE(accumulated.at("message").get<std::string>().find("batch norm"), std::string::npos);
  EXPECT_GT(accumulated.at("fidelity").at("gradient_difference").get<double>(), 1e-3);
  EXPECT_GT(accumulated.at("fidelity").at("batch_norm_difference").get<double>(), 1e-3);
}

// A step in backward frees each gradient before all are there, and is compared all the same.
TEST(MemoryCompare, AStepInBackwardIsJudgedByTheGradientsThatItUsed) {
  for (const char* optimizer : {"sgd", "adam"}) {
    SCOPED_TRACE(optimizer);
    const Json out = compare_json(tiny_comparison(
        std::string("--optimizer ") + optimizer +
        " -- base step-in-backward checkpoint+step-in-backward accum=4 accum=4+step-in-backward "
        "clip-norm=0.001"));
    for (const char* name : {"step-in-backward", "checkpoint+step-in-backward"}) {
      EXPECT_EQ(label_of(out, name), "bit-identical");
      EXPECT_EQ(row_of(out, name).at("fidelity").at("gradient_difference"), 0.0);
      EXPECT_EQ(row_of(out, name).at("message"), "");
    }
    EXPECT_EQ(label_of(out, "accum=4+step-in-backward"), label_of(out, "accum=4"));
    EXPECT_EQ(row_of(out, "accum=4+step-in-backward").at("fidelity"),
              row_of(out, "accum=4").at("fidelity"))
        << "the same gradients, used at another time";
    EXPECT_GT(row_of(out, "accum=4").at("fidelity").at("gradient_difference").get<double>(), 0.0);
    EXPECT_EQ(row_of(out, "clip-norm=0.001").at("message"), "clip_norm");
  }
}

TEST(MemoryCompare, RunningOutOfMemoryIsARowAndTheRestGoesOn) {
  const TemporaryFolder folder;
  const std::string csv = folder.path("rows.csv");
  const Json out = compare_json(tiny_comparison(
      "--csv " + csv +
      " -- base memory-limit=10MiB memory-limit=1MiB data=random:1x7x7:10:64 checkpoint"));
  const Json small = row_of(out, "memory-limit=10MiB");
  EXPECT_EQ(small.at("status"), "out of memory");
  EXPECT_NE(small.at("message").get<std::string>().find("asked for"), std::string::npos) << small;
  EXPECT_NE(small.at("message").get<std::string>().find("limit 10.00 MiB"), std::string::npos);
  EXPECT_GT(small.at("peak_allocated").get<int64_t>(), 0);
  EXPECT_LE(small.at("peak_reserved").get<int64_t>(), int64_t{10} << 20);
  EXPECT_TRUE(small.at("saved").is_null());
  EXPECT_TRUE(small.at("fidelity").is_null());
  EXPECT_EQ(row_of(out, "memory-limit=1MiB").at("status"), "out of memory");
  // Other parameters: nothing to compare, and another training.
  EXPECT_EQ(label_of(out, "data=random:1x7x7:10:64"), "changes training");
  EXPECT_TRUE(
      row_of(out, "data=random:1x7x7:10:64").at("fidelity").at("gradient_difference").is_null());
  EXPECT_EQ(label_of(out, "checkpoint"), "bit-identical");
  EXPECT_NE(file_text(csv).find("\r\nmemory-limit=1MiB,"), std::string::npos);
}

TEST(MemoryCompare, AFailedRowHasItsMessageAndTheFirstThatEndsIsWhatOthersAreComparedWith) {
  const TemporaryFolder folder;
  const std::string file = folder.path("compare.json");
  const ProcessResult result = compare(tiny_comparison(
      "--json " + file + " -- memory-limit=1MiB data=random:1x2x2:10:64 base checkpoint"));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.out.find("data=random:1x2x2:10:64: lenet: images must be at least"),
            std::string::npos)
      << result.out;
  const Json out = Json::parse(file_text(file));
  EXPECT_EQ(row_of(out, "data=random:1x2x2:10:64").at("status"), "failed");
  EXPECT_TRUE(row_of(out, "memory-limit=1MiB").at("saved").is_null());
  EXPECT_EQ(row_of(out, "base").at("status"), "ok");
  EXPECT_EQ(row_of(out, "base").at("saved"), 0.0);
  EXPECT_EQ(label_of(out, "checkpoint"), "bit-identical");
  EXPECT_GT(row_of(out, "checkpoint").at("saved").get<double>(), 0.01);
  EXPECT_NE(result.out.find("what the others are compared with"), std::string::npos) << result.out;
}

TEST(MemoryCompare, CtrlCKeepsTheRowsThatWereDone) {
  const TemporaryFolder folder;
  const std::string json = folder.path("compare.json"), html = folder.path("compare.html");
  // The second row would take minutes.
  Process process(
      compare_command("--device cpu --data random:1x8x8:10:64 --batch 16 --epochs 1 "
                      "--json " +
                      json + " --html " + html + " -- base batch=1+data=random:1x28x28:10:100000"));
  ASSERT_TRUE(process.wait_for_output("1/2 base: peak "));
  process.send(SIGINT);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.exit_code, 130) << result.err;
  EXPECT_NE(result.out.find("interrupted"), std::string::npos) << result.out;
  const Json kept = Json::parse(file_text(json));
  ASSERT_EQ(kept.at("rows").size(), 1u);
  EXPECT_EQ(kept.at("rows")[0].at("name"), "base");
  EXPECT_FALSE(file_text(html).empty());
}

TEST(MemoryCompare, RefusesWrongInputInOneLineBeforeAnythingRuns) {
  const TemporaryFolder folder;
  const std::string file = folder.path("compare.json");
  for (const std::string& arguments :
       {std::string("-- base chekpoint"), std::string("-- base --checkpoint"),
        std::string("-- base accum=3"), std::string("--html /nowhere/page.html -- base"),
        std::string("--device cuda:7 -- base"),
        std::string("--device cpu --data /nowhere -- base")}) {
    const ProcessResult result = compare("--json " + file + " --batch 16 " + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.out, "") << arguments;
    EXPECT_EQ(result.err.rfind("memory-compare: error: ", 0), 0u) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

TEST(MemoryCompare, FilesAreReplacedWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const std::string json = folder.path("compare.json");
  write_bytes(json, Bytes(3, 'x'));
  ProcessOptions small_files;
  small_files.file_size_limit_bytes = 1000;  // the report is larger
  const ProcessResult failed =
      run_process(compare_command("--device meta:cpu --data random:1x8x8:10:64 --steps 2 --json " +
                                  json + " -- base"),
                  small_files);
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_NE(failed.out.find("base"), std::string::npos) << "the table was printed before";
  EXPECT_EQ(file_text(json), "xxx");
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.root())) {
    ++files;
  }
  EXPECT_EQ(files, 1u);
}

TEST(MemoryCompare, SaysHowItIsUsed) {
  const ProcessResult help = compare("--help");
  EXPECT_EQ(help.exit_code, 0);
  for (const char* part : {"usage: memory-compare", "accum=N", "--html FILE", "bit-identical"}) {
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
  }
  for (size_t begin = 0, end; (end = help.out.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    EXPECT_LE(end - begin, 80u) << help.out.substr(begin, end - begin);
  }
  EXPECT_EQ(compare("--version").out.rfind("headroom ", 0), 0u);
}

}  // namespace
}  // namespace headroom::test
