// Starting programs with fork and exec, reading both streams with poll.
#include "tests/support/subprocess.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"

namespace headroom::test {
namespace {

constexpr int kExecFailed = 127;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Pipe {
  Pipe() {
    int ends[2];
    CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe: ", std::strerror(errno));
    read_end = ends[0];
    write_end = ends[1];
  }
  int read_end, write_end;
};

void close_if_open(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

// In the child, between fork and exec: system calls alone.
[[noreturn]] void become(char* const* arguments, const ProcessOptions& options, int out, int err) {
  for (const int number : {SIGINT, SIGTERM, SIGPIPE, SIGXFSZ}) signal(number, SIG_DFL);
  if (options.file_size_limit_bytes > 0) {
    const auto bytes = static_cast<rlim_t>(options.file_size_limit_bytes);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  const int in = open("/dev/null", O_RDONLY);
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execv(arguments[0], arguments);
  _exit(kExecFailed);
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const ProcessOptions& options)
    : options_(options), deadline_(now_seconds() + options.timeout_seconds) {
  CHECK(!arguments.empty() && access(arguments[0].c_str(), X_OK) == 0, "no program ",
        arguments.empty() ? "" : arguments[0]);
  std::vector<std::string> words = arguments;
  if (!options.environment.empty()) {
    words.insert(words.begin(), options.environment.begin(), options.environment.end());
    words.insert(words.begin(), "/usr/bin/env");
  }
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  Pipe out, err;
  pid_ = fork();
  if (pid_ == 0) become(pointers.data(), options_, out.write_end, err.write_end);
  close(out.write_end);
  close(err.write_end);
  out_ = out.read_end;
  err_ = err.read_end;
  if (pid_ < 0) {
    close_all();
    throw Error(detail::concat("fork: ", std::strerror(errno)));
  }
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close_all();
}

void Process::close_all() {
  close_if_open(out_);
  close_if_open(err_);
}

void Process::send(int signal_number) const {
  if (pid_ > 0) kill(pid_, signal_number);
}

bool Process::read_some() {
  constexpr double kMsPerSecond = 1e3;
  std::array<pollfd, 2> streams = {pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};
  if (out_ < 0 && err_ < 0) return false;
  const double left = deadline_ - now_seconds();
  const int ready =
      left <= 0 ? 0 : poll(streams.data(), 2, static_cast<int>(left * kMsPerSecond) + 1);
  if (ready < 0 && errno == EINTR) return true;
  if (ready <= 0) return false;
  std::array<char, 4096> buffer;
  const auto take = [&](const pollfd& stream, int& descriptor, std::string& text) {
    if (descriptor < 0 || stream.revents == 0) return;
    const ssize_t count = read(descriptor, buffer.data(), buffer.size());
    if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) close_if_open(descriptor);
  };
  take(streams[0], out_, result_.out);
  take(streams[1], err_, result_.err);
  return true;
}

bool Process::wait_for_output(const std::string& text) {
  const auto seen = [&] {
    return result_.out.find(text) != std::string::npos ||
           result_.err.find(text) != std::string::npos;
  };
  while (!seen()) {
    if (!read_some()) return false;
  }
  return true;
}

ProcessResult Process::wait() {
  while (read_some()) {
  }
  if (out_ >= 0 || err_ >= 0) {
    result_.timed_out = true;
    kill(pid_, SIGKILL);
  }
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  close_all();
  if (WIFEXITED(status)) result_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result_.signal = WTERMSIG(status);
  return result_;
}

ProcessResult run_process(const std::vector<std::string>& arguments,
                          const ProcessOptions& options) {
  Process process(arguments, options);
  return process.wait();
}

std::string built_program(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

}  // namespace headroom::test
