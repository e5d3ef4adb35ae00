// The table for people.
#include <fmt/format.h>

#include <algorithm>

#include "core/memory/caching_allocator.h"
#include "train/compare/comparison.h"
#include "train/display.h"
#include "train/report.h"

namespace headroom {
namespace {

constexpr const char* kUnknown = "-";

using Cells = std::vector<std::string>;

// Columns as wide as their widest cell, two blanks apart; the first and the last to the left.
std::string aligned(const std::vector<Cells>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const Cells& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const Cells& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool is_text = i == 0 || i + 1 == widths.size();
      if (i > 0) line += "  ";
      line += is_text ? fmt::format("{:<{}}", row[i], widths[i])
                      : fmt::format("{:>{}}", row[i], widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string bytes_cell(int64_t bytes) { return bytes > 0 ? format_bytes(bytes) : kUnknown; }

std::string difference_cell(const std::optional<double>& difference) {
  if (!difference) return kUnknown;
  return *difference == 0 ? "0" : fmt::format("{:.1e}", *difference);
}

std::string last_cell(const ComparedRow& row, bool is_reference) {
  if (row.measured.status != RowStatus::ok) return name_of(row.measured.status);
  if (is_reference) return "what the others are compared with";
  return row.fidelity ? name_of(row.fidelity->label) : kUnknown;
}

Cells cells_of(const ComparedRow& row, bool is_reference) {
  const RowMeasurement& m = row.measured;
  // What ran out of memory had more in mind.
  const bool is_lower_bound = m.status == RowStatus::out_of_memory && m.peak.allocated > 0;
  return {
      row.configuration.name,
      (is_lower_bound ? "> " : "") + bytes_cell(m.peak.allocated),
      row.saved ? fmt::format("{:.1f} %", 100 * *row.saved) : kUnknown,
      bytes_cell(m.peak.reserved),
      bytes_cell(m.evaluation_peak),
      m.device_bytes ? format_bytes(*m.device_bytes) : kUnknown,
      m.step_ms ? fmt::format("{:.2f}", *m.step_ms) : kUnknown,
      m.images_per_s ? format_rate(*m.images_per_s) : kUnknown,
      is_reference || !row.fidelity ? kUnknown : difference_cell(row.fidelity->gradient_difference),
      last_cell(row, is_reference)};
}

bool is_known(const ComparedRow& row, size_t tag) { return row.measured.peak.parts[tag] > 0; }

// A column per tag that any row has.
std::string parts_table(const std::vector<ComparedRow>& rows) {
  std::vector<size_t> tags;
  for (size_t tag = 0; tag < kTagCount; ++tag) {
    if (std::any_of(rows.begin(), rows.end(),
                    [&](const ComparedRow& row) { return is_known(row, tag); })) {
      tags.push_back(tag);
    }
  }
  if (tags.empty()) return {};
  std::vector<Cells> table = {{"parts of the peak"}};
  for (const size_t tag : tags) table[0].push_back(words_of(static_cast<Tag>(tag)));
  for (const ComparedRow& row : rows) {
    Cells cells = {row.configuration.name};
    for (const size_t tag : tags) cells.push_back(bytes_cell(row.measured.peak.parts[tag]));
    if (std::any_of(tags.begin(), tags.end(), [&](size_t tag) { return is_known(row, tag); })) {
      table.push_back(cells);
    }
  }
  // An empty last column, so that numbers stand to the right.
  for (Cells& cells : table) cells.emplace_back();
  return "\n" + aligned(table);
}

std::string headline(const Comparison& comparison) {
  const TrainConfig& config = comparison.config;
  RunInfo device;
  device.device_name = config.device;
  device.device_description = comparison.device_description;
  std::string out = fmt::format("{}, {} images per pass", model_text(config), config.batch);
  if (config.accum > 1) out += fmt::format(", {} passes per step", config.accum);
  if (config.steps > 0) out += fmt::format(", {} steps per row", config.steps);
  return out + ", on " + device_text(device) + "\n\n";
}

}  // namespace

std::string comparison_table(const Comparison& comparison) {
  std::vector<Cells> table = {{"configuration", "peak", "saved", "reserved", "eval", "device",
                               "ms/step", "images/s", "gradient", "fidelity"}};
  std::string remarks;
  const ComparedRow* reference = reference_of(comparison.rows);
  for (const ComparedRow& row : comparison.rows) {
    table.push_back(cells_of(row, &row == reference));
    if (const int64_t bytes = row.measured.peak.host_allocated; bytes > 0) {
      remarks += fmt::format("\n{}: {} wait on the host at most", row.configuration.name,
                             format_bytes(bytes));
    }
    if (row.measured.message.empty()) continue;
    remarks += fmt::format("\n{}: {}", row.configuration.name, row.measured.message);
  }
  std::string out = headline(comparison) + aligned(table) + parts_table(comparison.rows);
  if (!remarks.empty()) out += remarks + "\n";
  if (comparison.interrupted) out += "\ninterrupted: what is missing was not run\n";
  return out;
}

}  // namespace headroom
