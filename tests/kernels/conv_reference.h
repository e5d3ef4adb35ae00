// Convolution and its gradients as plain loops in f64, and calls of the three slots on tensors.
#pragma once

#include <string>
#include <vector>

#include "core/ops/workspace.h"
#include "tests/kernels/kernel_test.h"

namespace headroom::testing_kernels {

// One convolution: x [n,c,h,w], w [k,c/groups,r,s].
struct ConvCase {
  std::string name;
  Shape x, w;
  Conv2dParams params;

  Shape y() const {
    Shape out = {x[0], w[0], 0, 0};
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t reach = params.dilation[axis] * (w[2 + axis] - 1) + 1;
      out[2 + axis] = (x[2 + axis] + 2 * params.padding[axis] - reach) / params.stride[axis] + 1;
    }
    return out;
  }
};

// Calls fn(x index, w index, y index) for every product of the convolution; indices are logical.
template <class Fn>
void for_each_product(const ConvCase& item, Fn&& fn) {
  const Shape &x = item.x, &w = item.w, y = item.y();
  const int64_t group_outputs = w[0] / item.params.groups;
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t k = 0; k < y[1]; ++k) {
      for (int64_t p = 0; p < y[2]; ++p) {
        for (int64_t q = 0; q < y[3]; ++q) {
          for (int64_t r = 0; r < w[2]; ++r) {
            for (int64_t s = 0; s < w[3]; ++s) {
              const int64_t h =
                  p * item.params.stride[0] - item.params.padding[0] + r * item.params.dilation[0];
              const int64_t v =
                  q * item.params.stride[1] - item.params.padding[1] + s * item.params.dilation[1];
              if (h < 0 || h >= x[2] || v < 0 || v >= x[3]) continue;
              for (int64_t c = 0; c < w[1]; ++c) {
                const int64_t channel = k / group_outputs * w[1] + c;
                fn(static_cast<size_t>(((n * x[1] + channel) * x[2] + h) * x[3] + v),
                   static_cast<size_t>(((k * w[1] + c) * w[2] + r) * w[3] + s),
                   static_cast<size_t>(((n * y[1] + k) * y[2] + p) * y[3] + q));
              }
            }
          }
        }
      }
    }
  }
}

inline Values reference_forward(const ConvCase& item, const Values& x, const Values& w,
                                const Values& bias) {
  const Shape shape = item.y();
  Values y(static_cast<size_t>(numel_of(shape)), 0.0);
  const int64_t plane = shape[2] * shape[3];
  for (size_t i = 0; i < y.size() && !bias.empty(); ++i) {
    y[i] = bias[static_cast<int64_t>(i) / plane % shape[1]];
  }
  for_each_product(item, [&](size_t ix, size_t iw, size_t iy) { y[iy] += x[ix] * w[iw]; });
  return y;
}
inline Values reference_backward_input(const ConvCase& item, const Values& dy, const Values& w) {
  Values dx(static_cast<size_t>(numel_of(item.x)), 0.0);
  for_each_product(item, [&](size_t ix, size_t iw, size_t iy) { dx[ix] += dy[iy] * w[iw]; });
  return dx;
}
inline Values reference_backward_weight(const ConvCase& item, const Values& x, const Values& dy) {
  Values dw(static_cast<size_t>(numel_of(item.w)), 0.0);
  for_each_product(item, [&](size_t ix, size_t iw, size_t iy) { dw[iw] += x[ix] * dy[iy]; });
  return dw;
}

class ConvTest : public KernelTest {
 protected:
  static constexpr MemoryFormat kFormat = MemoryFormat::channels_last;

  std::vector<ConvAlgorithm> algorithms() const {
    if (device().is_cuda()) return {ConvAlgorithm::library, ConvAlgorithm::native};
    return {ConvAlgorithm::library};
  }
  Tensor image(const Values& values, const Shape& shape, DType dtype) const {
    return tensor(values, shape, dtype, kFormat);
  }
  // Scratch memory of exactly the promised size, filled with bytes that are NaN in every type: a
  // kernel that relies on zeros, or writes beyond the end, shows itself.
  class Workspace {
   public:
    Workspace(const Device& device, ConvDirection direction, const Tensor& x, const Tensor& w,
              const Tensor& y, const Conv2dParams& params) {
      constexpr int64_t kLimit = int64_t{32} << 20;
      bytes_ =
          conv2d_workspace_bytes(device, direction, x.view(), w.view(), y.view(), params, kLimit);
      memory_ = full({bytes_ + kGuardBytes}, 255, {DType::u8, device});
    }
    ~Workspace() {
      const std::vector<uint8_t> bytes = memory_.to_vector<uint8_t>();
      for (size_t i = static_cast<size_t>(bytes_); i < bytes.size(); ++i) {
        if (bytes[i] == 255) continue;
        ADD_FAILURE() << "wrote beyond the workspace of " << bytes_ << " bytes";
        break;
      }
    }
    View view() const {
      View view = memory_.view();
      view.shape = {bytes_};
      return bytes_ > 0 ? view : View{};
    }

   private:
    static constexpr int64_t kGuardBytes = 4096;
    int64_t bytes_ = 0;
    Tensor memory_;
  };

  Tensor forward(const ConvCase& item, const Tensor& x, const Tensor& w, const Tensor& bias) const {
    const Tensor y = uninitialised(item.y(), x.dtype(), kFormat);
    const Workspace scratch(device(), ConvDirection::forward, x, w, y, item.params);
    slots::conv2d(x, w, bias ? bias.view() : View{}, item.params, scratch.view(), y);
    return y;
  }
  Tensor backward_input(const ConvCase& item, const Tensor& dy, const Tensor& w) const {
    const Tensor dx = uninitialised(item.x, dy.dtype(), kFormat);
    const Workspace scratch(device(), ConvDirection::backward_input, dx, w, dy, item.params);
    slots::conv2d_backward_input(dy, w, item.params, scratch.view(), dx);
    return dx;
  }
  Tensor backward_weight(const ConvCase& item, const Tensor& x, const Tensor& dy,
                         DType dtype) const {
    const Tensor dw = uninitialised(item.w, dtype, kFormat);
    const Workspace scratch(device(), ConvDirection::backward_weight, x, dw, dy, item.params);
    slots::conv2d_backward_weight(x, dy, item.params, scratch.view(), dw);
    return dw;
  }
};

}  // namespace headroom::testing_kernels
