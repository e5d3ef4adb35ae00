// The fused optimizer steps and what goes with them: overflow check, norm clipping, the control
// tensor and the loss scaler. The rules themselves are in kernels/update_rules.h.
#include <bit>
#include <cmath>
#include <vector>

#include "core/ops/contract.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/strided.h"
#include "kernels/update_rules.h"

namespace headroom {
namespace {

using namespace cpu;  // NOLINT: the helpers of this folder

const View& view_at(const ViewList& list, size_t i) {
  static const View undefined;
  return i < list.size() ? list[i] : undefined;
}

// A range of one tensor of a list.
struct Piece {
  size_t tensor;
  int64_t begin, count;
};

// Cuts the list into pieces of at most kGrain elements, by its shapes alone. Undefined views and
// empty ones have none.
std::vector<Piece> cut_list(const ViewList& list) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t numel = list[i].defined ? list[i].numel() : 0;
    for (int64_t at = 0; at < numel; at += kGrain) {
      pieces.push_back({i, at, std::min(kGrain, numel - at)});
    }
  }
  return pieces;
}

// Pieces handled by one task: a network has many small tensors, a task should have kGrain elements.
template <class Fn>
void for_each_piece(const std::vector<Piece>& pieces, Fn&& fn) {
  std::vector<size_t> starts;
  int64_t filled = kGrain;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (filled + pieces[i].count > kGrain) {
      starts.push_back(i);
      filled = 0;
    }
    filled += pieces[i].count;
  }
  starts.push_back(pieces.size());
  parallel_for(static_cast<int64_t>(starts.size()) - 1, [&](int64_t task) {
    for (size_t i = starts[static_cast<size_t>(task)]; i < starts[static_cast<size_t>(task) + 1];
         ++i) {
      fn(i, pieces[i]);
    }
  });
}

// An operand of the update loops, a chunk at a time; absent operands load and store nothing.
template <class C>
struct Stream {
  const Operand* operand = nullptr;
  C buffer[kChunk];

  // For reading and writing in place.
  C* begin(int64_t at, int64_t count) {
    if (operand == nullptr) return nullptr;
    C* target = store_target(*operand, at, buffer);
    if (target == buffer) load(*operand, at, count, buffer);
    return target;
  }
  void end(int64_t at, int64_t count, const C* values) {
    if (operand != nullptr) store(*operand, at, count, values);
  }
};

// Runs update(parameter, gradient, state..., count) on chunks of every parameter that has a
// gradient, and writes the half copies from the new parameters. Arithmetic in f64 for f64
// parameters, else in f32.
template <class Update>
void update_parameters(const ViewList& parameters, const ViewList& gradients,
                       const ViewList& first_states, const ViewList& second_states,
                       const ViewList& half_copies, Update&& update) {
  CHECK(gradients.size() == parameters.size(), "optimizer: ", gradients.size(), " gradients for ",
        parameters.size(), " parameters");
  ViewList updated = parameters;
  for (size_t i = 0; i < updated.size(); ++i) updated[i].defined &= gradients[i].defined;
  for_each_piece(cut_list(updated), [&](size_t, const Piece& piece) {
    const size_t i = piece.tensor;
    const View& parameter = parameters[i];
    const auto or_parameter = [&](const View& view) { return view.defined ? view : parameter; };
    const View &first = view_at(first_states, i), &second = view_at(second_states, i);
    const View& half = view_at(half_copies, i);
    const Loop loop = plan_loop(
        parameter.shape,
        {gradients[i], or_parameter(first), or_parameter(second), or_parameter(half), parameter});
    dispatch_compute({parameter.dtype}, [&](auto tag) {
      using C = decltype(tag);
      Stream<C> streams[4];
      streams[0].operand = &loop.operand[4];
      if (first.defined) streams[1].operand = &loop.operand[1];
      if (second.defined) streams[2].operand = &loop.operand[2];
      C gradient_buffer[kChunk];
      for (int64_t at = piece.begin; at < piece.begin + piece.count; at += kChunk) {
        const int64_t count = std::min(kChunk, piece.begin + piece.count - at);
        const C* gradient = load(loop.operand[0], at, count, gradient_buffer);
        C* values[3];
        for (int k = 0; k < 3; ++k) values[k] = streams[k].begin(at, count);
        update(values[0], gradient, values[1], values[2], count);
        for (int k = 0; k < 3; ++k) streams[k].end(at, count, values[k]);
        if (half.defined) store(loop.operand[3], at, count, values[0]);
      }
    });
  });
}

void sgd_step(const ViewList& parameters, const ViewList& gradients, const ViewList& momenta,
              const ViewList& half_copies, const View& control, const SgdParams& params) {
  const float* fields = control.as<float>();
  if (fields[kFoundInf] != 0.0f) return;
  update_parameters(parameters, gradients, params.momentum != 0 ? momenta : ViewList(), ViewList(),
                    half_copies, [&]<class C>(C* p, const C* g, C* buffer, C*, int64_t count) {
                      const SgdRule<C> rule = sgd_rule<C>(fields, params);
                      if (buffer == nullptr) {
#pragma GCC ivdep
                        for (int64_t i = 0; i < count; ++i) {
                          p[i] = sgd_update(rule, p[i], g[i], static_cast<C*>(nullptr));
                        }
                      } else {
#pragma GCC ivdep
                        for (int64_t i = 0; i < count; ++i)
                          p[i] = sgd_update(rule, p[i], g[i], buffer + i);
                      }
                    });
}

void adam_step(const ViewList& parameters, const ViewList& gradients, const ViewList& first_moments,
               const ViewList& second_moments, const ViewList& half_copies, const View& control,
               const AdamParams& params) {
  const float* fields = control.as<float>();
  if (fields[kFoundInf] != 0.0f) return;
  update_parameters(parameters, gradients, first_moments, second_moments, half_copies,
                    [&]<class C>(C* p, const C* g, C* m, C* v, int64_t count) {
                      const AdamRule<C> rule = adam_rule<C>(fields, params);
#pragma GCC ivdep
                      for (int64_t i = 0; i < count; ++i) {
                        p[i] = adam_update(rule, p[i], g[i], m[i], v[i]);
                      }
                    });
}

// Infinities and NaN have all exponent bits set.
bool all_finite(const float* values, int64_t count) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    bad |= (std::bit_cast<uint32_t>(values[i]) & kExponent) == kExponent ? 1u : 0u;
  }
  return bad == 0;
}

bool all_finite(const double* values, int64_t count) {
  constexpr uint64_t kExponent = 0x7ff0000000000000u;
  uint64_t bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    bad |= (std::bit_cast<uint64_t>(values[i]) & kExponent) == kExponent ? 1u : 0u;
  }
  return bad == 0;
}

// Calls fn(piece number, values, count) on chunks of every gradient.
template <class Fn>
void for_each_gradient_chunk(const ViewList& gradients, const std::vector<Piece>& pieces, Fn&& fn) {
  for_each_piece(pieces, [&](size_t number, const Piece& piece) {
    const View& gradient = gradients[piece.tensor];
    const Loop loop = plan_loop(gradient.shape, {gradient});
    dispatch_compute({gradient.dtype}, [&](auto tag) {
      using C = decltype(tag);
      C buffer[kChunk];
      for (int64_t at = piece.begin; at < piece.begin + piece.count; at += kChunk) {
        const int64_t count = std::min(kChunk, piece.begin + piece.count - at);
        fn(number, load(loop.operand[0], at, count, buffer), count);
      }
    });
  });
}

void check_finite(const ViewList& gradients, const View& control) {
  const std::vector<Piece> pieces = cut_list(gradients);
  std::vector<uint8_t> bad(pieces.size(), 0);
  for_each_gradient_chunk(gradients, pieces, [&](size_t piece, const auto* values, int64_t count) {
    if (!all_finite(values, count)) bad[piece] = 1;
  });
  for (const uint8_t found : bad) {
    if (found) control.as<float>()[kFoundInf] = 1.0f;
  }
}

// Squares are summed in f64: those of f16 gradients overflow f16, those of scaled ones may f32.
void clip_norm(const ViewList& gradients, double max_norm, const View& control) {
  constexpr int kLanes = 8;
  const std::vector<Piece> pieces = cut_list(gradients);
  std::vector<double> sums(pieces.size(), 0.0);
  for_each_gradient_chunk(gradients, pieces, [&](size_t piece, const auto* values, int64_t count) {
    double lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int j = 0; j < kLanes; ++j) {
        const double value = static_cast<double>(values[i + j]);
        lanes[j] += value * value;
      }
    }
    for (; i < count; ++i) {
      lanes[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    for (const double lane : lanes) sums[piece] += lane;
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  float* fields = control.as<float>();
  const double norm = std::sqrt(total) * static_cast<double>(fields[kInvScale]);
  fields[kGradNorm] = static_cast<float>(norm);
  if (max_norm > 0) fields[kClip] = clip_factor(norm, max_norm);
}

void prepare_step(const View& rates, const View& applied, const View& scale,
                  const PrepareParams& params, const View& control) {
  CHECK(rates.numel() > 0, "prepare_step: no learning rates");
  prepare_control(rates.as<float>(), rates.numel(), *applied.as<int64_t>(),
                  scale.defined ? scale.as<float>() : nullptr, params, control.as<float>());
}

void finish_step(const View& control, const ScalerParams& params, const View& applied,
                 const View& scale, const View& growth_tracker) {
  const bool found_inf = control.as<float>()[kFoundInf] != 0.0f;
  if (!found_inf) ++*applied.as<int64_t>();
  if (scale.defined) {
    update_scale(params, found_inf, scale.as<float>(), growth_tracker.as<int64_t>());
  }
}

}  // namespace

void register_cpu_optimizer_kernels() {
  slots::sgd_step.set(DeviceType::cpu, &sgd_step);
  slots::adam_step.set(DeviceType::cpu, &adam_step);
  slots::check_finite.set(DeviceType::cpu, &check_finite);
  slots::clip_norm.set(DeviceType::cpu, &clip_norm);
  slots::prepare_step.set(DeviceType::cpu, &prepare_step);
  slots::finish_step.set(DeviceType::cpu, &finish_step);
}

}  // namespace headroom
