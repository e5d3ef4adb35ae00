// The context that allocations are charged to: tag, module path, op and phase. Scopes are per
// thread and nest; each restores what it found. Those of phases, modules and ops are ranges of a
// trace (core/base/ranges.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/ranges.h"
#include "core/memory/tag.h"

namespace headroom {

// An interned module path ("blocks.0.convs.1"); 0 is the empty path. Ids are handed out in order of
// first use and live as long as the process; any thread may ask.
using PathId = int32_t;

// The id of a whole path, made on first use. Throws InvalidArgument beyond a million paths, which
// only a caller that puts counters into names reaches.
PathId intern_path(std::string_view whole_path);

// The path of an id; the reference stays valid. Throws InvalidArgument for an id never handed out.
const std::string& path_name(PathId id);

enum class Phase : uint8_t { none, forward, backward, optimizer, evaluation, search };
const char* name_of(Phase phase);

struct MemoryContext {
  Tag tag = Tag::temporary;
  PathId path = 0;
  const char* op = "";  // static string
  Phase phase = Phase::none;
};

// The calling thread's context; a new thread starts with the defaults above.
const MemoryContext& memory_context();

// Allocations inside carry `tag`.
class TagScope {
 public:
  explicit TagScope(Tag tag);
  ~TagScope();
  TagScope(const TagScope&) = delete;
  TagScope& operator=(const TagScope&) = delete;

 private:
  Tag previous_;
};

// Appends `name` to the module path, joined by '.' (an empty name leaves the path as it is), or
// with the PathId form sets the whole path, as backward does with the path its forward ran under.
// Throws InvalidArgument as intern_path() and path_name() do.
class PathScope {
 public:
  explicit PathScope(std::string_view name);
  explicit PathScope(PathId whole_path);
  ~PathScope();
  PathScope(const PathScope&) = delete;
  PathScope& operator=(const PathScope&) = delete;

 private:
  void enter(PathId path);

  PathId previous_;
  RangeListener* listener_ = nullptr;  // of the range that a change of the path is
};

// `op` must be a static string.
class OpScope {
 public:
  explicit OpScope(const char* op);
  ~OpScope();
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;

 private:
  const char* previous_;
  RangeScope range_;
};

class PhaseScope {
 public:
  explicit PhaseScope(Phase phase);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Phase previous_;
  std::optional<RangeScope> range_;  // none within the same phase
};

}  // namespace headroom
