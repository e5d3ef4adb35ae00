// Runs programs and looks at what they print and how they end.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headroom::test {

struct ProcessResult {
  int exit_code = -1;  // -1 if a signal ended it
  int signal = 0;      // 0 if it exited
  bool timed_out = false;
  std::string out, err;
};

struct ProcessOptions {
  double timeout_seconds = 300;               // then it is killed
  int64_t file_size_limit_bytes = 0;          // of files it writes (RLIMIT_FSIZE); 0: none
  std::vector<std::string> environment = {};  // "NAME=value", added to this process's
};

// A program that was started. Its input is empty; signals have their default actions.
class Process {
 public:
  // The first argument is the program's path. Throws Error if it cannot be started.
  Process(const std::vector<std::string>& arguments, const ProcessOptions& options = {});
  ~Process();  // kills it if it still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal_number) const;
  // Reads until standard output and error together contain `text`; false if the program ends or
  // the timeout comes first.
  bool wait_for_output(const std::string& text);
  ProcessResult wait();

 private:
  bool read_some();  // false at the end of both, or at the timeout
  void close_all();

  ProcessOptions options_;
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  double deadline_ = 0;
  ProcessResult result_;
};

ProcessResult run_process(const std::vector<std::string>& arguments,
                          const ProcessOptions& options = {});

// The path of a program built beside the tests: "train".
std::string built_program(const std::string& name);

}  // namespace headroom::test
