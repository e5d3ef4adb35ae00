// The module tree.
#include "nn/module.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/autograd/node.h"
#include "core/base/count.h"
#include "core/ops/elementwise.h"

namespace headroom {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  if (prefix.empty()) return name;
  return name.empty() ? prefix : prefix + "." + name;
}

}  // namespace

template <class Visit>
void Module::visit(const std::string& prefix, const Visit& fn) const {
  fn(prefix, *this);
  for (const auto& [name, child] : children_) child->visit(join(prefix, name), fn);
}

void Module::name_memory() {
  visit(name_, [](const std::string& prefix, const Module& module) {
    const PathId path = intern_path(prefix);
    for (const auto* list : {&module.parameters_, &module.buffers_}) {
      for (const NamedTensor& entry : *list) entry.tensor.storage()->set_path(path);
    }
  });
  memory_named_ = true;
}

Tensor Module::operator()(const Tensor& x) {
  if (!memory_named_ && memory_context().path == 0) name_memory();
  if (name_.empty()) return forward(x);
  const PathScope path{std::string_view(name_)};
  return forward(x);
}

Tensor Module::register_parameter(const std::string& name, Tensor value) {
  value.storage()->set_tag(Tag::parameter);
  value.set_requires_grad(true);
  parameters_.push_back({name, value});
  return value;
}

Tensor Module::register_buffer(const std::string& name, Tensor value) {
  value.storage()->set_tag(Tag::buffer);
  buffers_.push_back({name, value});
  return value;
}

void Module::register_counter(const std::string& name, int64_t* counter) {
  counters_.emplace_back(name, counter);
}

void Module::add_child(const std::string& name, std::shared_ptr<Module> module) {
  if (module->name_.empty()) module->name_ = name;
  children_.emplace_back(name, std::move(module));
}

std::vector<NamedTensor> Module::named_parameters() const {
  std::vector<NamedTensor> out;
  std::set<const TensorImpl*> seen;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (const NamedTensor& entry : module.parameters_) {
      if (seen.insert(entry.tensor.impl()).second) {
        out.push_back({join(prefix, entry.name), entry.tensor});
      }
    }
  });
  return out;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> out;
  for (NamedTensor& entry : named_parameters()) out.push_back(std::move(entry.tensor));
  return out;
}

std::vector<NamedTensor> Module::named_buffers() const {
  std::vector<NamedTensor> out;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (const NamedTensor& entry : module.buffers_) {
      out.push_back({join(prefix, entry.name), entry.tensor});
    }
  });
  return out;
}

int64_t Module::parameter_count() const {
  int64_t count = 0;
  for (const NamedTensor& entry : named_parameters()) count += entry.tensor.numel();
  return count;
}

std::vector<int64_t*> Module::counters() const {
  std::vector<int64_t*> out;
  visit("", [&](const std::string&, const Module& module) {
    for (const auto& [name, counter] : module.counters_) out.push_back(counter);
  });
  return out;
}

void Module::train(bool on) {
  training_ = on;
  for (const auto& [name, child] : children_) child->train(on);
}

std::vector<NamedTensor> Module::state_dict() const {
  std::vector<NamedTensor> out;
  visit("", [&](const std::string& prefix, const Module& module) {
    for (const NamedTensor& entry : module.parameters_) {
      out.push_back({join(prefix, entry.name), entry.tensor.detach()});
    }
    for (const NamedTensor& entry : module.buffers_) {
      out.push_back({join(prefix, entry.name), entry.tensor});
    }
    for (const auto& [name, counter] : module.counters_) {
      out.push_back(
          {join(prefix, name), from_vector(std::vector<int64_t>{*counter}, {}, {DType::i64})});
    }
  });
  return out;
}

void Module::load_state_dict(const std::vector<NamedTensor>& state) {
  std::map<std::string, Tensor> given;
  for (const NamedTensor& entry : state) given[entry.name] = entry.tensor;
  std::vector<std::pair<Tensor, Tensor>> copies;
  std::vector<std::pair<int64_t*, int64_t>> counts;
  std::set<std::string> used;
  auto find = [&](const std::string& name, const Shape& shape) -> Tensor {
    const auto entry = given.find(name);
    CHECK_ARG(entry != given.end(), "load_state_dict: '", name, "' is missing");
    CHECK_ARG(entry->second.shape() == shape, "load_state_dict: '", name, "' has shape ",
              entry->second.shape(), " but the model needs ", shape);
    used.insert(name);
    return entry->second;
  };
  visit("", [&](const std::string& prefix, const Module& module) {
    for (const auto* list : {&module.parameters_, &module.buffers_}) {
      for (const NamedTensor& entry : *list) {
        copies.emplace_back(entry.tensor, find(join(prefix, entry.name), entry.tensor.shape()));
      }
    }
    for (const auto& [name, counter] : module.counters_) {
      const std::string path = join(prefix, name);
      const Tensor given_count = find(path, {});
      CHECK_ARG(!is_floating(given_count.dtype()), "load_state_dict: '", path, "' is ",
                given_count.dtype(), " but a count is an integer");
      const int64_t count = given_count.to_vector<int64_t>()[0];
      CHECK_ARG(count >= 0 && count <= kMaxRestoredCount, "load_state_dict: '", path, "' is ",
                count, ", needed is 0 .. ", kMaxRestoredCount);
      counts.emplace_back(counter, count);
    }
  });
  for (const auto& [name, tensor] : given) {
    CHECK_ARG(used.count(name), "load_state_dict: the model has no '", name, "'");
  }
  const NoGrad no_grad;
  for (auto& [to, from] : copies) copy_(to, to_device(from, to.device()));
  for (auto& [to, value] : counts) *to = value;
}

void Module::zero_grad() {
  for (Tensor& parameter : std::vector<Tensor>(parameters())) parameter.set_grad({});
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> out;
  visit("", [&](const std::string& prefix, const Module& module) {
    out.emplace_back(prefix, const_cast<Module*>(&module));
  });
  return out;
}

EvalScope::EvalScope(Module& module) {
  for (const auto& [path, each] : module.named_modules())
    modes_.emplace_back(each, each->training());
  module.eval();
}

EvalScope::~EvalScope() {
  // Parents first: train() reaches down, so each module's own mode is set after its parents'.
  for (const auto& [module, mode] : modes_) module->train(mode);
}

}  // namespace headroom
