// Every row of the op table, checked five ways: its value against plain loops in f64, its gradient
// against central differences, CUDA against the CPU, and what the meta devices predict against the
// CPU and against CUDA.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/base/parallel.h"
#include "core/base/settings.h"
#include "core/memory/caching_allocator.h"
#include "tests/kernels/kernel_test.h"
#include "tests/ops/reference_ops.h"
#include "tests/ops/row_compare.h"

namespace headroom::testing_ops {

// How a row prints in a failure.
struct RowRef {
  const Row* row;
};
std::ostream& operator<<(std::ostream& out, const RowRef& ref) { return out << ref.row->name; }

namespace {

using testing_kernels::unit_of;

constexpr MemoryFormat kBothFormats[] = {MemoryFormat::contiguous, MemoryFormat::channels_last};

std::vector<MemoryFormat> formats_of(const Row& row) {
  if (!has_images(row)) return {MemoryFormat::contiguous};
  return {std::begin(kBothFormats), std::end(kBothFormats)};
}

std::vector<RowRef> row_refs() {
  std::vector<RowRef> out;
  for (const Row& row : op_table()) out.push_back({&row});
  return out;
}

std::string describe(const Row& row, const RunOptions& options) {
  std::string out = row.name + " in " + name_of(options.dtype) + " on " + name_of(options.device);
  return has_images(row) ? out + " " + name_of(options.format) : out;
}

void check_values(const Row& row, DType dtype) {
  const Arrays arrays = input_arrays(row, dtype);
  const Arrays expected = row.reference(arrays);
  const Arrays terms = terms_of(row, arrays);
  for (const MemoryFormat format : formats_of(row)) {
    const RunOptions options{dtype, Device::cpu(), format};
    SCOPED_TRACE(describe(row, options));
    const Outcome outcome = run(row, arrays, options);
    ASSERT_EQ(outcome.outputs.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE(detail::concat("output ", i));
      const Tensor& output = outcome.outputs[i];
      ASSERT_EQ(output.shape(), expected[i].shape);
      if (row.keeps_format && output.rank() == 4) {
        ASSERT_EQ(output.format(), outcome.call[0].format());
      }
      const Values allowed = allowed_errors(row, dtype, output.dtype(), expected[i],
                                            terms.empty() ? nullptr : &terms[i]);
      // Where nothing may be off, the reference's number is rounded as it is stored.
      const bool exact = is_exact(row.tolerance);
      const Array& numbers = exact ? reference::stored(expected[i], output.dtype()) : expected[i];
      expect_close(values_of(output), numbers.values,
                   [&](size_t at) { return exact ? 0 : allowed[at]; });
    }
    expect_inputs_kept(row, arrays, outcome);
  }
}

// Elements of an input whose derivative is taken: all of a small one, else evenly spread.
std::vector<size_t> sampled(size_t count, int samples) {
  std::vector<size_t> out;
  const size_t wanted = static_cast<size_t>(samples);
  for (size_t i = 0; i < std::min(count, wanted); ++i) {
    out.push_back(count <= wanted ? i : i * count / wanted);
  }
  return out;
}

// d(sum of seed * y)/dx by central differences of the reference. Their error is about
// step^2 * f''' / 6 and unit(f64) * |y| / step: near 1e-10 both.
constexpr double kStep = 1e-5;
constexpr double kDifferenceError = 1e-7;

void expect_differences(const Row& row, const Arrays& arrays, const Array& seed, size_t input,
                        const Values& gradient) {
  ASSERT_EQ(gradient.size(), arrays[input].values.size());
  Arrays moved = arrays;
  for (const size_t at : sampled(gradient.size(), row.difference_samples)) {
    double& x = moved[input].values[at];
    const double kept = x;
    x = kept + kStep;
    const Values above = row.reference(moved)[0].values;
    x = kept - kStep;
    const Values below = row.reference(moved)[0].values;
    x = kept;
    double difference = 0;
    for (size_t i = 0; i < above.size(); ++i) {
      difference += seed.values[i] * (above[i] - below[i]);
    }
    difference /= 2 * kStep;
    ASSERT_NEAR(gradient[at], difference, kDifferenceError * (1 + std::abs(difference)))
        << "gradient of element " << at;
  }
}

// Gradients of a run in f64 on the numbers of another one, as the exact ones.
std::vector<Values> exact_gradients(const Row& row, const Arrays& arrays, const Array& seed) {
  std::vector<Values> out;
  if (row.gradient) {
    for (const Array& gradient : row.gradient(arrays, seed)) out.push_back(gradient.values);
    return out;
  }
  const Outcome exact =
      run(row, arrays, {DType::f64, Device::cpu(), {}, differentiable_inputs(row)}, &seed);
  for (const Tensor& gradient : exact.grads) {
    out.push_back(gradient.defined() ? values_of(gradient) : Values());
  }
  return out;
}

// What sums of absolute terms the gradients are made of.
std::vector<Values> gradient_scales(const Row& row, const Arrays& arrays, const Array& seed,
                                    const std::vector<Values>& exact) {
  if (row.tolerance.scale == Scale::terms) {
    return exact_gradients(row, absolute(arrays), absolute(seed));
  }
  std::vector<Values> out;
  for (const Values& values : exact) out.emplace_back(values.size(), largest_of(values));
  return out;
}

void check_half_gradients(const Row& row, const RunOptions& options) {
  const Arrays arrays = input_arrays(row, options.dtype);
  const Outcome outcome = run(row, arrays, options);
  expect_inputs_kept(row, arrays, outcome);
  const std::vector<Values> exact = exact_gradients(row, arrays, outcome.seed);
  const std::vector<Values> scales = gradient_scales(row, arrays, outcome.seed, exact);
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    if (!options.wanted[i]) continue;
    SCOPED_TRACE(detail::concat("input ", i));
    ASSERT_TRUE(outcome.grads[i].defined());
    ASSERT_EQ(outcome.grads[i].dtype(), DType::f32);
    const double unit = row.tolerance.gradient * unit_of(options.dtype);
    expect_close(values_of(outcome.grads[i]), exact[i], [&](size_t at) {
      return unit * (std::abs(exact[i][at]) + scales[i][at]) + smallest_step(options.dtype);
    });
  }
}

void check_f64_gradients(const Row& row, const RunOptions& options) {
  const Arrays arrays = input_arrays(row, DType::f64);
  const Outcome outcome = run(row, arrays, options);
  expect_inputs_kept(row, arrays, outcome);
  const size_t wanted_count =
      static_cast<size_t>(std::count(options.wanted.begin(), options.wanted.end(), true));
  Arrays given;
  if (row.gradient) given = row.gradient(arrays, outcome.seed);
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    SCOPED_TRACE(detail::concat("input ", i));
    if (!options.wanted[i]) {
      EXPECT_FALSE(outcome.grads[i].defined()) << "a gradient that nobody asked for";
      continue;
    }
    ASSERT_TRUE(outcome.grads[i].defined());
    ASSERT_EQ(outcome.grads[i].shape(), row.inputs[i].shape);
    const Values gradient = values_of(outcome.grads[i]);
    if (row.gradient) {
      expect_close(gradient, given[i].values, [](size_t) { return kDifferenceError; });
    } else {
      expect_differences(row, arrays, outcome.seed, i, gradient);
    }
    if (wanted_count == 1) continue;
    // Alone, without the others: what an op saves depends on what is wanted.
    RunOptions alone = options;
    alone.wanted.assign(row.inputs.size(), false);
    alone.wanted[i] = true;
    const Outcome single = run(row, arrays, alone);
    for (size_t j = 0; j < row.inputs.size(); ++j) {
      ASSERT_EQ(single.grads[j].defined(), j == i) << "gradient of input " << j;
    }
    const double error = 16 * unit_of(DType::f64) * largest_of(gradient);
    expect_close(values_of(single.grads[i]), gradient, [&](size_t) { return error; });
  }
}

// TF32 off: products of rounded factors are outside every tolerance here.
class SettingsScope {
 public:
  explicit SettingsScope(bool cudnn) : previous_(settings()) {
    settings().tf32 = Tf32::off;
    settings().cudnn = cudnn;
  }
  ~SettingsScope() { settings() = previous_; }
  SettingsScope(const SettingsScope&) = delete;
  SettingsScope& operator=(const SettingsScope&) = delete;

 private:
  Settings previous_;
};

std::vector<bool> cudnn_choices(const Row& row) {
  return row.convolution ? std::vector<bool>{true, false} : std::vector<bool>{true};
}

// Both lie within the tolerance of the true value, so they may be twice that apart.
void check_cuda(const Row& row, RunOptions options) {
  const Arrays arrays = input_arrays(row, options.dtype);
  const Outcome cpu = run(row, arrays, options);
  options.device = Device::cuda();
  const Outcome cuda = run(row, arrays, options);
  expect_inputs_kept(row, arrays, cuda);
  ASSERT_EQ(cuda.outputs.size(), cpu.outputs.size());
  const Arrays terms = terms_of(row, arrays);
  for (size_t i = 0; i < cpu.outputs.size(); ++i) {
    SCOPED_TRACE(detail::concat("output ", i));
    const Tensor& output = cpu.outputs[i];
    ASSERT_EQ(cuda.outputs[i].describe(), output.describe());
    const Array expected{output.shape(), values_of(output)};
    const Values allowed = allowed_errors(row, options.dtype, output.dtype(), expected,
                                          terms.empty() ? nullptr : &terms[i]);
    const bool exact = row.exact_on_cuda || !is_floating(output.dtype());
    const bool rounds_more = row.wide_bias && is_half(options.dtype) && !terms.empty();
    expect_close(values_of(cuda.outputs[i]), expected.values, [&](size_t at) {
      if (exact) return 0.0;
      const double bias = rounds_more ? 2 * unit_of(options.dtype) * terms[i].values[at] : 0;
      return 2 * allowed[at] + bias;
    });
  }
  if (!row.differentiable) return;
  std::vector<Values> grads;
  for (const Tensor& grad : cpu.grads) grads.push_back(grad.defined() ? values_of(grad) : Values());
  const std::vector<Values> scales = gradient_scales(row, arrays, cpu.seed, grads);
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    if (!options.wanted[i]) continue;
    SCOPED_TRACE(detail::concat("gradient of input ", i));
    ASSERT_TRUE(cuda.grads[i].defined());
    ASSERT_EQ(cuda.grads[i].describe(), cpu.grads[i].describe());
    const double unit = row.tolerance.gradient * unit_of(options.dtype);
    expect_close(values_of(cuda.grads[i]), grads[i], [&](size_t at) {
      if (row.exact_gradient_on_cuda) return 0.0;
      return 2 * (unit * (std::abs(grads[i][at]) + scales[i][at]) + smallest_step(options.dtype));
    });
  }
}

void check_meta(const Row& row, RunOptions options, Device real) {
  const Arrays arrays = input_arrays(row, options.dtype);
  options.device = real;
  const Account counted = account_for(row, arrays, options);
  options.device = Device::meta(real.type);
  const Account predicted = account_for(row, arrays, options);
  EXPECT_EQ(predicted.outputs, counted.outputs);
  EXPECT_EQ(predicted.grads, counted.grads);
  EXPECT_EQ(predicted.footprint, counted.footprint);
}

class OpTable : public testing::TestWithParam<RowRef> {
 protected:
  // One thread: the kernels' own tests show that bits do not depend on how many there are, and on a
  // busy machine each of some 10^5 waits for a second one takes a millisecond.
  void SetUp() override { set_num_threads(1); }
  void TearDown() override { set_num_threads(threads_before_); }

  const Row& row() const { return *GetParam().row; }
  // Calls check(options) for every dtype and format of the row, gradients wanted wherever there
  // are any, until one fails.
  template <class Check>
  void for_each_run(const Check& check) const {
    for (const DType dtype : row().dtypes) {
      for (const MemoryFormat format : formats_of(row())) {
        const RunOptions options{dtype, Device::cpu(), format, differentiable_inputs(row())};
        SCOPED_TRACE(describe(row(), options));
        check(options);
        if (HasFailure()) return;
      }
    }
  }

 private:
  int threads_before_ = num_threads();
};

TEST_P(OpTable, GivesTheValueOfTheReference) {
  for (const DType dtype : row().dtypes) {
    check_values(row(), dtype);
    if (HasFailure()) return;
  }
}

TEST_P(OpTable, GivesTheDerivativeOfTheReference) {
  if (!row().differentiable) {
    RunOptions options{row().dtypes[0]};
    options.backward = false;
    for (const Input& input : row().inputs) {
      options.wanted.push_back(input.wants_grad && input.kind == Kind::of_run);
    }
    const Outcome outcome = run(row(), input_arrays(row(), options.dtype), options);
    EXPECT_FALSE(outcome.outputs[0].requires_grad());
    return;
  }
  for_each_run([this](const RunOptions& options) {
    if (options.dtype == DType::f64) {
      check_f64_gradients(row(), options);
    } else {
      check_half_gradients(row(), options);
    }
  });
}

TEST_P(OpTable, GivesTheSameOnCudaAsOnTheCpu) {
  if (!has_runtime(Device::cuda())) GTEST_SKIP() << "no cuda on this machine";
  for (const bool cudnn : cudnn_choices(row())) {
    const SettingsScope scope(cudnn);
    SCOPED_TRACE(cudnn ? "with cuDNN" : "without cuDNN");
    for_each_run([this](const RunOptions& options) {
      if (options.dtype != DType::f64) check_cuda(row(), options);
    });
  }
}

TEST_P(OpTable, TakesTheShapesAndBytesThatMetaPredictsOnTheCpu) {
  for_each_run([this](const RunOptions& options) { check_meta(row(), options, Device::cpu()); });
}

TEST_P(OpTable, TakesTheShapesAndBytesThatMetaPredictsOnCuda) {
  if (!has_runtime(Device::cuda())) GTEST_SKIP() << "no cuda on this machine";
  for (const bool cudnn : cudnn_choices(row())) {
    const SettingsScope scope(cudnn);
    SCOPED_TRACE(cudnn ? "with cuDNN" : "without cuDNN");
    for_each_run([this](const RunOptions& options) {
      if (options.dtype != DType::f64) check_meta(row(), options, Device::cuda());
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, OpTable, testing::ValuesIn(row_refs()),
                         [](const testing::TestParamInfo<RowRef>& info) {
                           return info.param.row->name;
                         });

}  // namespace
}  // namespace headroom::testing_ops
