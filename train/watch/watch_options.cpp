// Parsing.
#include "train/watch/watch_options.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "core/base/error.h"

namespace headroom {
namespace {

constexpr double kMinSeconds = 0.05, kMaxSeconds = 86400;

}  // namespace

WatchOptions parse_watch_options(const std::vector<std::string>& arguments) {
  WatchOptions out;
  CLI::App app;
  app.set_help_flag();
  bool help = false, version = false;
  app.add_flag("--help,-h", help);
  app.add_flag("--version", version);
  app.add_flag("--once", out.once);
  app.add_flag("--json", out.json);
  app.add_option("--pid", out.pid);
  app.add_option("--interval", out.interval_seconds);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Error& error) {
    throw InvalidArgument(error.what());
  }
  if (help) out.action = WatchOptions::Action::show_help;
  if (!help && version) out.action = WatchOptions::Action::show_version;
  CHECK_ARG(!out.pid || *out.pid > 0, "--pid ", *out.pid, ": needs a process number above 0");
  // A comparison that NaN fails as well.
  const bool in_range = out.interval_seconds >= kMinSeconds && out.interval_seconds <= kMaxSeconds;
  CHECK_ARG(in_range, "--interval ", out.interval_seconds, ": needs ", kMinSeconds, " to ",
            kMaxSeconds, " seconds");
  return out;
}

std::string watch_help_text() {
  return R"(usage: memory-watch [flags]

Shows who holds the memory of each GPU of this machine, by NVIDIA's management library, and what
each running `train` does with its share. Draws again every second until Ctrl-C; into a pipe or a
file it prints one block after the other.

  --once             one reading, then end
  --json             one JSON object per reading and line
  --pid N            only this process
  --interval S       seconds between readings, 0.05 to 86400 [1]
  --version, --help

For each `train`, the parts that sum to what the process holds:
  allocator live           blocks that hold tensors
  cached                   segments held and wholly free: empty_cache() gives these back
  fragmented               free pieces of segments that are partly in use
  context and libraries    what the process held before the first segment, and what its libraries
                           took until the end of the first step
  unexplained              the rest; below zero on a CPU where cached memory was never touched

Exit codes: 0 done, 1 failed or nothing to see (no GPU and no running train), 2 wrong input.
)";
}

}  // namespace headroom
