// What the cases of convolution and pooling share: both memory formats in f32 and f16, and values
// that are easily written down.
#pragma once

#include <string>

#include "core/autograd/autograd.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {

class ImageCase : public CaseTest {
 protected:
  // Runs fn(dtype, format) in f32 and f16, in both memory formats.
  template <class Fn>
  void for_each_way(Fn&& fn) const {
    for (const DType dtype : {DType::f32, DType::f16}) {
      for (const MemoryFormat format : testing_kernels::kFormats) {
        SCOPED_TRACE(std::string(name_of(dtype)) +
                     (format == MemoryFormat::contiguous ? " nchw" : " nhwc"));
        fn(dtype, format);
      }
    }
  }
  Tensor ones_leaf(const Shape& shape, DType dtype, MemoryFormat format) const {
    return ones(shape, {dtype, device(), format}).set_requires_grad(true);
  }
  static void backward_of_ones(const Tensor& y) { backward(y, ones(y.shape(), y.options())); }
};

inline Values sequence(int64_t count, double first = 0) {
  Values out;
  for (int64_t i = 0; i < count; ++i) out.push_back(first + static_cast<double>(i));
  return out;
}
inline Values joined(std::initializer_list<Values> parts) {
  Values out;
  for (const Values& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}
inline Values product(const Values& down, const Values& across) {
  Values out;
  for (const double v : down) {
    for (const double h : across) out.push_back(v * h);
  }
  return out;
}

}  // namespace headroom::cases
