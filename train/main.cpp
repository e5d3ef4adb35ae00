// The program `train`: reads the command line, trains, shows progress, reports. Every failure ends
// in one line on standard error and the exit code that belongs to it.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/settings.h"
#include "kernels/register.h"
#include "train/command_line.h"
#include "train/display.h"
#include "train/memory_report.h"
#include "train/observers.h"
#include "train/report.h"
#include "train/report_log.h"
#include "train/signals.h"
#include "train/trainer.h"

#ifdef HEADROOM_WITH_CUDA
#include "kernels/cuda/library_versions.h"
#endif

namespace headroom {
namespace {

enum ExitCode : int { kDone = 0, kFailed = 1, kWrongInput = 2, kOutOfMemory = 3 };

// File names may hold anything; the message stays one line.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return text;
}

int fail(const std::string& message, int code) {
  std::fputs(("train: error: " + one_line(message) + "\n").c_str(), stderr);
  return code;
}

void print_result(const std::string& text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) {
    throw DataError(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
}

// Empty where cuDNN computes nothing.
std::optional<std::string> cudnn_version_of([[maybe_unused]] const TrainConfig& config,
                                            [[maybe_unused]] Device device) {
#ifdef HEADROOM_WITH_CUDA
  if (device.is_cuda() && config.cudnn) return cuda::cudnn_version_text();
#endif
  return std::nullopt;
}

std::string version_text() {
#ifdef HEADROOM_WITH_CUDA
  constexpr const char* kBackends = "cpu, cuda";
#else
  constexpr const char* kBackends = "cpu";
#endif
  return fmt::format("headroom {} (backends: {})\n", HEADROOM_VERSION, kBackends);
}

// Why this process has no GPU; empty if it has one.
std::string why_no_gpu() {
#ifdef HEADROOM_WITH_CUDA
  const char* reason = "";
  register_cuda_kernels(&reason);
  return reason;
#else
  return "this program was built without CUDA";
#endif
}

void check_device(const TrainConfig& config) {
  const std::string reason = why_no_gpu();
  CHECK_ARG(config.device != "cuda" || reason.empty(),
            "--device cuda: no usable NVIDIA GPU: ", reason,
            "; allowed here are cpu, meta:cpu, meta:cuda");
  if (config.device == "auto" && !reason.empty()) {
    std::fputs(("train: note: " + one_line(reason) + "\n").c_str(), stderr);
  }
}

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
    register_kernels();
    // As CUDA's own variable, but for every kernel and with the op's name in the message.
    const char* blocking = std::getenv("HEADROOM_LAUNCH_BLOCKING");
    settings().launch_blocking = blocking && std::string(blocking) == "1";
    check_device(line.config);
    trainer = std::make_unique<Trainer>(line.config);
    const std::string& path = trainer->config().log;
    if (!path.empty()) {
      log = std::make_unique<RunLog>(path, !trainer->config().resume.empty(), trainer->device());
    }
  } catch (const InvalidArgument& error) {
    return fail(error.what(), kWrongInput);
  }
  if (stop_requested()) return kInterruptedExitCode;
  return train(*trainer, log.get());
}

int guarded(const std::vector<std::string>& arguments) {
  try {
    return run(arguments);
  } catch (const OutOfMemory& error) {
    return fail(error.what(), kOutOfMemory);
  } catch (const std::bad_alloc&) {
    return fail("the host is out of memory", kOutOfMemory);
  } catch (const std::exception& error) {
    return fail(error.what(), kFailed);
  }
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  headroom::install_signal_handlers();
  return headroom::guarded({argv + std::min(argc, 1), argv + argc});
}
