// Modules: layers and models as a tree of names, parameters, buffers and modes. A module's path in
// the tree is what memory reports charge its allocations to.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"

namespace headroom {

struct NamedTensor {
  std::string name;  // "blocks.0.convs.1.weight"
  Tensor tensor;
};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Runs the module under its name in the tree. Throws what its ops throw.
  Tensor operator()(const Tensor& x);

  // Trainable tensors by name, each once however often it is registered: a module's own before its
  // children's, in the order of registration.
  std::vector<NamedTensor> named_parameters() const;
  std::vector<Tensor> parameters() const;
  // State that is not trained, by name.
  std::vector<NamedTensor> named_buffers() const;
  int64_t parameter_count() const;  // elements of all parameters
  // The values that layers count with, such as batches seen; they live as long as the modules.
  std::vector<int64_t*> counters() const;

  // The mode of this module and all below it: layers such as dropout and batch norm differ.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }

  // Parameters, buffers and counters (as i64 scalars on the CPU), by name. The tensors share
  // storage with the module.
  std::vector<NamedTensor> state_dict() const;
  // Copies values in, from any device, dtype (of counters: integers) or memory format. Throws
  // InvalidArgument naming what is missing, unknown, misshapen or no count, before it writes.
  void load_state_dict(const std::vector<NamedTensor>& state);

  // Charges parameters and buffers to their modules' paths, as reports of memory show them. The
  // first call of a whole tree does so by itself.
  void name_memory();

  // Clears all gradients: they become undefined.
  void zero_grad();

  // Every module of the tree with its path, this one first under "".
  std::vector<std::pair<std::string, Module*>> named_modules();

 protected:
  virtual Tensor forward(const Tensor& x) = 0;

  // Registration, from constructors. Names may contain dots ("blocks.0"); that they differ is the
  // caller's care. Parameters must be floating leaves (else InvalidArgument); they are made to
  // require a gradient, tagged, and returned. A counter is borrowed and must live as long.
  Tensor register_parameter(const std::string& name, Tensor value);
  Tensor register_buffer(const std::string& name, Tensor value);
  void register_counter(const std::string& name, int64_t* counter);
  template <class M>
  std::shared_ptr<M> register_module(const std::string& name, std::shared_ptr<M> module) {
    add_child(name, module);
    return module;
  }

  // For modules that take more than one tensor: the scope that operator() would open.
  const std::string& name_in_parent() const { return name_; }

 private:
  void add_child(const std::string& name, std::shared_ptr<Module> module);
  template <class Visit>
  void visit(const std::string& prefix, const Visit& fn) const;

  std::string name_;
  bool training_ = true;
  bool memory_named_ = false;
  std::vector<NamedTensor> parameters_;
  std::vector<NamedTensor> buffers_;
  std::vector<std::pair<std::string, int64_t*>> counters_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
};

// Puts a module tree into evaluation mode and gives every module back the mode it had, also when an
// exception passes.
class EvalScope {
 public:
  explicit EvalScope(Module& module);
  ~EvalScope();
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> modes_;
};

}  // namespace headroom
