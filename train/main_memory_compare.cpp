// The program `memory-compare`: trains configurations beside each other and prints what each saves,
// costs and changes. It runs itself anew for every row.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "kernels/register.h"
#include "train/checkpoint/atomic_file.h"
#include "train/checkpoint/checkpoint.h"
#include "train/compare/comparison.h"
#include "train/compare/process.h"
#include "train/compare/progress.h"
#include "train/main_support.h"
#include "train/pages.h"
#include "train/setup.h"
#include "train/signals.h"

namespace headroom {
namespace {

constexpr const char* kProgram = "memory-compare";

void write_files(const CompareLine& line, const Comparison& comparison) {
  const nlohmann::ordered_json json = comparison_json(comparison);
  if (!line.json.empty()) {
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;
    write_file_atomically(line.json, json.dump(1, ' ', false, replace) + "\n");
  }
  if (!line.csv.empty()) write_file_atomically(line.csv, comparison_csv(comparison));
  if (!line.html.empty()) write_file_atomically(line.html, page_of_comparison(json));
}

int exit_code_of(const Comparison& comparison) {
  if (comparison.interrupted) return kInterruptedExitCode;
  const bool failed =
      std::any_of(comparison.rows.begin(), comparison.rows.end(),
                  [](const ComparedRow& row) { return row.measured.status == RowStatus::failed; });
  return failed ? kFailed : kDone;
}

int compare(const CompareLine& line, Device device) {
  Comparison comparison;
  {
    CompareProgress progress(stderr, line.rows.size(), display_options_of(stderr));
    comparison = run_comparison(line, device, progress, stop_requested);
  }
  comparison.cudnn_version = cudnn_version_of(line.config, device);
  // The table first: it is there even if a file cannot be written.
  print_result(comparison_table(comparison));
  write_files(line, comparison);
  return exit_code_of(comparison);
}

int run(const std::vector<std::string>& arguments) {
  CompareLine line;
  Device device;
  try {
    line = parse_compare_line(arguments);
    if (line.action == CompareLine::Action::show_help) {
      print_result(compare_help_text());
      return kDone;
    }
    if (line.action == CompareLine::Action::show_version) {
      print_result(version_text());
      return kDone;
    }
    const std::vector<std::pair<std::string, std::string>> files = {
        {"--json", line.json}, {"--csv", line.csv}, {"--html", line.html}};
    for (const auto& [flag, path] : files) {
      if (!path.empty()) check_writable(flag, path);
    }
    check_distinct(files);
    open_devices(kProgram, line.config);
    device = device_of(line.config);
    leave_out_meaningless(line.rows, device);
    // What is wrong with the data would be wrong in every row.
    TrainConfig config = line.config;
    RunInfo info;
    if (!config.data.empty()) open_data_set(config, info);
  } catch (const InvalidArgument& error) {
    return fail(kProgram, error.what(), kWrongInput);
  }
  return compare(line, device);
}

int run_row() {
  register_kernels();
  return answer_row_request();
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  using namespace headroom;
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  if (arguments == std::vector<std::string>{kRowArgument}) return guarded(kProgram, run_row);
  hold_standard_streams();
  install_signal_handlers("memory-compare: stopping; once more ends at once");
  return guarded(kProgram, [&] { return run(arguments); });
}
