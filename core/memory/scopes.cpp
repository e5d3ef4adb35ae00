// The thread's memory context and the process-wide table of module paths.
#include "core/memory/scopes.h"

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "core/base/error.h"

namespace headroom {
namespace {

constexpr int32_t kMaxPaths = 1'000'000;

thread_local constinit MemoryContext context;

class PathTable {
 public:
  PathTable() { intern(""); }

  PathId intern(std::string_view path) {
    {
      const std::shared_lock lock(mutex_);
      const auto found = ids_.find(path);
      if (found != ids_.end()) return found->second;
    }
    const std::unique_lock lock(mutex_);
    const auto found = ids_.find(path);
    if (found != ids_.end()) return found->second;
    CHECK_ARG(names_.size() < kMaxPaths, "module path: more than ", kMaxPaths,
              " different paths, the last one '", path, "'");
    names_.emplace_back(path);
    const auto id = static_cast<PathId>(names_.size() - 1);
    try {
      ids_.emplace(names_.back(), id);
    } catch (...) {
      names_.pop_back();
      throw;
    }
    count_.store(id + 1, std::memory_order_release);
    return id;
  }

  void check(PathId id) const {
    CHECK_ARG(id >= 0 && id < count_.load(std::memory_order_acquire), "module path: ", id,
              " is not the id of a path");
  }

  const std::string& name(PathId id) const {
    check(id);
    const std::shared_lock lock(mutex_);
    return names_[static_cast<size_t>(id)];
  }

 private:
  mutable std::shared_mutex mutex_;
  std::deque<std::string> names_;  // a deque: references outlive later insertions
  std::unordered_map<std::string_view, PathId> ids_;
  std::atomic<PathId> count_{0};
};

PathTable& paths() {
  // Never destroyed: blocks of tensors with static lifetime are named after main() ends.
  static auto* table = new PathTable;
  return *table;
}

PathId child_path(PathId parent, std::string_view name) {
  if (name.empty()) return parent;
  if (parent == 0) return intern_path(name);
  // Kept per thread: entering a module allocates nothing once its path is known.
  thread_local std::string joined;
  joined = path_name(parent);
  joined += '.';
  joined += name;
  return intern_path(joined);
}

}  // namespace

PathId intern_path(std::string_view whole_path) { return paths().intern(whole_path); }

const std::string& path_name(PathId id) { return paths().name(id); }

const char* name_of(Phase phase) {
  constexpr std::array<const char*, 6> kNames = {"none",      "forward",    "backward",
                                                 "optimizer", "evaluation", "search"};
  return kNames[static_cast<size_t>(phase)];
}

const MemoryContext& memory_context() { return context; }

TagScope::TagScope(Tag tag) : previous_(context.tag) { context.tag = tag; }
TagScope::~TagScope() { context.tag = previous_; }

PathScope::PathScope(std::string_view name) : previous_(context.path) {
  enter(child_path(previous_, name));
}
PathScope::PathScope(PathId whole_path) : previous_(context.path) {
  paths().check(whole_path);
  enter(whole_path);
}
PathScope::~PathScope() {
  if (listener_) listener_->end_range();
  context.path = previous_;
}

void PathScope::enter(PathId path) {
  context.path = path;
  if (path == previous_ || path == 0) return;
  listener_ = detail::range_listener;
  if (listener_) listener_->begin_range(RangeKind::module, path_name(path).c_str(), 0);
}

// The context changes before the range begins, so a listener finds in it what the range is of.
OpScope::OpScope(const char* op)
    : previous_(std::exchange(context.op, op)), range_(RangeKind::op, op) {}
OpScope::~OpScope() { context.op = previous_; }

PhaseScope::PhaseScope(Phase phase) : previous_(std::exchange(context.phase, phase)) {
  if (phase != previous_) range_.emplace(RangeKind::phase, name_of(phase));
}
PhaseScope::~PhaseScope() { context.phase = previous_; }

}  // namespace headroom
