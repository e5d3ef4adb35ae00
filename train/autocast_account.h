// An account of what --amp did: which ops computed in half, which in f32 and why, and what the
// copies in the other dtype take.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/autograd/autocast.h"
#include "train/trainer.h"

namespace headroom {

struct AutocastAccount {
  struct Op {
    std::string name;
    DType dtype = DType::f32;  // of its output
    bool inside = true;        // a region
    int64_t calls = 0;         // in the step, second runs inside checkpoints included
  };
  struct Casts {
    int64_t count = 0, bytes = 0;  // bytes: of all of them; alive at once or one after the other
  };
  DType half = DType::f16;
  std::vector<Op> ops;         // in the order of first use
  std::array<Casts, 4> casts;  // by AutocastCast
  const Casts& of(AutocastCast how) const { return casts[static_cast<size_t>(how)]; }
};

// Why an op's output has this dtype: "by the half list", "by the f32 list", "as inputs
// came", or "outside of autocast".
const char* reason_of(const AutocastAccount::Op& op);

// Fills an account in the first step. The account outlives the recorder.
class AutocastRecorder : public TrainObserver, public AutocastListener {
 public:
  AutocastRecorder(DType half, AutocastAccount& account);
  ~AutocastRecorder() override;  // stops listening
  AutocastRecorder(const AutocastRecorder&) = delete;
  AutocastRecorder& operator=(const AutocastRecorder&) = delete;

  void on_step_begin(int64_t step) override;
  void on_step(const StepInfo& step) override;
  void on_op(const char* op, DType output, bool inside) override;
  void on_cast(AutocastCast how, int64_t bytes) override;

 private:
  void listen(bool on);

  AutocastAccount& account_;
  AutocastListener* before_ = nullptr;
  bool listening_ = false, done_ = false;
};

// Lines of a table, each a name and a text: "ops in f16", "conv2d 20 (by the half list); relu 3 (as
// inputs came)".
std::vector<std::pair<std::string, std::string>> autocast_lines(const AutocastAccount& account);

// {"dtype", "ops" [{"op", "dtype", "why", "calls"}..],
//  "casts" {"kept_weights", "made_weights", "to_half", "to_f32": {"count", "bytes"}}}, all of the
// first step.
nlohmann::ordered_json autocast_json(const AutocastAccount& account);

}  // namespace headroom
