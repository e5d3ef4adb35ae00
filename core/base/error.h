// The exceptions that the library throws, and the checks that throw them. Nothing in Headroom
// aborts on a user's mistake.
#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace headroom {

// Base of every exception thrown on purpose by this library.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument, flag, file or shape that the caller can correct.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A device or one of its libraries failed; the message names the call and the op that made it.
// Where a lack of memory may be the cause, it says what is free and what other processes hold.
class DeviceError : public Error {
 public:
  using Error::Error;
};

// The allocator could not serve a request, after it gave its cached segments back and tried again.
// All sizes are bytes.
class OutOfMemory : public Error {
 public:
  struct Facts {
    int64_t requested_bytes = 0;  // what the op asked for
    int64_t rounded_bytes = 0;    // the block it needs
    int64_t segment_bytes = 0;    // the segment, or pages, that were asked of the device
    int64_t allocated_bytes = 0;  // in live blocks of this allocator
    int64_t reserved_bytes = 0;   // held from the device by this allocator
    int64_t limit_bytes = 0;      // set_memory_limit, 0 if none
    int64_t device_free_bytes = 0;
    int64_t device_total_bytes = 0;
  };
  OutOfMemory(const std::string& message, const Facts& facts) : Error(message), facts_(facts) {}
  const Facts& facts() const { return facts_; }

 private:
  Facts facts_;
};

// A file that turned out to be unreadable or corrupt while it was used.
class DataError : public Error {
 public:
  using Error::Error;
};

namespace detail {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

[[noreturn]] void fail_internal(const char* file, int line, const char* condition,
                                const std::string& message);

}  // namespace detail

// CHECK_ARG(cond, parts...): throws InvalidArgument with the parts streamed together.
#define CHECK_ARG(condition, ...)                                                 \
  do {                                                                            \
    if (!(condition)) {                                                           \
      throw ::headroom::InvalidArgument(::headroom::detail::concat(__VA_ARGS__)); \
    }                                                                             \
  } while (false)

// CHECK(cond, parts...): an invariant of our own; throws Error naming file and line.
#define CHECK(condition, ...)                                                     \
  do {                                                                            \
    if (!(condition)) {                                                           \
      ::headroom::detail::fail_internal(__FILE__, __LINE__, #condition,           \
                                        ::headroom::detail::concat(__VA_ARGS__)); \
    }                                                                             \
  } while (false)

}  // namespace headroom
