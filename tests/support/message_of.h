// What a refusal says.
#pragma once

#include <functional>
#include <string>

#include "core/base/error.h"

namespace headroom::test {

// The message of the Error that fn throws, or that it threw none.
inline std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace headroom::test
