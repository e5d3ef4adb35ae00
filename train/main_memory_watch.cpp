// The program `memory-watch`: who holds the memory of each GPU, and what each running `train` does
// with its share.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "train/program.h"
#include "train/signals.h"
#include "train/watch/reading.h"
#include "train/watch/reading_text.h"
#include "train/watch/screen.h"
#include "train/watch/watch_options.h"

namespace headroom {
namespace {

constexpr const char* kProgram = "memory-watch";

// A signal ends the sleep.
void sleep_seconds(double seconds) {
  constexpr double kNsPerSecond = 1e9;
  timespec length{};
  length.tv_sec = static_cast<time_t>(seconds);
  length.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * kNsPerSecond);
  nanosleep(&length, nullptr);
}

// "2026-03-01 12:00:05"
std::string time_text(double seconds) {
  const auto whole = static_cast<time_t>(seconds);
  tm parts{};
  localtime_r(&whole, &parts);
  char text[32];
  return {text, strftime(text, sizeof text, "%F %T", &parts)};
}

// Sees what was asked for. Empty if that is a process that is not there.
std::optional<Reading> read(Watcher& watcher, const WatchOptions& options) {
  Reading reading = watcher.read();
  if (!options.pid) return reading;
  reading = only_process(std::move(reading), *options.pid);
  // In a container the driver may list a process that is not to be seen from there.
  const bool is_listed = !reading.gpus.empty() || !reading.runs.empty();
  if (!is_listed && !process_owner(*options.pid)) return std::nullopt;
  return reading;
}

int print_once(const Reading& reading, const WatchOptions& options) {
  print_result(options.json ? reading_json(reading) + "\n" : reading_text(reading, options.pid));
  if (reading.nvml_failure.empty() || !reading.runs.empty()) return kDone;
  return fail(kProgram, "nothing to see: " + reading.nvml_failure, kFailed);
}

void watch(Reading reading, Watcher& watcher, const WatchOptions& options) {
  std::optional<Screen> screen;
  if (!options.json && is_terminal(stdout)) screen.emplace(stdout);
  for (;;) {
    const std::string text = reading_text(reading, options.pid);
    if (options.json) {
      print_result(reading_json(reading) + "\n");
    } else if (screen) {
      screen->draw(fmt::format("memory-watch  {}  every {:g} s, Ctrl-C ends\n\n{}",
                               time_text(reading.time), options.interval_seconds, text));
    } else {
      print_result(time_text(reading.time) + "\n" + text + "\n");
    }
    if (!stop_requested()) sleep_seconds(options.interval_seconds);
    if (stop_requested()) return;
    std::optional<Reading> next = read(watcher, options);
    if (!next) return;  // the process has ended
    reading = std::move(*next);
  }
}

int run(const std::vector<std::string>& arguments) {
  WatchOptions options;
  try {
    options = parse_watch_options(arguments);
  } catch (const InvalidArgument& error) {
    return fail(kProgram, error.what(), kWrongInput);
  }
  if (options.action == WatchOptions::Action::show_help) {
    print_result(watch_help_text());
    return kDone;
  }
  if (options.action == WatchOptions::Action::show_version) {
    print_result("headroom " HEADROOM_VERSION "\n");
    return kDone;
  }
  Watcher watcher;
  std::optional<Reading> reading = read(watcher, options);
  if (!reading) {
    return fail(kProgram, fmt::format("--pid {}: there is no such process", *options.pid),
                kWrongInput);
  }
  if (options.once) return print_once(*reading, options);
  watch(std::move(*reading), watcher, options);
  return kDone;
}

}  // namespace
}  // namespace headroom

int main(int argc, char** argv) {
  using namespace headroom;
  hold_standard_streams();
  install_signal_handlers("");
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  return guarded(kProgram, [&] { return run(arguments); });
}
