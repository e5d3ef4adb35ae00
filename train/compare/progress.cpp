// Drawing progress.
#include "train/compare/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/memory/caching_allocator.h"

namespace headroom {

CompareProgress::CompareProgress(std::FILE* stream, size_t rows, DisplayOptions options)
    : stream_(stream), rows_(rows), options_(std::move(options)) {
  if (!options_.now) options_.now = steady_seconds;
  began_ = options_.now();
}

CompareProgress::~CompareProgress() { clear_line(); }

void CompareProgress::clear_line() {
  if (line_open_) std::fputs("\r\x1b[K", stream_);
  line_open_ = false;
  std::fflush(stream_);
}

void CompareProgress::draw(const std::string& line) {
  if (options_.query_columns) options_.columns = options_.query_columns();
  // One column stays free: a full line makes some terminals wrap.
  const auto room = static_cast<size_t>(std::max(options_.columns - 1, 1));
  std::fputs(("\r\x1b[K" + line.substr(0, room)).c_str(), stream_);
  line_open_ = true;
  std::fflush(stream_);
}

void CompareProgress::on_row_begin(size_t index, const Configuration& row) {
  head_ = fmt::format("{}/{} {}", index + 1, rows_, row.name);
}

void CompareProgress::on_row_progress(const RowProgress& progress) {
  if (!options_.terminal) return;
  std::string what = "starts";
  if (progress.steps > 0) what = fmt::format("step {}/{}", progress.step, progress.steps);
  if (progress.evaluating) what += "  evaluates";
  draw(fmt::format("{}  {}  {}", head_, what, format_duration(options_.now() - began_)));
}

void CompareProgress::on_row_end(const ComparedRow& row) {
  if (options_.terminal) return;
  const RowMeasurement& m = row.measured;
  std::string what = m.status == RowStatus::ok ? "" : name_of(m.status);
  if (m.peak.allocated > 0) {
    what += fmt::format("{}peak {}", what.empty() ? "" : ", ", format_bytes(m.peak.allocated));
  }
  if (m.step_ms) what += fmt::format(", {:.2f} ms per step", *m.step_ms);
  std::fputs(fmt::format("{}: {}\n", head_, what).c_str(), stream_);
  std::fflush(stream_);
}

}  // namespace headroom
