// Processes and pipes. Descriptors of a row's process: 0 the request, 2 errors, 3 the answer, one
// JSON object per line, 4 the shared file.
#include "train/compare/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <iterator>
#include <utility>

extern "C" char** environ;

namespace headroom {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kAnswer = 3, kReference = 4;
constexpr const char* kReferencePath = "/proc/self/fd/4";
constexpr int kPollMs = 100;
constexpr size_t kKeptErrorBytes = 4096;

void check_system(bool works, const char* call) {
  if (!works) throw Error(detail::concat(call, ": ", std::strerror(errno)));
}

// One end of a pipe; closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void set(int number) { number_ = number; }
  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

struct Pipe {
  Pipe() {
    int ends[2];
    check_system(pipe2(ends, O_CLOEXEC) == 0, "pipe");
    // Above the numbers that the row's process gives them, so that none is overwritten.
    for (int& end : ends) {
      const int moved = fcntl(end, F_DUPFD_CLOEXEC, kReference + 1);
      ::close(end);
      end = moved;
      check_system(moved >= 0, "fcntl");
    }
    read.set(ends[0]);
    write.set(ends[1]);
  }
  Descriptor read, write;
};

// What a process is started with; a class for the sake of its destructor.
class SpawnPlan {
 public:
  SpawnPlan() {
    posix_spawn_file_actions_init(&actions_);
    posix_spawnattr_init(&attributes_);
    // A group of its own: Ctrl-C is for the comparison, which then ends its rows.
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    sigset_t all;
    sigfillset(&all);
    posix_spawnattr_setsigdefault(&attributes_, &all);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  void give(int from, int to) { posix_spawn_file_actions_adddup2(&actions_, from, to); }

  pid_t start() {
    posix_spawn_file_actions_addopen(&actions_, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    std::string name = "memory-compare", argument = kRowArgument;
    char* arguments[] = {name.data(), argument.data(), nullptr};
    pid_t pid = -1;
    errno = posix_spawn(&pid, "/proc/self/exe", &actions_, &attributes_, arguments, environ);
    check_system(errno == 0, "starting a row's process");
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

void write_all(int descriptor, const std::string& text) {
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t count = write(descriptor, text.data() + at, text.size() - at);
    if (count < 0 && errno == EINTR) continue;
    // A reader that is gone is noticed when its answer is missing.
    if (count < 0) return;
    at += static_cast<size_t>(count);
  }
}

// Appends what is there; closes at the end.
void read_some(Descriptor& from, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = read(from.get(), buffer.data(), buffer.size());
  if (count > 0) text.append(buffer.data(), static_cast<size_t>(count));
  if (count == 0 || (count < 0 && errno != EINTR)) from.close();
}

int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

// "killed by signal 9 (Killed)", and the last line that it wrote.
std::string how_it_ended(int status, const std::string& errors) {
  std::string out = WIFSIGNALED(status) ? detail::concat("ended by signal ", WTERMSIG(status), " (",
                                                         strsignal(WTERMSIG(status)), ")")
                                        : detail::concat("ended with code ", WEXITSTATUS(status));
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) out += ": perhaps out of host memory";
  const size_t end = errors.find_last_not_of('\n');
  if (end == std::string::npos) return out;
  const size_t begin = errors.find_last_of('\n', end);
  const size_t from = begin == std::string::npos ? 0 : begin + 1;
  return out + ": " + errors.substr(from, end + 1 - from);
}

// A running row.
class Row {
 public:
  Row(const RowRequest& request, const SharedFile& reference) {
    Pipe question, answer, errors;
    SpawnPlan plan;
    // The shared file first: its own number may be one of those that are given away here.
    plan.give(reference.descriptor(), kReference);
    plan.give(question.read.get(), STDIN_FILENO);
    plan.give(errors.write.get(), STDERR_FILENO);
    plan.give(answer.write.get(), kAnswer);
    pid_ = plan.start();
    question.read.close();
    write_all(question.write.get(), to_json(request).dump());
    answer_.set(answer.read.release());
    errors_.set(errors.read.release());
  }
  ~Row() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    wait_for(pid_);
  }
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  // Waits a moment for more; false once the process has closed its ends.
  bool listen(const std::function<void(const RowProgress&)>& on_progress) {
    std::array<pollfd, 2> ends = {pollfd{answer_.get(), POLLIN, 0},
                                  pollfd{errors_.get(), POLLIN, 0}};
    const int ready = poll(ends.data(), ends.size(), kPollMs);
    if (ready > 0 && ends[0].revents != 0) read_some(answer_, text_);
    if (ready > 0 && ends[1].revents != 0) read_some(errors_, error_text_);
    if (error_text_.size() > 2 * kKeptErrorBytes) {
      error_text_.erase(0, error_text_.size() - kKeptErrorBytes);
    }
    for (size_t end; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1)) {
      hear(Json::parse(text_.substr(0, end)));
    }
    on_progress(progress_);
    return answer_.is_open() || errors_.is_open();
  }

  RowMeasurement result() {
    const int status = wait_for(pid_);
    pid_ = -1;
    if (result_) return *result_;
    RowMeasurement out;
    out.message = how_it_ended(status, error_text_);
    return out;
  }

 private:
  void hear(const Json& line) {
    if (line.contains("row")) {
      result_ = measurement_of(line.at("row"));
    } else {
      progress_ = {line.at("step"), line.at("steps"), line.at("evaluating")};
    }
  }

  pid_t pid_ = -1;
  Descriptor answer_, errors_;
  std::string text_, error_text_;
  RowProgress progress_;
  std::optional<RowMeasurement> result_;
};

void say(const Json& line) {
  write_all(kAnswer, line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

SharedFile::SharedFile() : file_(std::tmpfile()) {
  if (!file_) {
    throw DataError(detail::concat("a temporary file cannot be made: ", std::strerror(errno)));
  }
}

std::optional<RowMeasurement> run_row_process(
    const RowRequest& request, const SharedFile& reference,
    const std::function<void(const RowProgress&)>& on_progress, const std::function<bool()>& stop) {
  Row row(request, reference);
  for (;;) {
    const bool goes_on = row.listen(on_progress);
    if (stop()) return std::nullopt;
    if (!goes_on) return row.result();
  }
}

int answer_row_request() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string text(std::istreambuf_iterator<char>(std::cin), {});
  const RowRequest request = request_of(Json::parse(text));
  // It may have ended before the line above could see to that.
  if (getppid() != request.parent) return 1;
  const RowMeasurement row = measure_row(request, kReferencePath, [](const RowProgress& progress) {
    say({{"step", progress.step}, {"steps", progress.steps}, {"evaluating", progress.evaluating}});
  });
  say({{"row", to_json(row)}});
  return 0;
}

}  // namespace headroom
