// The random state of a device: a seed and an offset that advances by one for each op that draws.
#pragma once

#include <cstdint>

#include "core/base/device.h"

namespace headroom {

struct GeneratorState {
  uint64_t seed = 0;
  uint64_t offset = 0;
  bool operator==(const GeneratorState&) const = default;
};

class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : state_{seed, 0} {}
  void seed(uint64_t value) { state_ = {value, 0}; }
  const GeneratorState& state() const { return state_; }
  void set_state(const GeneratorState& state) { state_ = state; }
  // The state for one op's draw (see philox_word); the next call gets another.
  GeneratorState next() {
    GeneratorState out = state_;
    ++state_.offset;
    return out;
  }

 private:
  GeneratorState state_;
};

// One per process, for the thread that trains: draws depend on the logical element index alone, so
// the same seed gives the same numbers on every device.
Generator& default_generator();
void manual_seed(uint64_t seed);

}  // namespace headroom
