// Writing is one call, and not a store into a mapped file: a store that the disk has no room for
// would end the process, a call says so. A reader knows by a sum of the record that it saw one
// state of it.
#include "train/ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "core/base/process.h"
#include "core/memory/caching_allocator.h"
#include "train/memory_guard.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

// The file.
struct Image {
  uint64_t magic = 0, version = 0, sum = 0;
  Ledger ledger;
};
static_assert(std::is_trivially_copyable_v<Ledger> && sizeof(Ledger) % sizeof(uint64_t) == 0);
static_assert(sizeof(Image) == 3 * sizeof(uint64_t) + sizeof(Ledger));

constexpr uint64_t kMagic = 0x52454744454c5248;  // "HRLEDGER" in memory
// A record of another size is another version, even if somebody forgot to count it up.
constexpr uint64_t kVersion = uint64_t{1} << 32 | sizeof(Image);

constexpr const char* kPrefix = "headroom-";
constexpr const char* kSuffix = ".ledger";
constexpr const char* kSessions = "/run/user/";

// An open file, closed at the end. Closing gives its lock back.
class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0)
      : descriptor_(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, mode)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

void copy_text(const std::string& from, char* to, size_t size) {
  std::snprintf(to, size, "%s", from.c_str());
}

std::string name_of_ledger(int64_t pid) { return kPrefix + std::to_string(pid) + kSuffix; }

// The pid in a ledger's file name.
std::optional<int64_t> pid_in(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const int64_t pid = std::atoll(name.c_str() + std::strlen(kPrefix));
  if (name != name_of_ledger(pid)) return std::nullopt;
  return pid;
}

// Throws nothing: a folder that cannot be read is empty.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> out;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    out.push_back(i->path());
  }
  return out;
}

// FNV-1a, by words.
uint64_t sum_of(const Ledger& ledger) {
  uint64_t words[sizeof ledger / sizeof(uint64_t)];
  std::memcpy(words, &ledger, sizeof ledger);
  uint64_t sum = 0xcbf29ce484222325;
  for (const uint64_t word : words) sum = (sum ^ word) * 0x100000001b3;
  return sum;
}

// The text of a fixed field. What another user wrote there is shown on terminals.
void make_printable(char* text, size_t size) {
  text[size - 1] = '\0';
  for (; *text; ++text) {
    if (*text < ' ' || *text == 0x7f) *text = '?';
  }
}

std::optional<Ledger> read_record(int file) {
  constexpr int kTries = 100;  // writing takes a microsecond or some
  for (int i = 0; i < kTries; ++i) {
    Image image;
    if (pread(file, &image, sizeof image, 0) != ssize_t{sizeof image}) return std::nullopt;
    if (image.magic != kMagic || image.version != kVersion) return std::nullopt;
    if (image.sum != sum_of(image.ledger)) continue;
    make_printable(image.ledger.device, sizeof image.ledger.device);
    make_printable(image.ledger.model, sizeof image.ledger.model);
    return image.ledger;
  }
  return std::nullopt;
}

// Whether an open file has no name any more.
bool is_gone(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 && status.st_nlink == 0;
}

// The ledger in a file of that name. Removes the file if nobody writes it any more.
std::optional<Ledger> read_or_remove(const fs::path& path, int64_t pid) {
  const File file(path, O_RDONLY);
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  if (flock(file.get(), LOCK_SH | LOCK_NB) == 0) {
    struct stat now {};  // a new process of that number may have put its own there
    const bool same = stat(path.c_str(), &now) == 0 && now.st_ino == status.st_ino;
    if (same) unlink(path.c_str());
    return std::nullopt;
  }
  if (errno != EWOULDBLOCK) return std::nullopt;  // no locks here, so no sign of life
  // In /tmp anybody may put a file of any name.
  if (process_owner(pid) != int64_t{status.st_uid}) return std::nullopt;
  const std::optional<Ledger> ledger = read_record(file.get());
  return ledger && ledger->pid == pid ? ledger : std::nullopt;
}

}  // namespace

std::vector<std::string> ledger_folders() {
  std::vector<std::string> out;
  const auto add = [&out](const std::string& folder) {
    const bool is_new = std::find(out.begin(), out.end(), folder) == out.end();
    if (!folder.empty() && is_new) out.push_back(folder);
  };
  const auto value_of = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  add(value_of("HEADROOM_LEDGERS"));
  if (!out.empty()) return out;
  // Programs of one user may have been started with and without a session.
  add(value_of("XDG_RUNTIME_DIR"));
  add(kSessions + std::to_string(geteuid()));
  add(value_of("TMPDIR"));
  add("/tmp");
  return out;
}

std::vector<Ledger> read_ledgers() {
  std::vector<std::string> folders = ledger_folders();
  if (folders.size() > 1 && geteuid() == 0) {  // root looks after everybody
    for (const fs::path& session : entries_of(kSessions)) folders.push_back(session);
  }
  std::vector<Ledger> out;
  for (const std::string& folder : folders) {
    for (const fs::path& path : entries_of(folder)) {
      const std::optional<int64_t> pid = pid_in(path.filename());
      if (!pid) continue;
      if (const std::optional<Ledger> ledger = read_or_remove(path, *pid)) out.push_back(*ledger);
    }
  }
  const auto before = [](const Ledger& a, const Ledger& b) { return a.pid < b.pid; };
  const auto same = [](const Ledger& a, const Ledger& b) { return a.pid == b.pid; };
  std::stable_sort(out.begin(), out.end(), before);
  out.erase(std::unique(out.begin(), out.end(), same), out.end());
  return out;
}

LedgerWriter::LedgerWriter(const std::string& model, Device device) : device_(device) {
  ledger_.pid = own_pid();
  copy_text(model, ledger_.model, sizeof ledger_.model);
  copy_text(name_of(device), ledger_.device, sizeof ledger_.device);
  ledger_.outside_bytes = bytes_outside(device).value_or(-1);
}

LedgerWriter::~LedgerWriter() {
  if (file_ >= 0 && !is_gone(file_)) unlink(path_.c_str());
  close();
}

void LedgerWriter::close() {
  if (file_ >= 0) ::close(std::exchange(file_, -1));
}

void LedgerWriter::on_start(const RunInfo& info) {
  ledger_.step = info.first_step;
  ledger_.total_steps = info.total_steps;
  if (!device_.is_meta()) open();
}

void LedgerWriter::open() {
  for (const std::string& folder : ledger_folders()) {
    if (open_in(folder)) return;
  }
}

// Made under another name and locked before it is moved into place, so that nobody takes a ledger
// that is just being made for one that was left behind. Moving replaces one of an earlier process.
bool LedgerWriter::open_in(const std::string& folder) {
  const std::string path = folder + "/" + name_of_ledger(ledger_.pid);
  const std::string unfinished = path + ".new";
  unlink(unfinished.c_str());
  File file(unfinished, O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
  if (file.get() < 0) return false;
  path_ = path;
  file_ = file.get();
  const bool in_place =
      flock(file_, LOCK_EX) == 0 && publish() && rename(unfinished.c_str(), path.c_str()) == 0;
  if (!in_place) unlink(unfinished.c_str());
  file_ = in_place ? file.release() : -1;
  return in_place;
}

void LedgerWriter::on_step(const StepInfo& step) {
  if (file_ < 0) return;
  ledger_.step = step.step;
  const bool is_first = step.images == step.images_seen;
  if (is_first) {
    const int64_t outside = bytes_outside(device_).value_or(-1);
    // On a CPU it may seem to shrink, where segments are not touched yet.
    ledger_.outside_bytes = device_.is_cpu() ? std::max(ledger_.outside_bytes, outside) : outside;
  }
  // A session's folder goes with the session, which a run may outlive, and /tmp is tidied.
  if (is_gone(file_)) {
    close();
    open();
  }
  publish();
}

bool LedgerWriter::publish() {
  if (file_ < 0) return false;
  const CachingAllocator& allocator = allocator_of(device_);
  const MemoryStats stats = allocator.stats();
  const PoolStats& all = stats[Pool::all];
  ledger_.updated_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  ledger_.allocated_bytes = all.allocated_bytes.current;
  ledger_.reserved_bytes = all.reserved_bytes.current;
  ledger_.split_bytes = all.inactive_split_bytes.current;
  // The allocator's own peak begins anew with every phase.
  ledger_.peak_allocated_bytes = std::max(ledger_.peak_allocated_bytes, all.allocated_bytes.peak);
  ledger_.limit_bytes = allocator.memory_limit();
  std::copy(stats.current_by_tag.begin(), stats.current_by_tag.end(), ledger_.tag_bytes);
  const Image image{kMagic, kVersion, sum_of(ledger_), ledger_};
  return pwrite(file_, &image, sizeof image, 0) == ssize_t{sizeof image};
}

}  // namespace headroom
