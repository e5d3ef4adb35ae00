// The program `train`: reads the command line, trains, shows progress, reports. Every failure ends
// in one line on standard error and the exit code that belongs to it.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/memory/allocation_failure.h"
#include "train/autocast_account.h"
#include "train/command_line.h"
#include "train/conv_report.h"
#include "train/display.h"
#include "train/ledger.h"
#include "train/main_support.h"
#include "train/memory_guard.h"
#include "train/memory_report.h"
#include "train/observers.h"
#include "train/report.h"
#include "train/report_log.h"
#include "train/signals.h"
#include "train/snapshot.h"
#include "train/trace.h"
#include "train/trainer.h"

namespace headroom {
namespace {

constexpr const char* kProgram = "train";

// The observers that the flags ask for.
struct Recorders {
  std::unique_ptr<StepRecorder> steps;
  std::unique_ptr<TraceRecorder> trace;
  std::unique_ptr<ConvRecorder> convolutions;
  std::optional<AutocastAccount> autocast_account;
  std::unique_ptr<AutocastRecorder> autocast;

  explicit Recorders(const Trainer& trainer) {
    const TrainConfig& config = trainer.config();
    if (!config.memory_report.empty() || !config.snapshot.empty()) {
      steps = std::make_unique<StepRecorder>(trainer.device());
    }
    if (!config.trace.empty()) {
      trace = std::make_unique<TraceRecorder>(trainer.device(), config.trace_steps);
    }
    if (!config.conv_report.empty()) {
      convolutions = std::make_unique<ConvRecorder>(trainer.device());
    }
    if (config.amp) {
      autocast = std::make_unique<AutocastRecorder>(*config.amp, autocast_account.emplace());
    }
  }

  void add_to(Observers& observers) {
    if (steps) observers.add(*steps);
    if (trace) observers.add(*trace);  // after the other, as its header says
    if (convolutions) observers.add(*convolutions);
    if (autocast) observers.add(*autocast);
  }

  void write(const Report& report) const {
    const TrainConfig& config = report.config;
    if (steps && steps->record()) {
      if (!config.memory_report.empty()) {
        write_memory_report(config.memory_report, *steps->record(), report);
      }
      if (!config.snapshot.empty()) write_snapshot(config.snapshot, *steps->record());
    }
    if (trace) write_trace(config.trace, *trace);
    if (convolutions) write_conv_report(config.conv_report, *convolutions, report);
  }

  // What led to a failure.
  void write_unfinished(const TrainConfig& config) {
    if (!config.snapshot.empty()) write_snapshot(config.snapshot, steps->unfinished());
    if (!trace) return;
    trace->take_unfinished();
    write_trace(config.trace, *trace);
  }
};

// What the flags ask for when memory ran out. That failure is what the program ends with, whatever
// becomes of the files. Without recorders the run had not begun.
void tell_failure(const FailedRun& run, Recorders* recorders) {
  const TrainConfig& config = run.config;
  try {
    if (config.json) print_result(to_json(run) + "\n");
    const auto* failure = dynamic_cast<const AllocationFailure*>(run.error);
    if (failure && !config.memory_report.empty()) {
      const StepRecord record =
          record_at(*failure, recorders ? recorders->steps->unfinished() : StepRecord());
      write_memory_report(config.memory_report, record, run);
    }
    if (recorders) recorders->write_unfinished(config);
  } catch (const std::exception& error) {
    std::fputs(("train: warning: " + one_line(error.what()) + "\n").c_str(), stderr);
  }
}

int train(Trainer& trainer, LedgerWriter& ledger, RunLog* log) {
  const TrainConfig& config = trainer.config();
  RunResult result;
  Recorders recorders(trainer);
  try {
    Display display(stderr, trainer.device(), config, display_options_of(stderr));
    Observers observers;
    if (log) observers.add(*log);
    recorders.add_to(observers);
    observers.add(ledger);
    observers.add(display);
    result = trainer.run(observers, stop_requested);
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) {
      tell_failure({config, trainer.info(), trainer.steps_done(), &error}, &recorders);
    }
    throw;
  }
  const Report report{config,
                      trainer.info(),
                      result,
                      cudnn_version_of(config, trainer.device()),
                      outside_memory(trainer.device()),
                      recorders.autocast_account};
  if (config.json) {
    std::fputs(to_table(report).c_str(), stderr);
    print_result(to_json(report) + "\n");
  } else {
    print_result(to_table(report));
  }
  recorders.write(report);  // last, so that a full disk does not cost the result
  if (result.over_threshold) {
    return fail(kProgram, "stopped by --on-threshold: the device was too full", kOutOfMemory);
  }
  return result.interrupted ? kInterruptedExitCode : kDone;
}

int run(const std::vector<std::string>& arguments) {
  CommandLine line;
  std::optional<LedgerWriter> ledger;
  std::unique_ptr<Trainer> trainer;
  std::unique_ptr<RunLog> log;
  try {
    line = parse_command_line(arguments);
    if (line.action == CommandLine::Action::show_help) {
      print_result(help_text());
      return kDone;
    }
    if (line.action == CommandLine::Action::show_version) {
      print_result(version_text());
      return kDone;
    }
    open_devices(kProgram, line.config);
    ledger.emplace(line.config.model, device_of(line.config));
    trainer = std::make_unique<Trainer>(line.config);
    const std::string& path = trainer->config().log;
    if (!path.empty()) {
      log = std::make_unique<RunLog>(path, !trainer->config().resume.empty(), trainer->device());
    }
  } catch (const InvalidArgument& error) {
    return fail(kProgram, error.what(), kWrongInput);
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) {
      RunInfo info;
      info.device_name = name_of(device_of(line.config));
      info.device_description = runtime_of(device_of(line.config)).description();
      tell_failure({line.config, info, 0, &error}, nullptr);
    }
    throw;
  }
  if (stop_requested()) return kInterruptedExitCode;
  return train(*trainer, *ledger, log.get());
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  using namespace headroom;
  hold_standard_streams();
  install_signal_handlers("train: stopping after this step; once more ends at once");
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  return guarded(kProgram, [&] { return run(arguments); });
}
