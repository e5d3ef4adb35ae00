// Named ranges of the work of a thread: steps, phases, modules, ops, kernels. They nest. Whoever
// wants a trace listens; while nobody does, a range costs the test of one pointer.
#pragma once

#include <cstdint>

namespace headroom {

enum class RangeKind : uint8_t { step, phase, module, op, kernel };
const char* name_of(RangeKind kind);

class RangeListener {
 public:
  virtual ~RangeListener() = default;
  // `name` lives as long as the process. `number` is that of a step, else 0.
  virtual void begin_range(RangeKind kind, const char* name, int64_t number) noexcept = 0;
  // Of the range begun last and not ended. Comes from the listener's own begin_range() only: a
  // range that was open when the listener came is not reported to it.
  virtual void end_range() noexcept = 0;
};

namespace detail {
inline thread_local constinit RangeListener* range_listener = nullptr;
}

// The calling thread's listener; nullptr: none. It is told the end of each range whose begin it was
// told, so it must outlive these. Returns the one before, to which a second listener may pass on.
inline RangeListener* set_range_listener(RangeListener* listener) {
  RangeListener* before = detail::range_listener;
  detail::range_listener = listener;
  return before;
}

class RangeScope {
 public:
  RangeScope(RangeKind kind, const char* name, int64_t number = 0)
      : listener_(detail::range_listener) {
    if (listener_) listener_->begin_range(kind, name, number);
  }
  ~RangeScope() {
    if (listener_) listener_->end_range();
  }
  RangeScope(const RangeScope&) = delete;
  RangeScope& operator=(const RangeScope&) = delete;

 private:
  RangeListener* listener_;
};

}  // namespace headroom
