// Atomic replacement of a file.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "train/checkpoint/safetensors.h"

namespace headroom {
namespace {

// The temporary file of one write: closed and removed unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path) : final_(path) {
    name_ = detail::concat(path, ".tmp.", getpid());
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

}  // namespace

void write_file_atomically(const std::string& path, const std::string& bytes) {
  TemporaryFile file(path);
  file.write_all(bytes);
  file.commit();
  flush_folder(path);
}

}  // namespace headroom
