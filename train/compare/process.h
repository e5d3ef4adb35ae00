// Starting a row's process and listening to it, and the other end of that talk.
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>

#include "train/compare/measure.h"

namespace headroom {

// The first argument of a row's process, which people do not type.
constexpr const char* kRowArgument = "--one-row-of-a-comparison";

// A file without a name, for what one row leaves to the others; gone with its last holder.
class SharedFile {
 public:
  SharedFile();  // throws DataError
  ~SharedFile() { std::fclose(file_); }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  int descriptor() const { return fileno(file_); }

 private:
  std::FILE* file_;
};

// Runs this program anew for one row: the request goes to its standard input, its answer comes back
// over a pipe, and what it writes to standard error is kept for the message of a row that ends
// without an answer. `on_progress` is called as the row goes on, and several times a second. Once
// `stop` says so the process is killed, and nothing returned. Throws Error if it cannot be started.
std::optional<RowMeasurement> run_row_process(
    const RowRequest& request, const SharedFile& reference,
    const std::function<void(const RowProgress&)>& on_progress, const std::function<bool()>& stop);

// The row's process, after kernels were registered: reads the request, measures, answers. The
// process dies with its parent. Returns the exit code.
int answer_row_request();

}  // namespace headroom
