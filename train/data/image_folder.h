// Folders of JPEG and PNG files, one sub-folder per class.
//
// Layouts:
//   ROOT/train/CLASS/...  ROOT/test/CLASS/...   test may be called val
//   ROOT/CLASS/...                              a part of each class is held out for testing
// Rules:
//   - Entries whose name starts with a dot are ignored at every level.
//   - Classes are the sub-folders, sorted by the bytes of their names; the labels are 0, 1, ...
//     in that order. A class without images keeps its label, with a warning, so that labels do
//     not shift.
//   - Images are the files ending in .jpg, .jpeg or .png, in any case, anywhere below the class
//     folder (links to files are followed, links to folders below a class are not), sorted by the
//     bytes of their paths. Other files are left out; their number is a warning.
//   - The test set has the classes of the training set; a class that only the test set has is an
//     error.
//   - Nothing depends on the order in which the file system lists entries, nor on a seed.
//   - Held out, if there is no test folder: of a class of n images floor(n / 10), at least one if
//     n > 1, spread evenly over its sorted files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/data/dataset.h"

namespace headroom {

struct ImageEntry {
  std::string path;
  int64_t label = 0;
};

struct FolderListing {
  std::vector<std::string> class_names;
  std::vector<ImageEntry> images;  // by class, then by path
  std::vector<std::string> warnings;
};

// The images below root/CLASS. known_classes, if not empty, are the only ones allowed and fix the
// labels. Reads no file. Throws InvalidArgument if a folder cannot be listed or there is no class.
FolderListing list_image_folder(const std::string& root,
                                const std::vector<std::string>& known_classes = {});

// Moves the images to hold out from `listing` to the result, which has the same classes. Throws
// InvalidArgument if there are none.
FolderListing hold_out(const std::string& root, FolderListing& listing);

// The sets of an image folder. Reads the headers of all images, in parallel, and throws
// InvalidArgument naming the first bad file. Without image_size all images must have one size. If
// any image has colour, both sets have three channels and gray is repeated; else one. Normalised
// with ImageNet's constants (a gray set with their mean). A damaged image whose header was good is
// found by Dataset::read, which throws DataError. Decoded images are kept in memory if the set
// takes at most kKeptImageBytes. nullopt if the folder has no sub-folder that is not hidden.
std::optional<DataSplit> open_image_folder(const std::string& root, int64_t image_size);

constexpr int64_t kKeptImageBytes = int64_t{1} << 30;

}  // namespace headroom
