// The program `train`: reads the command line, trains, shows progress, reports. Every failure ends
// in one line on standard error and the exit code that belongs to it.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "train/checkpoint/checkpoint.h"
#include "train/command_line.h"
#include "train/display.h"
#include "train/main_support.h"
#include "train/memory_report.h"
#include "train/observers.h"
#include "train/report.h"
#include "train/report_log.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace headroom {
namespace {

constexpr const char* kProgram = "train";

int train(Trainer& trainer, RunLog* log) {
  const TrainConfig& config = trainer.config();
  RunResult result;
  StepRecorder recorder(trainer.device());
  {
    Display display(stderr, trainer.device(), config, display_options_of(stderr));
    Observers observers;
    if (log) observers.add(*log);
    if (!config.memory_report.empty()) observers.add(recorder);
    observers.add(display);
    result = trainer.run(observers, stop_requested);
  }
  const Report report{config, trainer.info(), result, cudnn_version_of(config, trainer.device())};
  if (recorder.record() && !config.memory_report.empty()) {
    write_memory_report(config.memory_report, *recorder.record(), report);
  }
  if (config.json) {
    std::fputs(to_table(report).c_str(), stderr);
    print_result(to_json(report) + "\n");
  } else {
    print_result(to_table(report));
  }
  if (result.over_threshold) return kOutOfMemory;
  return result.interrupted ? kInterruptedExitCode : kDone;
}

int run(const std::vector<std::string>& arguments) {
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<RunLog> log;
  try {
    const CommandLine line = parse_command_line(arguments);
    if (line.action == CommandLine::Action::show_help) {
      print_result(help_text());
      return kDone;
    }
    if (line.action == CommandLine::Action::show_version) {
      print_result(version_text());
      return kDone;
    }
    open_devices(kProgram, line.config);
    if (!line.config.memory_report.empty()) {
      check_writable("--memory-report", line.config.memory_report);
    }
    trainer = std::make_unique<Trainer>(line.config);
    const std::string& path = trainer->config().log;
    if (!path.empty()) {
      log = std::make_unique<RunLog>(path, !trainer->config().resume.empty(), trainer->device());
    }
  } catch (const InvalidArgument& error) {
    return fail(kProgram, error.what(), kWrongInput);
  }
  if (stop_requested()) return kInterruptedExitCode;
  return train(*trainer, log.get());
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  using namespace headroom;
  install_signal_handlers("train: stopping after this step; once more ends at once");
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  return guarded(kProgram, [&] { return run(arguments); });
}
