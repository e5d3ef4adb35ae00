// Autocast: inside a region, ops that gain from half precision take their inputs in it, and ops
// that need range take f32. The lists are those of PyTorch's autocast on CUDA for the ops that
// exist here, but for mean:
//   half: conv2d, linear, matmul
//   f32:  exp, log, pow, softmax, log_softmax, cross_entropy, mse_loss, sum, mean
//   as they come: everything else; where two dtypes meet, the wider wins
// PyTorch's mean of half tensors is summed in f32 and stored in half; here it stays f32, as sum
// does, so that a loss that is a mean can be scaled.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/tensor/tensor.h"

namespace headroom {

// Regions nest and are per thread. Leaving the outermost region empties the cache of weight casts.
class Autocast {
 public:
  // dtype f16 or bf16; throws InvalidArgument for others. enabled = false makes an f32 island.
  explicit Autocast(DType dtype, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool previous_enabled_;
  DType previous_dtype_;
};

struct AutocastState {
  bool enabled = false;
  DType dtype = DType::f16;
};
AutocastState autocast_state();

// Which of the lists above an op is on, by its name.
enum class AutocastRule : uint8_t { half, f32, as_it_comes };
AutocastRule autocast_rule(std::string_view op);

// How an input came to the dtype that its op wants.
enum class AutocastCast : uint8_t {
  kept_weight,  // a leaf whose half copy an optimizer keeps
  made_weight,  // a leaf, cast in this region; later uses in the region are not told
  to_half,      // any other tensor
  to_float,
};

// Told what autocast does, by the thread that does it. While nobody listens, an op
// costs the test of one pointer.
class AutocastListener {
 public:
  virtual ~AutocastListener() = default;
  // An op, inside a region or not, that made a floating output of that dtype; casts are told below.
  virtual void on_op(const char* op, DType output, bool inside) = 0;
  // bytes: of the tensor in its new dtype.
  virtual void on_cast(AutocastCast how, int64_t bytes) = 0;
};
// The calling thread's listener; nullptr: none. Returns the one before.
AutocastListener* set_autocast_listener(AutocastListener* listener);

namespace detail {
// For the engine: an op made `out`.
void note_autocast_op(const char* op, const Tensor& out);
}  // namespace detail

namespace autocast {

// x in the half dtype of the region, or x itself outside a region or if it is f64 or not floating.
// A leaf that requires a gradient is cast once per region (one half copy at most, released with the
// region), or not at all if an optimizer keeps a half copy of it; its gradient goes straight to the
// leaf, in f32. Undefined stays undefined.
Tensor to_half(const Tensor& x);
// x in f32 inside a region if it is half; else x itself.
Tensor to_float(const Tensor& x);

}  // namespace autocast
}  // namespace headroom
