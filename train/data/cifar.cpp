// Reads and checks CIFAR-10 binary files.
#include "train/data/cifar.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSide = 32;
constexpr int64_t kPlane = kSide * kSide;
constexpr int64_t kRecordBytes = 1 + 3 * kPlane;
constexpr int64_t kClasses = 10;

const std::vector<std::string>& default_class_names() {
  static const std::vector<std::string> names = {
      "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
  return names;
}

int64_t record_count(const std::string& path) {
  std::error_code error;
  CHECK_ARG(fs::is_regular_file(path, error), "cifar: ", path, ": no such file");
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  CHECK_ARG(!error, "cifar: ", path, ": ", error.message());
  CHECK_ARG(bytes > 0, "cifar: ", path, ": the file is empty");
  CHECK_ARG(bytes % kRecordBytes == 0, "cifar: ", path, ": the length must be a multiple of ",
            kRecordBytes, " bytes, one record, but is ", bytes);
  return bytes / kRecordBytes;
}

// The number N of data_batch_N.bin, or -1.
int64_t batch_number(const std::string& name) {
  constexpr std::string_view kStart = "data_batch_", kEnd = ".bin";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return -1;
  const char* first = name.data() + kStart.size();
  const char* last = name.data() + name.size() - kEnd.size();
  int64_t number = -1;
  const auto [end, error] = std::from_chars(first, last, number);
  return error == std::errc() && end == last ? number : -1;
}

bool have_same_bytes(const std::string& a, const std::string& b) {
  std::ifstream left(a, std::ios::binary), right(b, std::ios::binary);
  return std::equal(std::istreambuf_iterator<char>(left), {}, std::istreambuf_iterator<char>(right),
                    {});
}

// A file that is there twice would count twice in every epoch.
void refuse_copies(const std::vector<std::string>& paths) {
  for (size_t i = 0; i < paths.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      CHECK_ARG(!have_same_bytes(paths[k], paths[i]), "cifar: ", paths[k], " and ", paths[i],
                " hold the same images");
    }
  }
}

std::vector<std::string> read_class_names(const fs::path& path,
                                          std::vector<std::string>& warnings) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return default_class_names();
  std::ifstream in(path);
  std::vector<std::string> names;
  for (std::string line; std::getline(in, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (static_cast<int64_t>(names.size()) == kClasses) return names;
  warnings.push_back(detail::concat("cifar: ", path.string(), ": expected ", kClasses,
                                    " class names, found ", names.size(),
                                    "; the usual names are used"));
  return default_class_names();
}

}  // namespace

std::unique_ptr<Dataset> open_cifar(const std::vector<std::string>& paths,
                                    const std::vector<std::string>& class_names,
                                    const std::string& name, std::vector<std::string> warnings) {
  int64_t count = 0;
  for (const std::string& path : paths) count += record_count(path);
  std::vector<uint8_t> pixels(static_cast<size_t>(count * 3 * kPlane));
  std::vector<uint8_t> labels;
  labels.reserve(static_cast<size_t>(count));
  std::vector<char> record(kRecordBytes);
  uint8_t* out = pixels.data();
  for (const std::string& path : paths) {
    std::ifstream in(path, std::ios::binary);
    const int64_t records = record_count(path);
    for (int64_t r = 0; r < records; ++r, out += 3 * kPlane) {
      // The room was counted before: a file that grew meanwhile must not overrun it.
      CHECK_ARG(in.read(record.data(), kRecordBytes) && static_cast<int64_t>(labels.size()) < count,
                "cifar: ", path, ": record ", r, " cannot be read");
      const auto* bytes = reinterpret_cast<const uint8_t*>(record.data());
      CHECK_ARG(bytes[0] < kClasses, "cifar: ", path, ": label ", int{bytes[0]}, " of record ", r,
                " is out of range, labels go from 0 to ", kClasses - 1);
      labels.push_back(bytes[0]);
      for (int64_t p = 0; p < kPlane; ++p) {
        for (int64_t c = 0; c < 3; ++c) out[3 * p + c] = bytes[1 + c * kPlane + p];
      }
    }
  }
  DatasetInfo info;
  info.name = name;
  info.shape = {3, kSide, kSide};
  info.class_names = class_names;
  info.mean = {0.4914f, 0.4822f, 0.4465f};
  info.std = {0.2470f, 0.2435f, 0.2616f};
  info.warnings = std::move(warnings);
  return std::make_unique<MemoryDataset>(std::move(info), std::move(pixels), std::move(labels));
}

std::optional<DataSplit> open_cifar_folder(const std::string& folder) {
  std::map<int64_t, std::string> train;
  std::string test;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == "test_batch.bin") test = it->path().string();
    if (const int64_t number = batch_number(name); number >= 0) {
      const auto [other, is_new] = train.emplace(number, it->path().string());
      CHECK_ARG(is_new, "cifar: ", folder, ": ", fs::path(other->second).filename().string(),
                " and ", name, " have one number");
    }
  }
  CHECK_ARG(!error, "cifar: ", folder, ": ", error.message());
  if (train.empty() && test.empty()) return std::nullopt;
  CHECK_ARG(!train.empty(), "cifar: ", folder, ": has test_batch.bin but no data_batch_N.bin");
  CHECK_ARG(!test.empty(), "cifar: ", folder, ": has training files but no test_batch.bin");
  std::vector<std::string> warnings;
  const std::vector<std::string> names =
      read_class_names(fs::path(folder) / "batches.meta.txt", warnings);
  const auto present = static_cast<int64_t>(train.size());
  if (train.rbegin()->first - train.begin()->first + 1 != present) {
    warnings.push_back(detail::concat("cifar: ", folder, ": files are missing between data_batch_",
                                      train.begin()->first, ".bin and data_batch_",
                                      train.rbegin()->first, ".bin, ", present, " are there"));
  }
  std::vector<std::string> paths;
  for (const auto& [number, path] : train) paths.push_back(path);
  DataSplit out{open_cifar(paths, names, "cifar-10 train", std::move(warnings)),
                open_cifar({test}, names, "cifar-10 test")};
  refuse_copies(paths);
  return out;
}

}  // namespace headroom
