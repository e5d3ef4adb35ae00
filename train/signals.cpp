// Signal handlers that do nothing but what is safe in them.
#include "train/signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace headroom {
namespace {

std::atomic<int> requests{0};
static_assert(std::atomic<int>::is_always_lock_free);

void say(const char* text, size_t length) {
  // Nobody can be told when even this fails.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, length);
}

extern "C" void handle_stop(int) {
  if (requests.fetch_add(1) > 0) _exit(kInterruptedExitCode);
  const int saved_errno = errno;
  constexpr char kNote[] = "\ntrain: stopping after this step; once more ends at once\n";
  say(kNote, sizeof kNote - 1);
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

void install_signal_handlers() {
  handle(SIGINT);
  handle(SIGTERM);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

bool stop_requested() { return requests.load() > 0; }

}  // namespace headroom
