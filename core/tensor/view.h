// A View is what kernels see of a tensor: an address, a type and a layout. It owns nothing.
#pragma once

#include <cstdint>

#include "core/base/device.h"
#include "core/base/dtype.h"
#include "core/base/shape.h"

namespace headroom {

struct View {
  void* data = nullptr;
  Shape shape;      // n, c, h, w order for images
  Strides strides;  // in elements; 0 where a broadcast repeats an axis
  DType dtype = DType::f32;
  MemoryFormat format = MemoryFormat::contiguous;
  Device device;
  bool defined = false;  // false: an optional operand that was not given

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  int rank() const { return shape.rank(); }
  int64_t numel() const { return numel_of(shape); }
  explicit operator bool() const { return defined; }
  // Whether the elements fill one block in the order of `format`, without gaps.
  bool is_dense() const {
    const Strides dense = dense_strides(shape, format);
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] > 1 && strides[i] != dense[i]) return false;
    }
    return true;
  }
};

// "f32[8,3,32,32]", with "nhwc" appended for channels-last tensors.
std::string describe(const View& view);

}  // namespace headroom
