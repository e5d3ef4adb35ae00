// Running one row of the op table: its inputs as arrays and as tensors of any layout, forward and
// backward on a device, and the bytes that this takes.
#pragma once

#include "tests/ops/op_row.h"

namespace headroom::testing_ops {

// Every run draws from this seed.
constexpr uint64_t kSeed = 7;

// The inputs as tensors of the dtype hold them.
Arrays input_arrays(const Row& row, DType dtype);

// The dtype that an input has when `dtype` is tested.
DType dtype_of_input(const Input& input, DType dtype);

// Whether a gradient can be asked for: by kind, by the row's word and by the input's.
bool is_differentiable(const Row& row, const Input& input);
std::vector<bool> differentiable_inputs(const Row& row);
bool has_images(const Row& row);  // any input of rank 4 whose format is the run's

struct RunOptions {
  DType dtype = DType::f32;
  Device device = Device::cpu();
  MemoryFormat format = MemoryFormat::contiguous;
  std::vector<bool> wanted = {};  // inputs that require a gradient; empty: none
  bool backward = true;           // false: forward alone
};

struct Outcome {
  Call call;
  std::vector<Tensor> outputs;
  std::vector<Tensor> grads;  // one per input; undefined where none came
  Array seed;                 // the gradient of the first output, as its dtype holds it
};

// Forward, and backward if any gradient is wanted, from `arrays` (see input_arrays). `seed`
// replaces the drawn gradient of the output.
Outcome run(const Row& row, const Arrays& arrays, const RunOptions& options,
            const Array* seed = nullptr);

// Bytes charged above what the inputs take, and what the allocator holds from its device.
struct Footprint {
  int64_t after_forward = 0;   // outputs and what is kept for backward
  int64_t after_backward = 0;  // outputs and gradients
  int64_t peak = 0;
  int64_t peak_reserved = 0;
  bool operator==(const Footprint&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Footprint& footprint);

// The outputs' shapes, dtypes and formats, as describe() tells them, and the bytes of the run. The
// allocator of the device must be empty.
struct Account {
  std::vector<std::string> outputs;
  std::vector<std::string> grads;
  Footprint footprint;
};
Account account_for(const Row& row, const Arrays& arrays, const RunOptions& options);

// The numbers of a tensor in logical order. On the CPU they are read through the strides, without
// the library's copy kernels.
Values values_of(const Tensor& tensor);

}  // namespace headroom::testing_ops
