// What the first step of a run computed: every gradient and batch norm's running statistics, as
// values on the host, to be compared with another run's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "train/trainer.h"

namespace headroom {

struct NamedValues {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;  // in logical order, whatever the layout
};

struct FirstStep {
  std::vector<NamedValues> gradients;  // of parameters that have one, divided by the loss scale
  std::vector<NamedValues> buffers;
};

// These copy to the host, and allocate nothing on the device: the step's peak stays what it is.
// They wait. `used` are the gradients that the optimizer had before all were there.
NamedValues used_gradient(const UsedGradientInfo& info);
FirstStep first_step_of(const GradientInfo& info, std::vector<NamedValues> used = {});

// Hash of the bits of all parameters and buffers.
std::string fingerprint_of(const Module& model);

// As a safetensors file. It passes through the CPU's allocator, so a run's peaks must have been
// read before. Throw DataError when the file cannot be written or read.
void write_first_step(const std::string& path, const FirstStep& step);
FirstStep read_first_step(const std::string& path);

bool are_identical(const FirstStep& a, const FirstStep& b);  // to the bit

// The largest over all tensors of max|a - b| / max|b|; 0 where b and a are all zeros. Nothing if
// names or sizes differ, if there are none, or if a value is not finite.
std::optional<double> largest_difference(const std::vector<NamedValues>& a,
                                         const std::vector<NamedValues>& b);

}  // namespace headroom
