// Atomic replacement of a file.
#include "train/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"

namespace headroom {
namespace {

constexpr const char* kTemporaryMark = ".tmp.";  // FILE.tmp.PID

// Removes what processes that were killed in the middle of a write left beside `path`.
void remove_left_over(const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(path).parent_path();
  const std::string prefix = fs::path(path).filename().string() + kTemporaryMark;
  std::error_code ignored;
  for (const auto& entry :
       fs::directory_iterator(folder.empty() ? fs::path(".") : folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string digits = name.substr(prefix.size());
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), pid);
    if (error != std::errc() || end != digits.data() + digits.size() || pid <= 0) continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) fs::remove(entry.path(), ignored);
  }
}

// The temporary file of one write: closed and removed unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : final_(path) {
    remove_left_over(path);
    name_ = detail::concat(path, kTemporaryMark, getpid());
    fd_ = open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("cannot be created");
  }
  ~TemporaryFile() {
    if (fd_ >= 0) close(fd_);
    if (!name_.empty()) unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write_all(const std::string& bytes) {
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t wrote = write(fd_, bytes.data() + done, bytes.size() - done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) fail("cannot be written");
      if (wrote == 0) {
        errno = ENOSPC;
        fail("cannot be written");
      }
      done += static_cast<size_t>(wrote);
    }
  }

  void commit() {
    if (fsync(fd_) != 0) fail("cannot be flushed");
    const int fd = fd_;
    fd_ = -1;
    if (close(fd) != 0) fail("cannot be closed");
    if (rename(name_.c_str(), final_.c_str()) != 0) fail("cannot be put in place");
    name_.clear();
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw DataError(detail::concat(final_, ": ", what, ": ", std::strerror(errno)));
  }

  std::string final_, name_;
  int fd_ = -1;
};

// So that the rename itself survives a power cut. Some file systems refuse; the data is safe
// anyway.
void flush_folder(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

// What a link points to is replaced, not the link.
std::string target_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path followed = std::filesystem::canonical(path, error);
  return error ? path : followed.string();
}

}  // namespace

void try_to_create(const std::string& path) { const TemporaryFile file(target_of(path)); }

void write_file_atomically(const std::string& path, const std::string& bytes) {
  const std::string target = target_of(path);
  TemporaryFile file(target);
  file.write_all(bytes);
  file.commit();
  flush_folder(target);
}

}  // namespace headroom
