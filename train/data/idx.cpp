// Reads IDX files through zlib, which passes files that are not compressed through unchanged.
#include "train/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace headroom {
namespace {

namespace fs = std::filesystem;

// Deflate cannot pack tighter than 1032 to 1 (zlib, "Maximum Compression Factor").
constexpr int64_t kMaxInflation = 1032;
constexpr int64_t kMnistClasses = 10;

class GzFile {
 public:
  explicit GzFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    CHECK_ARG(file_ != nullptr, "idx: ", path, ": cannot be opened");
  }
  ~GzFile() { gzclose(file_); }
  GzFile(const GzFile&) = delete;
  GzFile& operator=(const GzFile&) = delete;

  // Up to `count` bytes; fewer only at the end, also at the end of a gzip file that was cut short.
  // Throws InvalidArgument if compressed data are corrupt, their checksum included.
  int64_t read(uint8_t* to, int64_t count) {
    int64_t done = 0;
    while (done < count) {
      const auto step = static_cast<unsigned>(std::min<int64_t>(count - done, 1 << 24));
      const int got = gzread(file_, to + done, step);
      if (got < 0) {
        int code = Z_OK;
        const char* message = gzerror(file_, &code);
        if (code == Z_BUF_ERROR) break;
        throw InvalidArgument(detail::concat("idx: ", path_, ": ", message));
      }
      if (got == 0) break;
      done += got;
    }
    return done;
  }

  // As read(), into `to`, which grows with what has come: what a header promises is no reason to
  // take memory for it.
  int64_t read_growing(std::vector<uint8_t>& to, int64_t count) {
    constexpr int64_t kPieceBytes = int64_t{16} << 20;
    int64_t done = 0;
    while (done < count) {
      const int64_t step = std::min(count - done, kPieceBytes);
      to.resize(static_cast<size_t>(done + step));
      const int64_t got = read(to.data() + done, step);
      done += got;
      if (got < step) break;
    }
    return done;
  }

  bool compressed() { return gzdirect(file_) == 0; }
  bool cut_short() {
    int code = Z_OK;
    gzerror(file_, &code);
    return code == Z_BUF_ERROR;
  }

 private:
  std::string path_;
  gzFile file_;
};

int64_t size_of_file(const std::string& path) {
  std::error_code error;
  CHECK_ARG(fs::is_regular_file(path, error), "idx: ", path, ": no such file");
  const auto size = fs::file_size(path, error);
  CHECK_ARG(!error, "idx: ", path, ": ", error.message());
  return static_cast<int64_t>(size);
}

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string text;
  for (const int64_t dim : dims) text += (text.empty() ? "" : "x") + std::to_string(dim);
  return text;
}

// The elements that the header promises. Throws if they do not fit into 63 bits.
int64_t element_count(const std::string& path, const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) {
    CHECK_ARG(dim > 0, "idx: ", path, ": holds nothing, its dimensions are ", dims_text(dims));
    CHECK_ARG(!__builtin_mul_overflow(count, dim, &count), "idx: ", path,
              ": impossible dimensions ", dims_text(dims));
  }
  return count;
}

}  // namespace

IdxArray read_idx(const std::string& path, int dimensions) {
  const int64_t file_bytes = size_of_file(path);
  GzFile file(path);
  const int64_t header_bytes = 4 + 4 * dimensions;
  std::vector<uint8_t> header(static_cast<size_t>(header_bytes));
  const int64_t header_got = file.read(header.data(), header_bytes);
  const auto refuse_length = [&](int64_t expected, const std::string& found) {
    throw InvalidArgument(detail::concat("idx: ", path, ": expected ", expected, " bytes, found ",
                                         found, file.compressed() ? " after decompression" : ""));
  };
  if (header_got >= 4) {
    const uint32_t magic = uint32_t{header[0]} << 24 | uint32_t{header[1]} << 16 |
                           uint32_t{header[2]} << 8 | uint32_t{header[3]};
    const uint32_t wanted = 0x0800u + static_cast<uint32_t>(dimensions);
    CHECK_ARG(magic == wanted, "idx: ", path, ": the first four bytes must be the magic number ",
              wanted, " (unsigned bytes, ", dimensions, " dimensions), found ", magic);
  }
  if (header_got < header_bytes) {
    throw InvalidArgument(detail::concat("idx: ", path, ": the header takes ", header_bytes,
                                         " bytes, found ", header_got));
  }
  IdxArray array;
  for (int d = 0; d < dimensions; ++d) {
    const uint8_t* at = header.data() + 4 + 4 * d;
    array.dims.push_back(int64_t{at[0]} << 24 | int64_t{at[1]} << 16 | int64_t{at[2]} << 8 |
                         int64_t{at[3]});
  }
  const int64_t count = element_count(path, array.dims);
  if (file.compressed()) {
    CHECK_ARG(count / kMaxInflation <= file_bytes, "idx: ", path, ": its header promises ", count,
              " bytes of data (", dims_text(array.dims), "), more than ", file_bytes,
              " compressed bytes can hold");
  } else if (file_bytes - header_bytes != count) {
    refuse_length(header_bytes + count, std::to_string(file_bytes));
  }
  const int64_t got = file.read_growing(array.bytes, count);
  if (got < count) refuse_length(header_bytes + count, std::to_string(header_bytes + got));
  // One byte more than promised is asked for: it must not be there, and reading up to the end makes
  // zlib verify the checksum.
  uint8_t extra = 0;
  if (file.read(&extra, 1) != 0) refuse_length(header_bytes + count, "more");
  CHECK_ARG(!file.cut_short(), "idx: ", path, ": the compressed file is cut short");
  return array;
}

std::unique_ptr<Dataset> open_idx(const std::string& images_path, const std::string& labels_path,
                                  const std::string& name) {
  IdxArray images = read_idx(images_path, 3);
  IdxArray labels = read_idx(labels_path, 1);
  CHECK_ARG(images.dims[0] == labels.dims[0], "idx: ", images_path, " holds ", images.dims[0],
            " images but ", labels_path, " holds ", labels.dims[0], " labels");
  for (size_t i = 0; i < labels.bytes.size(); ++i) {
    CHECK_ARG(labels.bytes[i] < kMnistClasses, "idx: ", labels_path, ": label ",
              int{labels.bytes[i]}, " of item ", i, " is out of range, labels go from 0 to ",
              kMnistClasses - 1);
  }
  DatasetInfo info;
  info.name = name;
  info.shape = {1, images.dims[1], images.dims[2]};
  for (int64_t c = 0; c < kMnistClasses; ++c) info.class_names.push_back(std::to_string(c));
  info.mean = {0.1307f};
  info.std = {0.3081f};
  return std::make_unique<MemoryDataset>(std::move(info), std::move(images.bytes),
                                         std::move(labels.bytes));
}

std::optional<DataSplit> open_mnist(const std::string& folder) {
  constexpr std::array<const char*, 2> kSplits = {"train", "t10k"};
  constexpr std::array<const char*, 2> kParts = {"images", "labels"};
  std::array<std::array<std::string, 2>, 2> paths;
  std::string missing;
  int found = 0;
  for (int split = 0; split < 2; ++split) {
    for (int part = 0; part < 2; ++part) {
      const std::string kind = part == 0 ? "idx3-ubyte" : "idx1-ubyte";
      const std::string stem = std::string(kSplits[split]) + "-" + kParts[part];
      std::string& path = paths[split][part];
      for (const char* separator : {"-", "."}) {
        for (const char* ending : {"", ".gz"}) {
          const fs::path candidate = fs::path(folder) / (stem + separator + kind + ending);
          std::error_code error;
          if (path.empty() && fs::is_regular_file(candidate, error)) path = candidate.string();
        }
      }
      if (path.empty()) {
        missing += (missing.empty() ? "" : ", ") + stem + "-" + kind;
      } else {
        ++found;
      }
    }
  }
  if (found == 0) return std::nullopt;
  CHECK_ARG(found == 4, "idx: ", folder, ": missing ", missing, " (plain or .gz)");
  DataSplit split{open_idx(paths[0][0], paths[0][1], "mnist train"),
                  open_idx(paths[1][0], paths[1][1], "mnist test")};
  CHECK_ARG(split.train->shape() == split.test->shape(), "idx: ", folder, ": training images are ",
            split.train->shape().height, "x", split.train->shape().width, " but test images ",
            split.test->shape().height, "x", split.test->shape().width);
  return split;
}

}  // namespace headroom
