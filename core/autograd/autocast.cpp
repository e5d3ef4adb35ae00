// Autocast state and its cache of weight casts.
#include "core/autograd/autocast.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "core/autograd/node.h"
#include "core/ops/contract.h"
#include "core/ops/elementwise.h"

namespace headroom {
namespace {

struct CachedCast {
  Tensor half;  // outside the graph: each use hangs it on the leaf anew
  std::shared_ptr<Storage> source;
  int64_t version = 0;
};

thread_local AutocastState state;
thread_local int region_depth = 0;
thread_local AutocastListener* listener = nullptr;

constexpr std::string_view kCast = "cast";
constexpr std::string_view kHalfOps[] = {"conv2d", "linear", "matmul"};
// mse_loss is made of others, its mean among them.
constexpr std::string_view kF32Ops[] = {"exp",         "log",           "pow_scalar", "softmax",
                                        "log_softmax", "cross_entropy", "sum",        "mean"};

void tell(AutocastCast how, const Tensor& made) {
  if (listener) listener->on_cast(how, made.nbytes());
}

std::unordered_map<const LeafNode*, CachedCast>& cast_cache() {
  thread_local std::unordered_map<const LeafNode*, CachedCast> cache;
  return cache;
}

// The half copy of a leaf can be made again from the leaf.
class CastOfLeaf final : public Recipe {
 public:
  CastOfLeaf(const Tensor& leaf, DType dtype)
      : leaf_(leaf.detach()), version_(leaf.storage()->version()), dtype_(dtype) {}
  Tensor recompute() override {
    if (leaf_.storage()->version() != version_) {
      throw Error(detail::concat("cast: the parameter ", leaf_.describe(),
                                 " was written in place since its half copy was used: it was at "
                                 "version ",
                                 version_, " and is at version ", leaf_.storage()->version()));
    }
    const TagScope tag(Tag::cast_copy);
    return detail::converted(leaf_, dtype_);
  }

 private:
  Tensor leaf_;
  int64_t version_;
  DType dtype_;
};

Tensor half_of_leaf(const Tensor& x, DType dtype) {
  Tensor half = x.half_copy();
  std::shared_ptr<Recipe> recipe;
  if (half.defined() && half.dtype() == dtype) {
    tell(AutocastCast::kept_weight, half);
    if (!x.half_copy_is_current()) {
      slots::copy(x, half);
      half.storage()->bump_version();
      Tensor(x).mark_half_copy_current();
    }
  } else {
    CachedCast& cached = cast_cache()[x.impl()->leaf.get()];
    if (!cached.half.defined() || cached.half.dtype() != dtype || cached.source != x.storage() ||
        cached.version != x.storage()->version()) {
      const TagScope tag(Tag::cast_copy);
      const OpScope op("cast");
      cached = {};
      cached = {detail::converted(x.detach(), dtype), x.storage(), x.storage()->version()};
      tell(AutocastCast::made_weight, cached.half);
    }
    half = cached.half;
    recipe = std::make_shared<CastOfLeaf>(x, dtype);
  }
  Tensor out = half.detach();
  detail::note_graph_input(x);
  if (grad_enabled()) {
    out.impl()->grad_fn = x.impl()->leaf;
    out.impl()->recipe = recipe;
    out.impl()->recipe_version = out.storage()->version();
  }
  return out;
}

}  // namespace

Autocast::Autocast(DType dtype, bool enabled)
    : previous_enabled_(state.enabled), previous_dtype_(state.dtype) {
  CHECK_ARG(is_half(dtype), "autocast: takes f16 or bf16 but got ", dtype);
  state = {enabled, dtype};
  ++region_depth;
}

Autocast::~Autocast() {
  state = {previous_enabled_, previous_dtype_};
  if (--region_depth == 0) cast_cache().clear();
}

AutocastState autocast_state() { return state; }

AutocastRule autocast_rule(std::string_view op) {
  const auto has = [op](const auto& list) {
    return std::find(std::begin(list), std::end(list), op) != std::end(list);
  };
  if (has(kHalfOps)) return AutocastRule::half;
  return has(kF32Ops) ? AutocastRule::f32 : AutocastRule::as_it_comes;
}

AutocastListener* set_autocast_listener(AutocastListener* next) {
  return std::exchange(listener, next);
}

namespace detail {

void note_autocast_op(const char* op, const Tensor& out) {
  if (listener && is_floating(out.dtype()) && op != kCast) {
    listener->on_op(op, out.dtype(), state.enabled);
  }
}

}  // namespace detail

namespace autocast {

Tensor to_half(const Tensor& x) {
  if (!state.enabled || !x.defined() || !is_floating(x.dtype()) || x.dtype() == DType::f64 ||
      x.dtype() == state.dtype) {
    return x;
  }
  if (x.is_leaf() && x.impl()->leaf && x.dtype() == DType::f32) {
    return half_of_leaf(x, state.dtype);
  }
  Tensor half = cast(x, state.dtype);
  tell(AutocastCast::to_half, half);
  return half;
}

Tensor to_float(const Tensor& x) {
  if (!state.enabled || !x.defined() || !is_half(x.dtype())) return x;
  Tensor wide = cast(x, DType::f32);
  tell(AutocastCast::to_float, wide);
  return wide;
}

}  // namespace autocast
}  // namespace headroom
