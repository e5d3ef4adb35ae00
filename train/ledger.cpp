// The file: a header of three words (magic, version and size, sequence), then the Ledger. The
// sequence is odd while the record is being written, so a reader that saw it even and unchanged has
// seen one state.
#include "train/ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
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

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMagic = 0x52454744454c5248;  // "HRLEDGER" in memory
constexpr uint64_t kVersion = 1;
constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kMagicAt = 0, kVersionAt = 1, kSequenceAt = 2, kRecordAt = 3;
constexpr size_t kRecordWords = sizeof(Ledger) / kWord;
constexpr size_t kFileBytes = (kRecordAt + kRecordWords) * kWord;
// A record of another size is another version, even if somebody forgot to count it up.
constexpr uint64_t kVersionWord = kVersion << 32 | kFileBytes;
static_assert(sizeof(Ledger) % kWord == 0 && std::is_trivially_copyable_v<Ledger>);

constexpr const char* kPrefix = "headroom-";
constexpr const char* kSuffix = ".ledger";

using Record = std::array<uint64_t, kRecordWords>;

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

int64_t process_bytes_on(Device device) {
  return has_runtime(device) ? runtime_of(device).process_bytes().value_or(-1) : -1;
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

std::optional<uint64_t> read_word(int file, size_t at) {
  uint64_t word = 0;
  const bool whole = pread(file, &word, kWord, static_cast<off_t>(at * kWord)) == ssize_t{kWord};
  return whole ? std::optional(word) : std::nullopt;
}

// By reads and not through a mapping, which would end the reader if the file became shorter.
std::optional<Ledger> read_record(int file) {
  if (read_word(file, kMagicAt) != kMagic || read_word(file, kVersionAt) != kVersionWord) {
    return std::nullopt;
  }
  constexpr int kTries = 1000;  // writing takes a microsecond
  for (int i = 0; i < kTries; ++i) {
    const std::optional<uint64_t> before = read_word(file, kSequenceAt);
    if (!before) return std::nullopt;
    std::atomic_thread_fence(std::memory_order_acquire);
    Ledger ledger;
    if (pread(file, &ledger, sizeof ledger, kRecordAt * kWord) != ssize_t{sizeof ledger}) {
      return std::nullopt;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (*before % 2 != 0 || read_word(file, kSequenceAt) != before) continue;
    ledger.device[sizeof ledger.device - 1] = ledger.model[sizeof ledger.model - 1] = '\0';
    return ledger;
  }
  return std::nullopt;
}

// The ledger in a file of that name. Removes the file if nobody writes it any more.
std::optional<Ledger> read_or_remove(const fs::path& path, int64_t pid) {
  const File file(path, O_RDONLY);
  struct stat status {};
  if (file.get() < 0 || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return std::nullopt;
  }
  if (flock(file.get(), LOCK_SH | LOCK_NB) == 0) {
    struct stat now {};
    const bool same = stat(path.c_str(), &now) == 0 && now.st_ino == status.st_ino;
    if (same) unlink(path.c_str());
    return std::nullopt;
  }
  // In /tmp anybody may put a file of any name.
  if (process_owner(pid) != int64_t{status.st_uid}) return std::nullopt;
  const std::optional<Ledger> ledger = read_record(file.get());
  return ledger && ledger->pid == pid ? ledger : std::nullopt;
}

}  // namespace

std::vector<std::string> ledger_folders() {
  const auto value_of = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  if (const std::string only = value_of("HEADROOM_LEDGERS"); !only.empty()) return {only};
  const std::string session = value_of("XDG_RUNTIME_DIR");
  if (session.empty()) return {"/tmp"};
  return {session, "/tmp"};
}

std::vector<Ledger> read_ledgers() {
  std::vector<std::string> folders = ledger_folders();
  if (folders.back() == "/tmp" && geteuid() == 0) {  // root looks after everybody
    for (const fs::path& session : entries_of("/run/user")) folders.push_back(session);
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

LedgerWriter::LedgerWriter(const std::string& model)
    : cpu_context_bytes_(process_bytes_on(Device::cpu())),
      cuda_context_bytes_(process_bytes_on(Device::cuda())) {
  ledger_.pid = own_pid();
  copy_text(model, ledger_.model, sizeof ledger_.model);
}

LedgerWriter::~LedgerWriter() {
  if (words_) munmap(words_, kFileBytes);
  if (!path_.empty()) unlink(path_.c_str());
  if (file_ >= 0) close(file_);
}

void LedgerWriter::on_start(const RunInfo& info) {
  device_ = parse_device(info.device_name);
  if (device_.is_meta()) return;
  copy_text(info.device_name, ledger_.device, sizeof ledger_.device);
  ledger_.step = info.first_step;
  ledger_.total_steps = info.total_steps;
  ledger_.context_bytes = device_.is_cuda() ? cuda_context_bytes_ : cpu_context_bytes_;
  for (const std::string& folder : ledger_folders()) {
    if (open_in(folder)) break;
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
  void* memory = MAP_FAILED;
  // Room is reserved now: a store into a mapped file of a full disk would end the process.
  if (posix_fallocate(file.get(), 0, kFileBytes) == 0 && flock(file.get(), LOCK_EX) == 0) {
    memory = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  }
  if (memory == MAP_FAILED) {
    unlink(unfinished.c_str());
    return false;
  }
  words_ = static_cast<uint64_t*>(memory);
  words_[kMagicAt] = kMagic;
  words_[kVersionAt] = kVersionWord;
  publish();
  if (rename(unfinished.c_str(), path.c_str()) != 0) {
    unlink(unfinished.c_str());
    munmap(std::exchange(words_, nullptr), kFileBytes);
    return false;
  }
  path_ = path;
  file_ = file.release();
  return true;
}

void LedgerWriter::on_step(const StepInfo& step) {
  if (!words_) return;
  const bool is_first = step.images == step.images_seen;
  ledger_.step = step.step;
  if (is_first && ledger_.context_bytes >= 0) {
    const int64_t process_bytes = process_bytes_on(device_);
    const int64_t outside = process_bytes - memory_reserved(device_) - ledger_.context_bytes;
    // Below zero where cached memory was never touched, and so is not resident.
    if (process_bytes >= 0) ledger_.library_bytes = std::max(outside, int64_t{0});
  }
  publish();
}

void LedgerWriter::publish() {
  if (!words_) return;
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

  Record record;
  std::memcpy(record.data(), &ledger_, sizeof ledger_);
  std::atomic_ref<uint64_t> sequence(words_[kSequenceAt]);
  const uint64_t before = sequence.load(std::memory_order_relaxed);
  sequence.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < kRecordWords; ++i) {
    std::atomic_ref<uint64_t>(words_[kRecordAt + i]).store(record[i], std::memory_order_relaxed);
  }
  sequence.store(before + 2, std::memory_order_release);
}

}  // namespace headroom
