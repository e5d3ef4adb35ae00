// Comparing a run of a row with what it should give.
#include "tests/ops/row_compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/kernel_test.h"
#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops {

using testing_kernels::unit_of;

namespace {

double arithmetic_unit(DType dtype) {
  return dtype == DType::f64 ? unit_of(DType::f64) : unit_of(DType::f32);
}

}  // namespace

Array absolute(const Array& x) {
  return reference::map(x, [](double value) { return std::abs(value); });
}
Arrays absolute(const Arrays& arrays) {
  Arrays out;
  for (const Array& array : arrays) out.push_back(absolute(array));
  return out;
}

double largest_of(const Values& values) {
  double largest = 0;
  for (const double value : values) {
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  }
  return largest;
}

double smallest_step(DType dtype) { return dtype == DType::f16 ? 0x1p-25 : 0; }

void expect_close(const Values& values, const Values& expected,
                  const std::function<double(size_t)>& allowed) {
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(values[i])) << "element " << i << " is " << values[i];
    } else if (std::isinf(expected[i])) {
      ASSERT_EQ(values[i], expected[i]) << "element " << i;
    } else if (values[i] != expected[i]) {
      ASSERT_NEAR(values[i], expected[i], allowed(i)) << "element " << i;
    }
  }
}

Values allowed_errors(const Row& row, DType arithmetic, DType dtype, const Array& expected,
                      const Array* terms) {
  const Tolerance& tolerance = row.tolerance;
  const double largest = largest_of(expected.values);
  Values out;
  for (size_t i = 0; i < expected.values.size(); ++i) {
    const double value = std::abs(expected.values[i]);
    double scale = value;
    if (tolerance.scale == Scale::largest) scale = largest;
    if (terms) scale = terms->values[i];
    const double rounded = tolerance.scale == Scale::largest ? largest : value;
    out.push_back(tolerance.rounding * (unit_of(dtype) * rounded + smallest_step(dtype)) +
                  tolerance.arithmetic * arithmetic_unit(arithmetic) * scale);
  }
  return out;
}

Arrays terms_of(const Row& row, const Arrays& arrays) {
  if (row.tolerance.scale != Scale::terms) return {};
  return row.reference(absolute(arrays));
}

void expect_inputs_kept(const Row& row, const Arrays& arrays, const Outcome& outcome) {
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (row.inputs[i].written) continue;
    SCOPED_TRACE(detail::concat("input ", i, " afterwards"));
    expect_close(values_of(outcome.call[i]), arrays[i].values, [](size_t) { return 0.0; });
  }
}

}  // namespace headroom::testing_ops
