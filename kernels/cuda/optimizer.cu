// The fused optimizer steps on CUDA: one launch updates every parameter of one combination of
// types, reads the control scalars on the device and writes the half copies in the same pass. The
// rules stand in update_rules.h.
#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/ops/contract.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/tensor_list.cuh"
#include "kernels/update_rules.h"

namespace headroom {
namespace {

using namespace cuda;

// Elements that a thread handles at once: 16 bytes of a half type, 32 of f32.
constexpr int kWidth = 8;
constexpr int kPacks = 2;  // per thread, all loaded before the first is used
constexpr int64_t kChunk = int64_t{kListThreads} * kWidth * kPacks;

// The arrays of an update, in the order of ListEntry::data. The last three may be absent.
enum Array : int { kParameter, kGradient, kFirst, kSecond, kHalf, kArrays };
using UpdateEntry = ListEntry<kArrays>;

// One optimizer's rule: read once per block, applied to each element. first and second are state.
struct SgdStep {
  using Rule = SgdRule<float>;
  static constexpr bool kTwoStates = false;
  SgdParams params;
  __device__ Rule rule(const float* control) const { return sgd_rule<float>(control, params); }
  // has_state: false without momentum.
  static __device__ float apply(const Rule& rule, float parameter, float gradient, bool has_state,
                                float& first, float&) {
    return sgd_update(rule, parameter, gradient, has_state ? &first : nullptr);
  }
};

struct AdamStep {
  using Rule = AdamRule<float>;
  static constexpr bool kTwoStates = true;
  AdamParams params;
  __device__ Rule rule(const float* control) const { return adam_rule<float>(control, params); }
  static __device__ float apply(const Rule& rule, float parameter, float gradient, bool,
                                float& first, float& second) {
    return adam_update(rule, parameter, gradient, first, second);
  }
};

// A pack of each array of one tensor.
template <class P, class G>
struct UpdatePack {
  Pack<P, kWidth> parameter;
  Pack<G, kWidth> gradient;
  Pack<float, kWidth> first, second;
};

// P, G, H: types of parameter, gradient and half copy (float: none).
template <class Step, class P, class G, class H, class List>
__global__ void __launch_bounds__(kListThreads)
    update_kernel(const __grid_constant__ List list, Step step, const float* control) {
  __shared__ typename Step::Rule shared_rule;
  const bool skip = control[kFoundInf] != 0.0f;
  if (threadIdx.x == 0) shared_rule = step.rule(control);

  const int block = static_cast<int>(blockIdx.x);
  const UpdateEntry& entry = list.entry[list.find(block)];
  const int64_t begin = int64_t{block - entry.first_block} * kChunk;
  const int64_t end = min(entry.numel, begin + kChunk);
  P* const parameter = static_cast<P*>(entry.data[kParameter]);
  const G* const gradient = static_cast<const G*>(entry.data[kGradient]);
  float* const first = static_cast<float*>(entry.data[kFirst]);
  float* const second = static_cast<float*>(entry.data[kSecond]);
  H* const half = static_cast<H*>(entry.data[kHalf]);
  const bool has_state = first != nullptr;
  const int64_t packed_end = entry.aligned ? end - (end - begin) % kWidth : begin;

  UpdatePack<P, G> packs[kPacks];
#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    const int64_t at = begin + (int64_t{u} * kListThreads + threadIdx.x) * kWidth;
    if (at >= packed_end) break;
    packs[u].parameter = load_pack<P, kWidth>(parameter + at);
    packs[u].gradient = load_pack<G, kWidth>(gradient + at);
    if (has_state) packs[u].first = load_pack<float, kWidth>(first + at);
    if constexpr (Step::kTwoStates) packs[u].second = load_pack<float, kWidth>(second + at);
  }
  if (skip) return;  // after the loads were issued: a skipped step is rare, their latency is not
  __syncthreads();
  const typename Step::Rule rule = shared_rule;

#pragma unroll
  for (int u = 0; u < kPacks; ++u) {
    const int64_t at = begin + (int64_t{u} * kListThreads + threadIdx.x) * kWidth;
    if (at >= packed_end) break;
    UpdatePack<P, G>& pack = packs[u];
    Pack<H, kWidth> copy;
#pragma unroll
    for (int v = 0; v < kWidth; ++v) {
      const float updated =
          Step::apply(rule, to_float(pack.parameter.value[v]), to_float(pack.gradient.value[v]),
                      has_state, pack.first.value[v], pack.second.value[v]);
      pack.parameter.value[v] = from_float<P>(updated);
      copy.value[v] = from_float<H>(updated);
    }
    store_pack(parameter + at, pack.parameter);
    if (has_state) store_pack(first + at, pack.first);
    if constexpr (Step::kTwoStates) store_pack(second + at, pack.second);
    if constexpr (!std::is_same_v<H, float>) store_pack(half + at, copy);
  }
  for (int64_t i = packed_end + threadIdx.x; i < end; i += kListThreads) {
    float state[2] = {has_state ? first[i] : 0.0f, Step::kTwoStates ? second[i] : 0.0f};
    const float updated = Step::apply(rule, to_float(parameter[i]), to_float(gradient[i]),
                                      has_state, state[0], state[1]);
    parameter[i] = from_float<P>(updated);
    if (has_state) first[i] = state[0];
    if constexpr (Step::kTwoStates) second[i] = state[1];
    if constexpr (!std::is_same_v<H, float>) half[i] = from_float<H>(updated);
  }
}

// The same for one tensor whose arrays lie differently, or whose types the list kernels lack.
template <class Step>
struct UpdateBody {  // offsets: parameter, gradient, first, second, half
  Step step;
  const float* control;
  AnyArray parameter, gradient;
  float* first;
  float* second;
  AnyArray half;  // data nullptr: none

  __device__ void operator()(const int64_t (&at)[kArrays]) const {
    if (control[kFoundInf] != 0.0f) return;
    const bool has_state = first != nullptr;
    float state[2] = {has_state ? first[at[kFirst]] : 0.0f,
                      Step::kTwoStates ? second[at[kSecond]] : 0.0f};
    const float updated = Step::apply(step.rule(control), parameter.load(at[kParameter]),
                                      gradient.load(at[kGradient]), has_state, state[0], state[1]);
    parameter.store(at[kParameter], updated);
    if (has_state) first[at[kFirst]] = state[0];
    if constexpr (Step::kTwoStates) second[at[kSecond]] = state[1];
    if (half.data != nullptr) half.store(at[kHalf], updated);
  }
};

template <class Step, class P, class G, class H>
void launch_update(const char* name, const std::vector<UpdateEntry>& entries, const Step& step,
                   const float* control) {
  const auto launch_list = [&]<class List>(const List& list, unsigned blocks) {
    launch(name, &update_kernel<Step, P, G, H, List>, blocks, kListThreads, 0, list, step, control);
  };
  if constexpr (std::is_same_v<P, float>) {
    for_each_list(entries, kChunk, launch_list);
  } else {  // rare: one kernel is enough
    fill_lists<LongList<kArrays>>(entries, kChunk, launch_list);
  }
}

// Types of parameter, gradient and half copy (f32: none).
using UpdateTypes = std::tuple<DType, DType, DType>;

// Runs the list kernel of the types; false when none was compiled for them: f32 parameters take
// any gradients and copies, half parameters gradients of their own type or f32 and no copies.
template <class Step>
bool update_lists(const char* name, const UpdateTypes& types,
                  const std::vector<UpdateEntry>& entries, const Step& step, const float* control) {
  const auto [parameter, gradient, half] = types;
  return dispatch_cuda_floating(gradient, name, [&](auto g) {
    using G = decltype(g);
    if (parameter == DType::f32) {
      dispatch_cuda_floating(half, name, [&](auto h) {
        launch_update<Step, float, G, decltype(h)>(name, entries, step, control);
      });
      return true;
    }
    if (half != DType::f32) return false;
    return dispatch_cuda_floating(parameter, name, [&](auto p) {
      using P = decltype(p);
      if constexpr (sizeof(P) == 2 && (std::is_same_v<P, G> || std::is_same_v<G, float>)) {
        launch_update<Step, P, G, float>(name, entries, step, control);
        return true;
      }
      return false;
    });
  });
}

const View& view_at(const ViewList& list, size_t i) {
  static const View undefined;
  return i < list.size() ? list[i] : undefined;
}

template <class Step>
void update_one(const char* name, const std::array<const View*, kArrays>& views, const Step& step,
                const float* control) {
  std::array<Strides, kArrays> strides;
  for (int k = 0; k < kArrays; ++k) {
    strides[k] = (views[k]->defined ? views[k] : views[kParameter])->strides;
  }
  const View& half = *views[kHalf];
  launch_strided(
      name, make_strided_loop<kArrays>(views[kParameter]->shape, strides),
      UpdateBody<Step>{step, control, any_array(*views[kParameter], name),
                       any_array(*views[kGradient], name), views[kFirst]->as<float>(),
                       views[kSecond]->as<float>(),
                       half.defined ? any_array(half, name) : AnyArray{nullptr, DType::f32}});
}

template <class Step>
void update(const char* name, const ViewList& parameters, const ViewList& gradients,
            const ViewList& first, const ViewList& second, const ViewList& halves,
            const View& control, const Step& step) {
  CHECK(gradients.size() == parameters.size(), name, ": ", gradients.size(), " gradients for ",
        parameters.size(), " parameters");
  const float* fields = control.as<float>();
  // Ordered, so that launches come in the same order every step.
  std::map<UpdateTypes, std::vector<UpdateEntry>> groups;
  std::map<UpdateTypes, std::vector<size_t>> members;
  const auto views_of = [&](size_t i) -> std::array<const View*, kArrays> {
    return {&parameters[i], &gradients[i], &view_at(first, i), &view_at(second, i),
            &view_at(halves, i)};
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    const View& parameter = parameters[i];
    if (!gradients[i].defined || parameter.numel() == 0) continue;
    const auto views = views_of(i);
    CHECK(!Step::kTwoStates || (views[kFirst]->defined && views[kSecond]->defined), name,
          ": parameter ", i, " has no moments");
    UpdateEntry entry{.data = {}, .numel = parameter.numel(), .first_block = 0, .aligned = true};
    bool alike = parameter.is_dense();
    for (int k = 0; k < kArrays; ++k) {
      if (!views[k]->defined) continue;
      CHECK(k != kFirst && k != kSecond || views[k]->dtype == DType::f32, name,
            ": state of parameter ", i, " is ", views[k]->dtype);
      entry.data[k] = views[k]->data;
      entry.aligned = entry.aligned && is_aligned(views[k]->data);
      alike = alike && same_layout(parameter, *views[k]);
    }
    if (!alike) {
      update_one(name, views, step, fields);
      continue;
    }
    const View& half = *views[kHalf];
    CHECK(!half.defined || is_half(half.dtype), name, ": half copy ", i, " is ", half.dtype);
    const UpdateTypes types{parameter.dtype, gradients[i].dtype,
                            half.defined ? half.dtype : DType::f32};
    groups[types].push_back(entry);
    members[types].push_back(i);
  }
  for (const auto& [types, entries] : groups) {
    if (update_lists(name, types, entries, step, fields)) continue;
    for (const size_t i : members[types]) update_one(name, views_of(i), step, fields);
  }
}

void sgd_step(const ViewList& parameters, const ViewList& gradients, const ViewList& momenta,
              const ViewList& half_copies, const View& control, const SgdParams& params) {
  update("sgd_step", parameters, gradients, params.momentum != 0 ? momenta : ViewList(), ViewList(),
         half_copies, control, SgdStep{params});
}

void adam_step(const ViewList& parameters, const ViewList& gradients, const ViewList& first_moments,
               const ViewList& second_moments, const ViewList& half_copies, const View& control,
               const AdamParams& params) {
  update("adam_step", parameters, gradients, first_moments, second_moments, half_copies, control,
         AdamStep{params});
}

__global__ void prepare_step_kernel(const float* rates, int64_t rate_count, const int64_t* applied,
                                    const float* scale, PrepareParams params, float* control) {
  prepare_control(rates, rate_count, *applied, scale, params, control);
}

void prepare_step(const View& rates, const View& applied, const View& scale,
                  const PrepareParams& params, const View& control) {
  CHECK(rates.numel() > 0, "prepare_step: no learning rates");
  launch("prepare_step", &prepare_step_kernel, 1, 1, 0, rates.as<float>(), rates.numel(),
         applied.as<int64_t>(), scale.defined ? scale.as<float>() : nullptr, params,
         control.as<float>());
}

__global__ void finish_step_kernel(const float* control, ScalerParams params, int64_t* applied,
                                   float* scale, int64_t* growth_tracker) {
  const bool found_inf = control[kFoundInf] != 0.0f;
  if (!found_inf) ++*applied;
  if (scale != nullptr) update_scale(params, found_inf, scale, growth_tracker);
}

void finish_step(const View& control, const ScalerParams& params, const View& applied,
                 const View& scale, const View& growth_tracker) {
  launch("finish_step", &finish_step_kernel, 1, 1, 0, control.as<float>(), params,
         applied.as<int64_t>(), scale.defined ? scale.as<float>() : nullptr,
         scale.defined ? growth_tracker.as<int64_t>() : nullptr);
}

}  // namespace

void register_cuda_optimizer_kernels() {
  slots::sgd_step.set(DeviceType::cuda, &sgd_step);
  slots::adam_step.set(DeviceType::cuda, &adam_step);
  slots::prepare_step.set(DeviceType::cuda, &prepare_step);
  slots::finish_step.set(DeviceType::cuda, &finish_step);
  register_cuda_gradient_kernels();
}

}  // namespace headroom
