// Comparing a run of a row with what it should give, within the row's tolerance.
#pragma once

#include <functional>

#include "tests/ops/row_run.h"

namespace headroom::testing_ops {

Array absolute(const Array& x);
Arrays absolute(const Arrays& arrays);

// The largest absolute value that is finite.
double largest_of(const Values& values);

// Half the distance between the smallest numbers of a dtype: the error of rounding near zero.
double smallest_step(DType dtype);

// Values equal (NaN with NaN, infinities with themselves) or within `allowed(i)`. Fails the test.
void expect_close(const Values& values, const Values& expected,
                  const std::function<double(size_t)>& allowed);

// What the row's tolerance allows for each element of an output of `dtype` when `arithmetic` was
// tested. `terms` are the reference's outputs over absolute inputs, for Scale::terms.
Values allowed_errors(const Row& row, DType arithmetic, DType dtype, const Array& expected,
                      const Array* terms);

// The reference's outputs over absolute inputs; empty where the tolerance does not ask for them.
Arrays terms_of(const Row& row, const Arrays& arrays);

// No op may write to what it was given, in forward or backward, unless the row says so.
void expect_inputs_kept(const Row& row, const Arrays& arrays, const Outcome& outcome);

}  // namespace headroom::testing_ops
