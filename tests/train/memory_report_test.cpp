// --memory-report: the file that the program writes.
#include <gtest/gtest.h>

#include "tests/train/program_run.h"

namespace headroom::test {
namespace {

TEST(MemoryReport, OfTheProgramSumsToThePeakToTheByte) {
  const TemporaryFolder folder;
  const std::string file = folder.path("report.json");
  const Json run = train_json(tiny_run("--amp --memory-report " + file));
  const Json report = Json::parse(file_text(file));
  EXPECT_EQ(report["run"]["peak_allocated"], run["peak_allocated"]);
  const auto peak = run["peak_allocated"].get<int64_t>();
  int64_t parts = 0, layers = 0;
  for (const Json& part : report["peak"]["parts"]) parts += part["bytes"].get<int64_t>();
  for (const Json& layer : report["layers"]) layers += layer["total"].get<int64_t>();
  EXPECT_EQ(parts, peak);
  EXPECT_EQ(layers, peak);
  const Json& timeline = report["timeline"];
  EXPECT_EQ(timeline["allocated"][report["peak"]["index"].get<size_t>()], peak);
  const size_t points = timeline["allocated"].size();
  for (const char* key : {"time_us", "reserved", "phase", "op", "path"}) {
    EXPECT_EQ(timeline[key].size(), points) << key;
  }
  EXPECT_EQ(timeline["by_tag"].size(), report["tags"].size());
}

TEST(MemoryReport, OfAnHtmlFileIsAPageThatHoldsTheReport) {
  const TemporaryFolder folder;
  const std::string file = folder.path("report.html");
  const Json run = train_json(tiny_run("--memory-report " + file));
  const std::string page = file_text(file), data = "id=\"data\">";
  ASSERT_TRUE(page.starts_with("<!DOCTYPE html>"));
  const size_t begin = page.find(data) + data.size();
  const Json report = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(report["peak"]["allocated"], run["peak_allocated"]);
}

// What forward made is freed in backward: the phase is the moment's, the op that of the block.
TEST(MemoryReport, GoesThroughThePhasesInOrder) {
  const TemporaryFolder folder;
  const std::string file = folder.path("report.json");
  train_json(tiny_run("--memory-report " + file));
  const Json report = Json::parse(file_text(file));
  std::vector<std::string> runs;
  for (const Json& index : report["timeline"]["phase"]) {
    const auto phase = report["phases"][index.get<size_t>()].get<std::string>();
    if (phase != "none" && (runs.empty() || runs.back() != phase)) runs.push_back(phase);
  }
  // The optimizer's part is that the gradients go.
  EXPECT_EQ(runs, (std::vector<std::string>{"forward", "backward", "optimizer"}));
}

// What was held when the request failed, and not the peak of the step, nor what was left
// afterwards.
TEST(MemoryReport, OfARunOutOfMemoryShowsWhatWasHeldThen) {
  const TemporaryFolder folder;
  const std::string json = folder.path("report.json"), html = folder.path("report.html");
  const std::string limited = tiny_run("--memory-limit 24MiB --threads 1 --json --memory-report ");
  const ProcessResult result = train(limited + json);
  ASSERT_EQ(result.exit_code, 3) << result.err;
  const Json error = Json::parse(result.out)["error"], report = Json::parse(file_text(json));
  EXPECT_EQ(report["run"]["error"], error);
  const Json& held = report["peak"];
  EXPECT_EQ(held["allocated"], error["allocated_bytes"]);
  int64_t parts = 0, layers = 0;
  for (const Json& part : held["parts"]) parts += part["bytes"].get<int64_t>();
  for (const Json& layer : report["layers"]) layers += layer["total"].get<int64_t>();
  EXPECT_EQ(parts, held["allocated"]);
  EXPECT_EQ(layers, held["allocated"]);
  for (const char* key : {"op", "path", "phase"}) EXPECT_EQ(held[key], error[key]) << key;
  for (size_t tag = 0; tag < report["tags"].size(); ++tag) {
    EXPECT_EQ(held["by_tag"][tag], error["parts"][report["tags"][tag].get<std::string>()]);
  }
  const Json& allocated = report["timeline"]["allocated"];
  EXPECT_GT(allocated.size(), 20u) << "the way to it";
  EXPECT_EQ(held["index"], allocated.size() - 1);
  EXPECT_EQ(allocated.back(), held["allocated"]);
  EXPECT_EQ(train(limited + html).exit_code, 3);
  EXPECT_NE(file_text(html).find(error["op"].get<std::string>()), std::string::npos);
}

TEST(MemoryReport, ThatCannotBeWrittenEndsTheRunWithAnError) {
  const ProcessResult result = train(tiny_run("--memory-report /nowhere/report.json"));
  EXPECT_EQ(result.exit_code, 2) << "known before the run";
  EXPECT_NE(result.err.find("/nowhere/report.json"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace headroom::test
