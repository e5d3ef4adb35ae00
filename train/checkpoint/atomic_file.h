// Files that are replaced whole or not at all.
#pragma once

#include <string>

namespace headroom {

// Writes `bytes` to `path` atomically: a temporary file in the same folder, flushed to disk,
// renamed over the old one, the folder flushed. Throws DataError naming the file and the system's
// reason; then the old file is untouched and the temporary one gone.
void write_file_atomically(const std::string& path, const std::string& bytes);

// Makes the temporary file of such a write and removes it again. Throws as that would.
void try_to_create(const std::string& path);

}  // namespace headroom
