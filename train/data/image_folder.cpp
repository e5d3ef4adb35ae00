// Lists image folders and serves their images, decoded and resized.
#include "train/data/image_folder.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "core/base/parallel.h"
#include "train/data/image_file.h"
#include "train/data/resize.h"

namespace headroom {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHeldOutOneIn = 10;
constexpr int64_t kHeaderGrain = 64;  // headers per parallel task

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool named_like_an_image(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& letter : ending) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

// The folders directly below root that are not hidden, by the bytes of their names.
std::vector<std::string> sub_folders(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    std::error_code unreadable;
    if (!hidden(it->path()) && it->is_directory(unreadable)) {
      names.push_back(it->path().filename().string());
    }
  }
  CHECK_ARG(!error, "image folder: ", root, ": ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

// The images below `folder`, sorted; counts the files that are none.
std::vector<std::string> images_below(const fs::path& folder, int64_t& others) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code unreadable;
    if (hidden(it->path())) {
      it.disable_recursion_pending();
    } else if (!it->is_directory(unreadable)) {
      // A pipe of that name would block who opens it; a link to nothing is told when it is opened.
      const bool is_file = !it->is_other(unreadable);
      if (is_file && named_like_an_image(it->path())) {
        paths.push_back(it->path().string());
      } else {
        ++others;
      }
    }
  }
  CHECK_ARG(!error, "image folder: ", folder.string(), ": ", error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// The headers of all images, in their order. Of several bad files the first in that order is named.
std::vector<ImageShape> read_headers(const std::vector<ImageEntry>& images) {
  const auto count = static_cast<int64_t>(images.size());
  std::vector<ImageShape> shapes(images.size());
  std::vector<std::string> failures(images.size());
  parallel_for((count + kHeaderGrain - 1) / kHeaderGrain, [&](int64_t task) {
    const int64_t end = std::min(count, (task + 1) * kHeaderGrain);
    for (int64_t i = task * kHeaderGrain; i < end; ++i) {
      try {
        shapes[i] = read_image_header(images[i].path);
      } catch (const DataError& error) {
        failures[i] = error.what();
      }
    }
  });
  for (const std::string& failure : failures) CHECK_ARG(failure.empty(), failure);
  return shapes;
}

class ImageFolder : public Dataset {
 public:
  ImageFolder(DatasetInfo info, std::vector<ImageEntry> images, bool resize)
      : Dataset(std::move(info)), images_(std::move(images)), resize_(resize) {
    if (size() > kKeptImageBytes / shape().bytes()) return;
    // Not initialised: the system provides pages as images come in.
    kept_.reset(new uint8_t[static_cast<size_t>(size() * shape().bytes())]);
    kept_state_ = std::make_unique<std::atomic<Kept>[]>(images_.size());
  }

  int64_t size() const override { return static_cast<int64_t>(images_.size()); }
  int64_t label(int64_t index) const override { return images_[index].label; }

  void read(int64_t index, uint8_t* hwc) const override {
    if (!kept_) return decode(images_[index].path, hwc);
    const auto bytes = static_cast<size_t>(shape().bytes());
    uint8_t* mine = kept_.get() + index * shape().bytes();
    std::atomic<Kept>& state = kept_state_[index];
    if (state.load(std::memory_order_acquire) == Kept::yes) {
      std::memcpy(hwc, mine, bytes);
      return;
    }
    decode(images_[index].path, hwc);
    Kept expected = Kept::no;
    if (state.compare_exchange_strong(expected, Kept::being_written)) {
      std::memcpy(mine, hwc, bytes);
      state.store(Kept::yes, std::memory_order_release);
    }
  }

 private:
  enum class Kept : uint8_t { no, being_written, yes };

  void decode(const std::string& path, uint8_t* hwc) const {
    std::vector<uint8_t> pixels;
    const ImageShape found = decode_image(path, shape().channels, pixels);
    if (resize_) return resize_to_square(pixels.data(), found, hwc, shape().height);
    if (found != shape()) {
      throw DataError(detail::concat("image: ", path, ": is ", found.width, "x", found.height,
                                     " now, was ", shape().width, "x", shape().height,
                                     " at the start"));
    }
    std::memcpy(hwc, pixels.data(), pixels.size());
  }

  std::vector<ImageEntry> images_;
  bool resize_;
  std::unique_ptr<uint8_t[]> kept_;
  std::unique_ptr<std::atomic<Kept>[]> kept_state_;
};

struct FolderLists {
  FolderListing train, test;
  bool held_out = false;
};

FolderLists list_split(const std::string& root, const std::vector<std::string>& folders) {
  const auto has = [&](const char* name) {
    return std::find(folders.begin(), folders.end(), name) != folders.end();
  };
  FolderLists lists;
  if (!has("train")) {
    CHECK_ARG(!has("test") && !has("val"), "image folder: ", root,
              ": has a folder for testing but no folder train");
    lists.train = list_image_folder(root);
    lists.test = hold_out(root, lists.train);
    lists.held_out = true;
    return lists;
  }
  const fs::path base(root);
  lists.train = list_image_folder((base / "train").string());
  for (const char* name : {"test", "val"}) {
    // A test folder without class folders, as ImageNet has beside its val, tells no labels.
    if (!has(name) || sub_folders((base / name).string()).empty()) continue;
    lists.test = list_image_folder((base / name).string(), lists.train.class_names);
    return lists;
  }
  lists.test = hold_out(root, lists.train);
  lists.held_out = true;
  return lists;
}

ImageShape common_shape(const std::vector<ImageEntry>& images,
                        const std::vector<ImageShape>& shapes, int64_t image_size) {
  ImageShape common = shapes.front();
  for (size_t i = 0; i < shapes.size(); ++i) {
    common.channels = std::max(common.channels, shapes[i].channels);
    if (image_size > 0) continue;
    CHECK_ARG(shapes[i].height == common.height && shapes[i].width == common.width,
              "image folder: images must have one size, but ", images[0].path, " is ", common.width,
              "x", common.height, " and ", images[i].path, " is ", shapes[i].width, "x",
              shapes[i].height, "; give --image-size to resize them");
  }
  if (image_size > 0) common.height = common.width = image_size;
  return common;
}

std::unique_ptr<Dataset> make_set(FolderListing listing, const ImageShape& shape, bool resize,
                                  const std::string& name) {
  DatasetInfo info;
  info.name = name;
  info.shape = shape;
  info.class_names = std::move(listing.class_names);
  info.warnings = std::move(listing.warnings);
  if (shape.channels == 3) {
    info.mean = {0.485f, 0.456f, 0.406f};
    info.std = {0.229f, 0.224f, 0.225f};
  } else {
    info.mean = {0.449f};
    info.std = {0.226f};
  }
  return std::make_unique<ImageFolder>(std::move(info), std::move(listing.images), resize);
}

}  // namespace

FolderListing list_image_folder(const std::string& root,
                                const std::vector<std::string>& known_classes) {
  FolderListing listing;
  const std::vector<std::string> folders = sub_folders(root);
  CHECK_ARG(!folders.empty(), "image folder: ", root, ": has no class folders");
  listing.class_names = known_classes.empty() ? folders : known_classes;
  for (const std::string& name : folders) {
    CHECK_ARG(std::find(listing.class_names.begin(), listing.class_names.end(), name) !=
                  listing.class_names.end(),
              "image folder: ", root, ": class ", name, " is not among the training classes");
  }
  int64_t others = 0;
  for (size_t label = 0; label < listing.class_names.size(); ++label) {
    const std::string& name = listing.class_names[label];
    std::vector<std::string> paths;
    if (std::find(folders.begin(), folders.end(), name) != folders.end()) {
      paths = images_below(fs::path(root) / name, others);
    }
    if (paths.empty()) {
      listing.warnings.push_back(detail::concat("image folder: ", root, ": class ", name,
                                                " has no images; it keeps label ", label));
    }
    for (std::string& path : paths) {
      listing.images.push_back({std::move(path), static_cast<int64_t>(label)});
    }
  }
  if (others > 0) {
    listing.warnings.push_back(
        detail::concat("image folder: ", root, ": ", others,
                       " files that are not .jpg, .jpeg or .png are left out"));
  }
  return listing;
}

FolderListing hold_out(const std::string& root, FolderListing& listing) {
  CHECK_ARG(!listing.images.empty(), "image folder: ", root,
            ": its folders hold no .jpg, .jpeg or .png");
  FolderListing held;
  held.class_names = listing.class_names;
  std::vector<int64_t> counts(listing.class_names.size(), 0);
  for (const ImageEntry& image : listing.images) ++counts[image.label];
  std::vector<int64_t> seen(counts.size(), 0);
  std::vector<ImageEntry> rest;
  for (ImageEntry& image : listing.images) {
    const int64_t n = counts[image.label], i = seen[image.label]++;
    const int64_t wanted = n > 1 ? std::max<int64_t>(1, n / kHeldOutOneIn) : 0;
    const bool take = (i + 1) * wanted / n > i * wanted / n;
    (take ? held.images : rest).push_back(std::move(image));
  }
  listing.images = std::move(rest);
  CHECK_ARG(!held.images.empty(), "image folder: ", root,
            ": no class has two images, so none can be held out for testing; add more, "
            "or folders train and test");
  return held;
}

std::optional<DataSplit> open_image_folder(const std::string& root, int64_t image_size) {
  const std::vector<std::string> folders = sub_folders(root);
  if (folders.empty()) return std::nullopt;
  FolderLists lists = list_split(root, folders);
  CHECK_ARG(!lists.train.images.empty(), "image folder: ", root, ": has no images to train on");
  CHECK_ARG(!lists.test.images.empty(), "image folder: ", root, ": has no images to test on");

  std::vector<ImageEntry> all = lists.train.images;
  all.insert(all.end(), lists.test.images.begin(), lists.test.images.end());
  const ImageShape shape = common_shape(all, read_headers(all), image_size);

  const std::string name = fs::path(root).lexically_normal().filename().string();
  const std::string base = name.empty() ? "images" : name;
  const bool resize = image_size > 0;
  return DataSplit{make_set(std::move(lists.train), shape, resize, base + " train"),
                   make_set(std::move(lists.test), shape, resize,
                            base + (lists.held_out ? " held out" : " test"))};
}

}  // namespace headroom
