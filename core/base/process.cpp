// Reads below /proc.
#include "core/base/process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace headroom {
namespace {

std::string path_of(int64_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

// Empty where it cannot be read.
std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

int64_t own_pid() { return getpid(); }

std::string process_name(int64_t pid) {
  std::string name = text_of(path_of(pid, "cmdline"));
  name.resize(std::min(name.size(), name.find('\0')));
  name.erase(0, name.rfind('/') + 1);
  if (name.empty()) {  // a kernel thread, or one that has ended and was not waited for
    name = text_of(path_of(pid, "comm"));
    name.resize(std::min(name.size(), name.find('\n')));
  }
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return name;
}

std::optional<int64_t> resident_bytes(int64_t pid) {
  std::istringstream in(text_of(path_of(pid, "statm")));
  int64_t size_pages = 0, resident_pages = 0;
  if (!(in >> size_pages >> resident_pages)) return std::nullopt;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

std::optional<int64_t> process_owner(int64_t pid) {
  struct stat status {};
  if (stat(("/proc/" + std::to_string(pid)).c_str(), &status) != 0) return std::nullopt;
  return status.st_uid;
}

HostMemory host_memory() {
  constexpr int64_t kKiB = 1024;
  HostMemory out;
  std::istringstream in(text_of("/proc/meminfo"));
  std::string name, unit;
  for (int64_t value = 0; in >> name >> value; std::getline(in, unit)) {
    if (name == "MemTotal:") out.total_bytes = value * kKiB;
    if (name == "MemAvailable:") out.available_bytes = value * kKiB;
  }
  return out;
}

}  // namespace headroom
