// Ctrl-C and its kin: the first request ends the run after the step in hand, the second at once.
#pragma once

namespace headroom {

constexpr int kInterruptedExitCode = 130;

// SIGINT and SIGTERM set a flag and print `note`, which must outlive the process, as a line on
// standard error unless it is empty; a second one ends the process with kInterruptedExitCode. A
// SIGINT that the parent ignores, as for background jobs of a script, stays ignored. SIGPIPE and
// SIGXFSZ are ignored, so that a closed pipe or a file-size limit is an error of the write that met
// it.
void install_signal_handlers(const char* note);

// True after the first SIGINT or SIGTERM.
bool stop_requested();

}  // namespace headroom
