// Layers. Each takes the TensorOptions of its parameters: device, dtype, and the memory format of
// rank-4 weights. Parameters start as PyTorch's do. Constructors throw InvalidArgument for what a
// comment names, and OutOfMemory; calls throw what the op that they run throws (core/ops).
#pragma once

#include <vector>

#include "core/ops/ops.h"
#include "nn/module.h"

namespace headroom {

// y = x * weight^T + bias; x [n,in], weight [out,in], bias [out]. Throws InvalidArgument for sizes
// below 1.
class Linear : public Module {
 public:
  struct Options {
    int64_t in = 0, out = 0;
    bool bias = true;
  };
  explicit Linear(const Options& options, const TensorOptions& tensor = {});

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Tensor weight_, bias_;
};

// conv2d of x [n, in, h, w] with its weight [out, in/groups, kernel] and bias [out]. Throws
// InvalidArgument for sizes below 1 or groups that do not divide the channels.
class Conv2d : public Module {
 public:
  struct Options {
    int64_t in = 0, out = 0;
    std::array<int64_t, 2> kernel = {1, 1};
    Conv2dOptions conv = {};
    bool bias = true;
  };
  explicit Conv2d(const Options& options, const TensorOptions& tensor = {});

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Conv2dOptions conv_;
  Tensor weight_, bias_;
};

// Batch normalisation of x [n,c,h,w] over n, h, w (or of [n,c] over n); parameters weight (1) and
// bias (0), buffers running_mean (0) and running_var (1), counter num_batches_tracked. Parameters
// are f32 (or f64) whatever the model's dtype. Throws InvalidArgument for channels below 1.
class BatchNorm2d : public Module {
 public:
  struct Options {
    int64_t channels = 0;
    double eps = 1e-5;
    double momentum = 0.1;
    bool relu = false;  // fused
  };
  explicit BatchNorm2d(const Options& options, const TensorOptions& tensor = {});

  // relu?(norm(x) + residual) in one op; residual of x's shape and dtype.
  Tensor with_residual(const Tensor& x, const Tensor& residual);
  // Training passes so far, a checkpoint's second forward left out.
  int64_t batches_tracked() const { return batches_tracked_; }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  Tensor normalize(const Tensor& x, const Tensor& residual);

  Options options_;
  BatchNormState state_;
  int64_t batches_tracked_ = 0;
};

enum class ActivationKind : uint8_t { relu, leaky_relu, sigmoid, tanh, silu };

// An activation, of any shape; in place where asked, over the input that it is given. slope is
// leaky_relu's. Throws InvalidArgument for silu in place: its derivative needs the input.
class Activation : public Module {
 public:
  explicit Activation(ActivationKind kind, bool in_place = false, double slope = 0.01);

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  ActivationKind kind_;
  bool in_place_;
  double slope_;
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(const Pool2dOptions& options) : options_(options) {}

 protected:
  Tensor forward(const Tensor& x) override { return max_pool2d(x, options_); }

 private:
  Pool2dOptions options_;
};

class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(const Pool2dOptions& options) : options_(options) {}

 protected:
  Tensor forward(const Tensor& x) override { return avg_pool2d(x, options_); }

 private:
  Pool2dOptions options_;
};

class GlobalAvgPool2d : public Module {
 protected:
  Tensor forward(const Tensor& x) override { return global_avg_pool2d(x); }
};

// Draws in training mode only. Throws InvalidArgument for p outside [0, 1].
class Dropout : public Module {
 public:
  explicit Dropout(double p);

 protected:
  Tensor forward(const Tensor& x) override { return dropout(x, {p_, training()}); }

 private:
  double p_;
};

// [n, ...] to [n, product of the rest].
class Flatten : public Module {
 protected:
  Tensor forward(const Tensor& x) override { return flatten(x, 1); }
};

// Modules one after another, named "0", "1", ... unless a name is given (as where a fused layer
// stands for several and indices leave gaps).
class Sequential : public Module {
 public:
  Sequential() = default;
  explicit Sequential(std::vector<std::shared_ptr<Module>> modules);
  // Throws InvalidArgument for a null module.
  void append(std::shared_ptr<Module> module);
  // Under a name of its own.
  void append(const std::string& name, std::shared_ptr<Module> module);
  size_t size() const { return modules_.size(); }
  // Throws std::out_of_range.
  Module& at(size_t index) { return *modules_.at(index); }

 protected:
  Tensor forward(const Tensor& x) override;

 private:
  std::vector<std::shared_ptr<Module>> modules_;
};

}  // namespace headroom
