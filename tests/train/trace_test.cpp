// --trace: the file that the program writes.
#include "train/trace.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/train/program_run.h"

namespace headroom::test {
namespace {

struct Trace {
  Json run;  // what --json printed
  Json other;
  std::vector<Json> ranges, memory, by_tag;

  std::vector<Json> ranges_of(const std::string& category, const std::string& name = {}) const {
    std::vector<Json> out;
    for (const Json& range : ranges) {
      if (range["cat"] == category && (name.empty() || range["name"] == name)) {
        out.push_back(range);
      }
    }
    return out;
  }
};

Trace trace_of(const std::string& flags) {
  const TemporaryFolder folder;
  const std::string file = folder.path("trace.json");
  Trace out;
  out.run = train_json(flags + " --trace " + file);
  const Json trace = Json::parse(file_text(file));
  out.other = trace["otherData"];
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") out.ranges.push_back(event);
    if (event["ph"] == "C" && event["name"] == "allocated and cached") out.memory.push_back(event);
    if (event["ph"] == "C" && event["name"] == "allocated by tag") out.by_tag.push_back(event);
  }
  return out;
}

double begin_of(const Json& range) { return range["ts"].get<double>(); }
double end_of(const Json& range) { return begin_of(range) + range["dur"].get<double>(); }
// To the nanosecond, in which times are kept.
bool lies_in(const Json& inner, const Json& outer) {
  constexpr double kNanosecond = 1e-3;
  return begin_of(inner) >= begin_of(outer) - kNanosecond &&
         end_of(inner) <= end_of(outer) + kNanosecond;
}

TEST(Trace, HasTheStepsAskedForAndSaysWhatItLeftOut) {
  const Trace trace = trace_of(tiny_run("--trace-steps 2 --no-eval"));
  const std::vector<Json> steps = trace.ranges_of("step");
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0]["args"]["number"], 1);
  EXPECT_EQ(steps[1]["args"]["number"], 2);
  EXPECT_EQ(trace.other["steps"], 2);
  EXPECT_EQ(trace.other["steps_left_out"], 2);
  EXPECT_EQ(trace.other["ranges_left_out"], 0);
  EXPECT_EQ(trace.other["device"], "cpu");
  EXPECT_NE(trace.other["times"].get<std::string>().find("host time"), std::string::npos);
}

TEST(Trace, PutsPhasesIntoStepsModulesIntoPhasesAndKernelsIntoOps) {
  const Trace trace = trace_of(tiny_run("--no-eval"));
  const std::vector<Json> steps = trace.ranges_of("step");
  ASSERT_EQ(steps.size(), 3u);
  const auto step_of = [&](const Json& range) {
    return std::find_if(steps.begin(), steps.end(),
                        [&](const Json& step) { return lies_in(range, step); }) -
           steps.begin();
  };
  for (const char* phase : {"input", "forward", "backward", "optimizer"}) {
    const std::vector<Json> found = trace.ranges_of("phase", phase);
    ASSERT_EQ(found.size(), 3u) << phase;
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(step_of(found[i]), static_cast<long>(i));
  }
  const Json forward = trace.ranges_of("phase", "forward")[0];
  EXPECT_FALSE(lies_in(trace.ranges_of("phase", "backward")[0], forward));
  const std::vector<Json> modules = trace.ranges_of("module", "classifier.0");
  for (const char* phase : {"forward", "backward"}) {
    const Json whole = trace.ranges_of("phase", phase)[1];
    EXPECT_TRUE(std::any_of(modules.begin(), modules.end(), [&](const Json& module) {
      return module["args"]["phase"] == phase && lies_in(module, whole);
    })) << phase;
  }
  const std::vector<Json> ops = trace.ranges_of("op");
  for (const Json& kernel : trace.ranges_of("kernel")) {
    if (kernel["args"]["phase"] == "none") continue;  // the loss meter's, between two phases
    EXPECT_TRUE(std::any_of(ops.begin(), ops.end(), [&](const Json& op) {
      return lies_in(kernel, op);
    })) << kernel;
  }
  EXPECT_TRUE(std::any_of(ops.begin(), ops.end(), [](const Json& op) {
    return op["args"].value("module", "") == "classifier.0" && op["args"]["phase"] == "backward";
  }));
}

// Ranges that overlap in part are drawn wrongly by every viewer.
TEST(Trace, NestsItsRanges) {
  const Trace trace = trace_of(tiny_run("--model resnet18 --checkpoint --device meta:cpu"));
  std::vector<Json> open;
  ASSERT_GT(trace.ranges.size(), 500u);
  for (const Json& range : trace.ranges) {  // in the order in which they began
    while (!open.empty() && end_of(open.back()) <= begin_of(range)) open.pop_back();
    if (!open.empty()) {
      EXPECT_TRUE(lies_in(range, open.back())) << range << open.back();
    }
    open.push_back(range);
  }
}

TEST(Trace, CountsTheBytesOfEveryStep) {
  const Trace trace = trace_of(tiny_run("--steps 3 --no-eval"));
  ASSERT_EQ(trace.memory.size(), trace.by_tag.size());
  int64_t highest = 0;
  for (size_t i = 0; i < trace.memory.size(); ++i) {
    int64_t sum = 0;
    for (const auto& [tag, bytes] : trace.by_tag[i]["args"].items()) sum += bytes.get<int64_t>();
    ASSERT_EQ(trace.memory[i]["args"]["allocated"], sum);
    ASSERT_GE(trace.memory[i]["args"]["cached"], 0);
    highest = std::max(highest, sum);
  }
  EXPECT_EQ(highest, std::max(trace.run["peak_allocated"].get<int64_t>(),
                              trace.run["first_step"]["peak_allocated"].get<int64_t>()));
  // On the clock of the ranges.
  const std::vector<Json> steps = trace.ranges_of("step");
  EXPECT_GE(trace.memory.front()["ts"].get<double>() + 1, begin_of(steps.front()));
  EXPECT_LE(trace.memory.back()["ts"].get<double>(), end_of(steps.back()));
}

TEST(Trace, HasTheEvaluationAfterItsSteps) {
  const Trace trace = trace_of(two_epochs("--epochs 2"));
  const std::vector<Json> evaluations = trace.ranges_of("phase", "evaluation");
  ASSERT_EQ(evaluations.size(), 0u) << "the trace ends before the first epoch does";
  EXPECT_EQ(trace.other["evaluations_left_out"], 2);
  EXPECT_EQ(
      trace_of(two_epochs("--epochs 2 --trace-steps 4")).ranges_of("phase", "evaluation").size(),
      1u);
}

// Remembers how often it was told.
class Counter : public RangeListener {
 public:
  void begin_range(RangeKind, const char*, int64_t) noexcept override { ++begun; }
  void end_range() noexcept override { ++ended; }
  int64_t begun = 0, ended = 0;
};

TEST(TraceRecorder, PassesRangesOnAndLeavesTheThreadAsItFoundIt) {
  Counter counter;
  RangeListener* const before = set_range_listener(&counter);
  {
    TraceRecorder trace(Device::cpu(), 1);
    const OpScope op("relu");
  }
  { const OpScope op("relu"); }
  EXPECT_EQ(set_range_listener(before), &counter);
  EXPECT_EQ(counter.begun, 2);
  EXPECT_EQ(counter.ended, 2);
}

}  // namespace
}  // namespace headroom::test
