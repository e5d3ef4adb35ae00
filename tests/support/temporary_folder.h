// A folder of a test's own, gone with the test.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace headroom::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    const std::string name = "headroom-" + std::string(6, 'X');  // mkdtemp's placeholder
    std::string pattern = (std::filesystem::temp_directory_path() / name).string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    root_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string root() const { return root_.string(); }
  // Of a file in it, whose folder may be missing.
  std::string file(const std::string& name) const { return (root_ / name).string(); }
  // Of a file or folder in it; makes the folders above.
  std::string path(const std::string& name) const {
    const std::filesystem::path full = root_ / name;
    std::filesystem::create_directories(full.parent_path());
    return full.string();
  }
  void make_folder(const std::string& name) const {
    std::filesystem::create_directories(root_ / name);
  }
  // What lies directly in it, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(root_)) {
      out.push_back(entry.path().filename().string());
    }
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  std::filesystem::path root_;
};

}  // namespace headroom::test
