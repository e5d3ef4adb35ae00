// Signal handlers that do nothing but what is safe in them.
#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace headroom {
namespace {

std::atomic<int> requests{0};
const char* note = "";
size_t note_length = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void say(const char* text, size_t length) {
  // Nobody can be told when even this fails.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, length);
}

extern "C" void handle_stop(int) {
  if (requests.fetch_add(1) > 0) _exit(kInterruptedExitCode);
  const int saved_errno = errno;
  if (note_length > 0) {
    say("\n", 1);
    say(note, note_length);
    say("\n", 1);
  }
  errno = saved_errno;
}

void handle(int signal_number) {
  struct sigaction before {};
  sigaction(signal_number, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = handle_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal_number, &action, nullptr);
}

}  // namespace

void install_signal_handlers(const char* text) {
  note = text;
  note_length = std::strlen(text);
  handle(SIGINT);
  handle(SIGTERM);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

bool stop_requested() { return requests.load() > 0; }

}  // namespace headroom
