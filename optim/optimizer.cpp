// What all optimizers share: entries, cohorts, the order of kernels in a step.
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/autograd/node.h"
#include "core/base/count.h"
#include "core/ops/contract.h"
#include "core/ops/elementwise.h"

namespace headroom {
namespace {

DType state_dtype(const Tensor& parameter) {
  return parameter.dtype() == DType::f64 ? DType::f64 : DType::f32;
}

Tensor control_field(const Tensor& control, ControlField field) {
  return detail::alias(control, field, {}, {}, MemoryFormat::contiguous);
}

// The fields that are the same for every cohort: those before the bias corrections.
Tensor common_fields(const Tensor& control) {
  return detail::alias(control, 0, {kBias1}, {1}, MemoryFormat::contiguous);
}

std::vector<View> views_of(const std::vector<Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

}  // namespace

std::vector<ParameterGroup> decay_groups(const std::vector<Tensor>& parameters,
                                         double weight_decay) {
  std::vector<ParameterGroup> groups(2);
  groups[0].weight_decay = weight_decay;
  for (const Tensor& parameter : parameters) {
    groups[parameter.rank() >= 2 ? 0 : 1].parameters.push_back(parameter);
  }
  std::erase_if(groups, [](const ParameterGroup& group) { return group.parameters.empty(); });
  return groups;
}

Optimizer::Optimizer(std::vector<ParameterGroup> groups) : groups_(std::move(groups)) {
  std::set<const TensorImpl*> seen;
  for (size_t g = 0; g < groups_.size(); ++g) {
    CHECK_ARG(groups_[g].weight_decay >= 0, "optimizer: weight decay must not be negative, got ",
              groups_[g].weight_decay);
    for (const Tensor& parameter : groups_[g].parameters) {
      CHECK_ARG(parameter.defined() && parameter.is_leaf() && is_floating(parameter.dtype()),
                "optimizer: takes floating leaves, got ", describe(parameter.view()));
      if (entries_.empty()) device_ = parameter.device();
      CHECK_ARG(parameter.device() == device_, "optimizer: parameters lie on ", device_, " and ",
                parameter.device());
      if (!seen.insert(parameter.impl()).second) continue;
      Entry entry;
      entry.parameter = parameter;
      entry.group = static_cast<int>(g);
      entry.index = static_cast<int>(entries_.size());
      entries_.push_back(std::move(entry));
    }
  }
  CHECK_ARG(!entries_.empty(), "optimizer: got no parameters");
  cohorts_.push_back(make_cohort());
}

Optimizer::Cohort Optimizer::make_cohort() const {
  const TagScope tag(Tag::optimizer_state);
  return {zeros({kControlFields}, {DType::f32, device_}), zeros({}, {DType::i64, device_})};
}

void Optimizer::set_lr(double lr) {
  CHECK_ARG(std::isfinite(lr) && lr >= 0,
            "optimizer: learning rate must be finite and at least 0, ", "got ", lr);
  set_schedule({static_cast<float>(lr)});
}

void Optimizer::set_schedule(const std::vector<float>& rates) {
  CHECK_ARG(!rates.empty(), "optimizer: the table of rates is empty");
  const TagScope tag(Tag::optimizer_state);
  rates_ = from_vector(rates, {static_cast<int64_t>(rates.size())}, {DType::f32, device_});
}

void Optimizer::keep_half_copies(DType dtype) {
  CHECK_ARG(is_half(dtype), "keep_half_copies: takes f16 or bf16 but got ", dtype);
  const TagScope tag(Tag::cast_copy);
  for (Entry& entry : entries_) {
    const Tensor& parameter = entry.parameter;
    if (parameter.rank() < 2 || parameter.dtype() != DType::f32 || !parameter.requires_grad()) {
      continue;
    }
    const PathScope path(parameter.storage()->path());
    const Tensor copy = empty_like(entry.parameter, dtype);
    slots::copy(entry.parameter, copy);
    entry.parameter.set_half_copy(copy);
    entry.parameter.mark_half_copy_current();
  }
}

// Whether the step that is being made counts for a cohort.
bool Optimizer::steps_now(int cohort) const {
  return cohort == 0 || std::any_of(entries_.begin(), entries_.end(), [cohort](const Entry& entry) {
           return entry.cohort == cohort && entry.steps;
         });
}

std::vector<Tensor> Optimizer::make_state(const Entry& entry) const {
  const TagScope tag(Tag::optimizer_state);
  const PathScope path(entry.parameter.storage()->path());
  TensorOptions options = entry.parameter.options();
  options.dtype = state_dtype(entry.parameter);
  std::vector<Tensor> state;
  for (size_t i = 0; i < state_names().size(); ++i) {
    state.push_back(zeros(entry.parameter.shape(), options));
  }
  return state;
}

void Optimizer::reserve_state() {
  std::vector<std::pair<Entry*, std::vector<Tensor>>> made;
  for (Entry& entry : entries_) {
    if (entry.state.empty() && entry.parameter.requires_grad()) {
      made.emplace_back(&entry, make_state(entry));
    }
  }
  for (auto& [entry, state] : made) entry->state = std::move(state);
}

// New cohorts, appended to `cohorts`, for the members that stay behind theirs in this step.
std::vector<std::pair<Optimizer::Entry*, int>> Optimizer::split_cohorts(
    std::vector<Cohort>& cohorts) {
  std::vector<std::pair<Entry*, int>> moved;
  for (int c = 0; c < static_cast<int>(cohorts_.size()); ++c) {
    if (!steps_now(c)) continue;
    int behind = -1;
    for (Entry& entry : entries_) {
      if (entry.cohort != c || entry.steps) continue;
      if (behind < 0) {
        behind = static_cast<int>(cohorts.size());
        cohorts.push_back(make_cohort());
        slots::copy(cohorts_[static_cast<size_t>(c)].applied, cohorts.back().applied);
      }
      moved.emplace_back(&entry, behind);
    }
  }
  return moved;
}

// Gives state to the parameters whose first gradient this is and a cohort to these and to those
// that stay behind theirs.
void Optimizer::join_cohorts() {
  // State and cohorts take effect together at the end: running out of memory midway changes
  // nothing.
  std::vector<Cohort> cohorts = cohorts_;
  const std::vector<std::pair<Entry*, int>> moved = split_cohorts(cohorts);
  std::vector<std::pair<Entry*, std::vector<Tensor>>> made;
  for (Entry& entry : entries_) {
    if (entry.cohort >= 0 || !entry.steps) continue;
    made.emplace_back(&entry, entry.state.empty() ? make_state(entry) : entry.state);
  }
  const bool first = std::all_of(entries_.begin(), entries_.end(),
                                 [](const Entry& entry) { return entry.cohort < 0; });
  if (!made.empty() && !first) cohorts.push_back(make_cohort());
  const int joined = first ? 0 : static_cast<int>(cohorts.size()) - 1;
  for (auto& [entry, state] : made) {
    entry->state = std::move(state);
    entry->cohort = joined;
  }
  for (const auto& [entry, cohort] : moved) entry->cohort = cohort;
  cohorts_ = std::move(cohorts);
}

// Of a cohort behind the first, which was prepared before.
void Optimizer::prepare_cohort(int cohort) {
  const Cohort& its = cohorts_[static_cast<size_t>(cohort)];
  slots::prepare_step(rates_, its.applied, {}, prepare_params(), its.control);
  // Only the bias corrections follow the cohort's own count.
  slots::copy(common_fields(cohorts_[0].control), common_fields(its.control));
}

void Optimizer::add_to(Batch& batch, const Entry& entry, const Tensor& gradient) const {
  batch.parameters.push_back(entry.parameter);
  batch.gradients.push_back(gradient);
  const Tensor half = entry.parameter.half_copy();
  batch.half_copies.push_back(half.defined() ? half.view() : View{});
  batch.state.resize(entry.state.size());
  for (size_t s = 0; s < entry.state.size(); ++s) batch.state[s].push_back(entry.state[s]);
}

void Optimizer::mark_written(Entry& entry) {
  const bool current = entry.parameter.half_copy_is_current();
  entry.parameter.storage()->bump_version();
  const Tensor half = entry.parameter.half_copy();
  if (!half.defined()) return;
  half.storage()->bump_version();
  // A copy that was stale before a skipped step is still stale, which only costs one more cast.
  if (current) entry.parameter.mark_half_copy_current();
}

std::vector<Tensor> Optimizer::gradients() const {
  std::vector<Tensor> out;
  for (const Entry& entry : entries_) {
    if (entry.parameter.grad().defined()) {
      out.push_back(detail::dense_in(entry.parameter.grad(), entry.parameter.format()));
    }
  }
  return out;
}

void Optimizer::step(const StepOptions& options) {
  const NoGrad no_grad;
  const PhaseScope phase(Phase::optimizer);
  const OpScope op("optimizer_step");
  CHECK_ARG(rates_.defined(), "optimizer: no learning rate was set");
  CHECK_ARG(options.clip_norm >= 0, "optimizer: clip norm must not be negative, got ",
            options.clip_norm);
  const std::vector<Tensor> all = gradients();
  if (all.empty()) {
    unscaled_by_ = nullptr;
    return;
  }
  CHECK_ARG(!unscaled_by_ || unscaled_by_ == options.scaler,
            "optimizer: gradients were unscaled with another loss scaler than step() was given");
  const std::vector<View> all_views = views_of(all);
  const bool divides = options.scaler && !unscaled_by_;
  if (options.scaler && !options.update_scale) options.scaler->prepare_shared_update();
  for (Entry& entry : entries_) entry.steps = entry.parameter.grad().defined();
  join_cohorts();  // the last that can run out of memory: a failed step leaves nothing behind
  const Tensor& control = cohorts_[0].control;
  slots::prepare_step(rates_, cohorts_[0].applied,
                      divides ? options.scaler->scale_tensor().view() : View{}, prepare_params(),
                      control);
  if (options.scaler) slots::check_finite(all_views, control);
  if (options.scaler && !options.update_scale) {
    options.scaler->add_found_inf(control_field(control, kFoundInf));
  }
  if (options.clip_norm > 0) slots::clip_norm(all_views, options.clip_norm, control);
  for (size_t c = 1; c < cohorts_.size(); ++c) {
    if (!steps_now(static_cast<int>(c))) continue;
    prepare_cohort(static_cast<int>(c));
  }
  for (size_t c = 0; c < cohorts_.size(); ++c) {
    for (size_t g = 0; g < groups_.size(); ++g) {
      Batch batch;
      size_t next = 0;
      for (const Entry& entry : entries_) {
        if (!entry.steps) continue;
        const Tensor& gradient = all[next++];
        if (entry.cohort != static_cast<int>(c) || entry.group != static_cast<int>(g)) continue;
        add_to(batch, entry, gradient);
      }
      if (!batch.parameters.empty()) update(batch, groups_[g], cohorts_[c].control);
    }
  }
  for (size_t c = 0; c < cohorts_.size(); ++c) {
    if (!steps_now(static_cast<int>(c))) continue;
    // The scaler decides once per step, with the first cohort.
    const bool scaler = c == 0 && options.scaler && options.update_scale;
    slots::finish_step(cohorts_[c].control, scaler ? options.scaler->params() : ScalerParams{},
                       cohorts_[c].applied, scaler ? options.scaler->scale_tensor().view() : View{},
                       scaler ? options.scaler->growth_tracker_tensor().view() : View{});
  }
  for (Entry& entry : entries_) {
    if (entry.steps) mark_written(entry);
  }
  unscaled_by_ = nullptr;
}

void Optimizer::zero_grad() {
  const PhaseScope phase(Phase::optimizer);
  for (Entry& entry : entries_) entry.parameter.set_grad({});
  unscaled_by_ = nullptr;
}

void Optimizer::unscale(const GradScaler& scaler) {
  CHECK_ARG(!unscaled_by_, "optimizer: unscale was already called since the last step");
  const NoGrad no_grad;
  const Tensor inverse = div(ones({}, {DType::f32, device_}), scaler.scale_tensor());
  for (Entry& entry : entries_) {
    Tensor gradient = entry.parameter.grad();
    if (!gradient.defined()) continue;
    if (is_half(gradient.dtype())) {
      const TagScope tag(Tag::gradient);
      entry.parameter.set_grad(mul(gradient, inverse));
    } else {
      mul_(gradient, inverse);
    }
  }
  unscaled_by_ = &scaler;
}

int64_t Optimizer::applied_steps() const { return cohorts_[0].applied.to_vector<int64_t>()[0]; }
double Optimizer::last_lr() const { return control_field(cohorts_[0].control, kLr).item(); }
double Optimizer::last_grad_norm() const {
  return control_field(cohorts_[0].control, kGradNorm).item();
}
bool Optimizer::last_step_skipped() const {
  return control_field(cohorts_[0].control, kFoundInf).item() != 0;
}

std::vector<OptimizerState> Optimizer::state_dict() const {
  std::vector<OptimizerState> out;
  const std::vector<std::string> names = state_names();
  for (const Entry& entry : entries_) {
    if (entry.cohort < 0) continue;  // reserved at most
    for (size_t s = 0; s < entry.state.size(); ++s) {
      out.push_back({std::to_string(entry.index) + "." + names[s], entry.state[s]});
    }
    if (entry.cohort >= 0) {
      out.push_back({std::to_string(entry.index) + ".cohort",
                     from_vector(std::vector<int64_t>{entry.cohort}, {}, {DType::i64})});
    }
  }
  for (size_t c = 0; c < cohorts_.size(); ++c) {
    out.push_back({"applied_steps." + std::to_string(c), cohorts_[c].applied});
  }
  return out;
}

void Optimizer::load_state_dict(const std::vector<OptimizerState>& state) {
  std::map<std::string, Tensor> given;
  for (const OptimizerState& entry : state) given[entry.name] = entry.tensor;
  std::set<std::string> used;
  auto find = [&](const std::string& name, const Shape& shape) {
    const auto found = given.find(name);
    CHECK_ARG(found != given.end(), "optimizer state: '", name, "' is missing");
    CHECK_ARG(found->second.shape() == shape, "optimizer state: '", name, "' has shape ",
              found->second.shape(), " but needs ", shape);
    used.insert(name);
    return found->second;
  };
  // Kernels read counts as they are stored, and as places in tables.
  auto find_count = [&](const std::string& name, int64_t most) {
    const Tensor count = find(name, {});
    CHECK_ARG(count.dtype() == DType::i64, "optimizer state: '", name, "' is ", count.dtype(),
              " but needs i64");
    const int64_t value = count.to_vector<int64_t>()[0];
    CHECK_ARG(value >= 0 && value <= most, "optimizer state: '", name, "' is ", value,
              ", needed is 0 .. ", most);
    return count;
  };
  const std::vector<std::string> names = state_names();
  const TagScope tag(Tag::optimizer_state);
  std::vector<Entry> entries = entries_;
  std::vector<Cohort> cohorts;
  for (int c = 0; given.count("applied_steps." + std::to_string(c)); ++c) {
    const Tensor applied = find_count("applied_steps." + std::to_string(c), kMaxRestoredCount);
    Cohort cohort;
    cohort.control = zeros({kControlFields}, {DType::f32, device_});
    cohort.applied = clone(to_device(applied, device_));
    cohorts.push_back(std::move(cohort));
  }
  CHECK_ARG(!cohorts.empty(), "optimizer state: 'applied_steps.0' is missing");
  for (Entry& entry : entries) {
    const std::string prefix = std::to_string(entry.index) + ".";
    entry.state.clear();
    entry.cohort = -1;
    if (!given.count(prefix + "cohort")) continue;
    const auto last = static_cast<int64_t>(cohorts.size()) - 1;
    entry.cohort = static_cast<int>(find_count(prefix + "cohort", last).item());
    for (const std::string& name : names) {
      const Tensor value = find(prefix + name, entry.parameter.shape());
      TensorOptions options = entry.parameter.options();
      options.dtype = state_dtype(entry.parameter);
      Tensor own = empty(entry.parameter.shape(), options);
      copy_(own, to_device(value, device_));
      entry.state.push_back(own);
    }
  }
  for (const auto& [name, tensor] : given) {
    CHECK_ARG(used.count(name), "optimizer state: unknown entry '", name, "'");
  }
  entries_ = std::move(entries);
  cohorts_ = std::move(cohorts);
}

double clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm) {
  CHECK_ARG(max_norm > 0, "clip_grad_norm: the norm must be above 0, got ", max_norm);
  const NoGrad no_grad;
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (gradients.empty()) return 0;
  const Device device = gradients[0].device();
  const Tensor control = zeros({kControlFields}, {DType::f32, device});
  for (const ControlField field : {kInvScale, kClip}) slots::fill(1, control_field(control, field));
  slots::clip_norm(views_of(gradients), max_norm, control);
  const Tensor factor = control_field(control, kClip);
  for (Tensor& gradient : gradients) mul_(gradient, factor);
  return control_field(control, kGradNorm).item();
}

}  // namespace headroom
