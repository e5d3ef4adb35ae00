// The table and the files, made of rows that were put together by hand.
#include <gtest/gtest.h>

#include <string>

#include <nlohmann/json.hpp>

#include "train/compare/comparison.h"
#include "train/compare/measure.h"

namespace headroom {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

ComparedRow row(const std::string& name, RowStatus status, int64_t peak) {
  ComparedRow out;
  out.configuration.name = name;
  out.measured.status = status;
  out.measured.peak.allocated = peak;
  out.measured.peak.reserved = 2 * peak;
  out.measured.peak.parts[static_cast<size_t>(Tag::parameter)] = peak / 4;
  out.measured.peak.parts[static_cast<size_t>(Tag::saved_activation)] = peak - peak / 4;
  return out;
}

Comparison example() {
  Comparison out;
  out.config.model = "lenet";
  out.config.device = "cpu";
  out.config.steps = 4;
  out.command = "memory-compare";
  out.device_description = "CPU";
  out.rows.push_back(row("base", RowStatus::ok, 8 * kMiB));
  out.rows.push_back(row("amp", RowStatus::ok, 6 * kMiB));
  ComparedRow& amp = out.rows.back();
  amp.configuration.flags = {"--amp", "--checkpoint"};
  amp.saved = 0.25;
  amp.measured.step_ms = 12.345;
  amp.measured.evaluation_peak = 9 * kMiB;
  amp.measured.images_per_s = 5184;
  amp.fidelity = Fidelity{FidelityLabel::rounding, 0.0123, 2.5, 0.001, std::nullopt, 0.001};
  amp.measured.timeline = {{BytesByTag{}}, {"forward"}};
  out.rows.push_back(row("batch=512", RowStatus::out_of_memory, 7 * kMiB));
  out.rows.back().measured.message = "asked for 1, \"too much\"";
  out.rows.push_back(row("no-cudnn", RowStatus::left_out, 0));
  out.rows.back().measured.message = "cuDNN computes on a GPU only";
  return out;
}

// The line that begins with the name.
std::string line_of(const std::string& text, const std::string& name) {
  const size_t at = text.find("\n" + name);
  return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

TEST(ComparisonTable, HasARowPerConfigurationAndItsPartsBelow) {
  const std::string table = comparison_table(example());
  const std::string amp = line_of(table, "amp");
  for (const char* cell :
       {"6.00 MiB", "25.0 %", "12.00 MiB", "9.00 MiB", "12.35", "5184", "1.2e-02", "rounding"}) {
    EXPECT_NE(amp.find(cell), std::string::npos) << cell << "\n" << table;
  }
  EXPECT_NE(line_of(table, "base").find("what the others are compared with"), std::string::npos);
  EXPECT_NE(line_of(table, "batch=512").find("> 7.00 MiB"), std::string::npos) << table;
  EXPECT_NE(line_of(table, "batch=512").find("out of memory"), std::string::npos);
  EXPECT_NE(line_of(table, "no-cudnn").find("left out"), std::string::npos);
  const std::string parts = table.substr(table.find("parts of the peak"));
  EXPECT_NE(line_of(parts, "amp").find("1.50 MiB"), std::string::npos) << parts;
  EXPECT_NE(line_of(parts, "amp").find("4.50 MiB"), std::string::npos) << parts;
  EXPECT_EQ(parts.find("gradient"), std::string::npos) << "no row has any";
  EXPECT_NE(table.find("\nno-cudnn: cuDNN computes"), std::string::npos);
  EXPECT_EQ(table.find("interrupted"), std::string::npos);
  // Columns stand below each other.
  EXPECT_EQ(line_of(table, "base").find("MiB"), amp.find("MiB")) << table;
}

TEST(ComparisonTable, SaysWhatIsMissingAfterAnInterruption) {
  Comparison nothing_done = example();
  nothing_done.rows.clear();
  nothing_done.interrupted = true;
  EXPECT_NE(comparison_table(nothing_done).find("interrupted"), std::string::npos);
  EXPECT_EQ(comparison_json(nothing_done)["rows"].size(), 0u);
}

TEST(ComparisonJson, HasTheFieldsThatReadersRelyOn) {
  const nlohmann::ordered_json json = comparison_json(example());
  for (const char* key : {"model", "batch", "accum", "device", "device_description",
                          "cudnn_version", "steps", "command", "rows"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  ASSERT_EQ(json["rows"].size(), 4u);
  for (const auto& entry : json["rows"]) {
    for (const char* key : {"name", "flags", "status", "message", "peak_allocated", "peak_reserved",
                            "device_bytes", "parts", "first_step_peak", "evaluation_peak",
                            "step_ms", "images_per_s", "saved", "fidelity", "timeline"}) {
      EXPECT_TRUE(entry.contains(key)) << key;
    }
  }
  const auto& amp = json["rows"][1];
  EXPECT_EQ(amp["peak_allocated"], 6 * kMiB);
  EXPECT_EQ(amp["parts"]["saved_activation"], 6 * kMiB - 6 * kMiB / 4);
  EXPECT_EQ(amp["fidelity"]["label"], "rounding");
  EXPECT_TRUE(amp["fidelity"]["batch_norm_difference"].is_null());
  EXPECT_EQ(amp["timeline"]["phase"][0], "forward");
  EXPECT_EQ(amp["timeline"]["by_tag"]["gradient"].size(), 1u);
  EXPECT_TRUE(json["rows"][0]["fidelity"].is_null());
  EXPECT_EQ(json["rows"][2]["status"], "out of memory");
  EXPECT_EQ(json["rows"][3]["status"], "left out");
  EXPECT_TRUE(json["rows"][3]["peak_allocated"].is_null());
  EXPECT_TRUE(json["rows"][3]["parts"].is_null());
}

TEST(ComparisonCsv, HasOneQuotedLinePerRowWithAllColumns) {
  const std::string csv = comparison_csv(example());
  EXPECT_EQ(csv.substr(0, csv.find("peak_allocated")), "name,flags,status,message,");
  EXPECT_NE(csv.find("\r\namp,--amp --checkpoint,ok,,6291456,12582912,,1572864,0,0,0,4718592,"),
            std::string::npos)
      << csv;
  EXPECT_NE(csv.find("batch=512,,out of memory,\"asked for 1, \"\"too much\"\"\","),
            std::string::npos)
      << csv;
  // Outside of quotes every line has as many commas as the head.
  size_t commas = 0, in_line = 0, lines = 0;
  bool is_quoted = false;
  for (const char c : csv) {
    if (c == '"') is_quoted = !is_quoted;
    if (c == ',' && !is_quoted) ++in_line;
    if (c != '\n') continue;
    if (lines++ == 0) commas = in_line;
    EXPECT_EQ(in_line, commas) << "line " << lines;
    in_line = 0;
  }
  EXPECT_EQ(lines, 5u);
}

TEST(Timeline, ThinnedKeepsThePeakAndTheOrder) {
  constexpr size_t kPoints = 5003, kPeakAt = 2999;
  std::vector<TimelinePoint> points(kPoints);
  for (size_t i = 0; i < kPoints; ++i) {
    points[i].by_tag[0] = static_cast<int64_t>(i);
    points[i].by_tag[1] = i == kPeakAt ? 100000 : 0;
  }
  const Timeline thin = thinned(points, {});
  ASSERT_EQ(thin.by_tag.size(), 400u);
  EXPECT_EQ(thin.phase.size(), 400u);
  int64_t peak = 0;
  for (size_t i = 0; i < thin.by_tag.size(); ++i) {
    peak = std::max(peak, thin.by_tag[i][1]);
    if (i == 0) continue;
    EXPECT_GT(thin.by_tag[i][0], thin.by_tag[i - 1][0]) << i;
  }
  EXPECT_EQ(peak, 100000);
  points.resize(7);
  EXPECT_EQ(thinned(points, {}).by_tag.size(), 7u);
  EXPECT_TRUE(thinned({}, {}).by_tag.empty());
}

TEST(RowMeasurement, IsTheSameAfterItsWayThroughAPipe) {
  RowMeasurement sent = row("x", RowStatus::ok, 4 * kMiB).measured;
  sent.message = "m";
  sent.first_step_peak = 3;
  sent.device_bytes = 17;
  sent.step_ms = 0.1;
  sent.timeline = {{BytesByTag{1, 2, 3}}, {"backward"}};
  sent.facts.emplace();
  sent.facts->loss = 0.1 + 0.2;
  sent.facts->gradient_difference = 1.0 / 3;
  sent.facts->fingerprint = "f";
  sent.facts->config = {{"lr", 0.05}};
  const auto text = to_json(sent).dump();
  const RowMeasurement got = measurement_of(nlohmann::ordered_json::parse(text));
  EXPECT_EQ(to_json(got).dump(), text);
  EXPECT_EQ(got.facts->loss, sent.facts->loss);
  EXPECT_EQ(got.timeline.by_tag, sent.timeline.by_tag);
  EXPECT_FALSE(got.images_per_s.has_value());
}

}  // namespace
}  // namespace headroom
