// Pooling.
#include "core/ops/pool.h"

#include "core/ops/op_helpers.h"

namespace headroom {
namespace {

constexpr int64_t kMaxByteWindow = 255;  // larger windows need wider offsets

int64_t pooled_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                    bool ceil_mode) {
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  int64_t out = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  // The last window has to start inside the input or its left padding.
  if (ceil_mode && (out - 1) * stride >= size + padding) --out;
  return out;
}

Pool2dParams pool_params(const char* op, const Pool2dOptions& options) {
  Pool2dParams out;
  out.kernel = options.kernel;
  out.padding = options.padding;
  out.dilation = options.dilation;
  out.count_padding = options.count_padding;
  for (size_t i = 0; i < 2; ++i) {
    out.stride[i] = options.stride[i] == 0 ? options.kernel[i] : options.stride[i];
    CHECK_ARG(out.kernel[i] >= 1 && out.stride[i] >= 1 && out.dilation[i] >= 1, op,
              ": kernel, stride and dilation must be at least 1, got ", out.kernel[i], ", ",
              out.stride[i], ", ", out.dilation[i]);
    const int64_t reach = out.dilation[i] * (out.kernel[i] - 1) + 1;
    CHECK_ARG(out.padding[i] >= 0 && out.padding[i] <= reach / 2, op,
              ": padding must be at most half the window, got padding ", out.padding[i],
              " for a window over ", reach);
  }
  return out;
}

Shape pooled_shape(const char* op, const Tensor& x, const Pool2dParams& params, bool ceil_mode) {
  detail::check_floating(op, {&x});
  CHECK_ARG(x.rank() == 4, op, ": needs x [n,c,h,w] but got ", x.describe());
  Shape out = x.shape();
  for (size_t i = 0; i < 2; ++i) {
    const int axis = static_cast<int>(i) + 2;
    const int64_t reach = params.dilation[i] * (params.kernel[i] - 1) + 1;
    CHECK_ARG(x.size(axis) + 2 * params.padding[i] >= reach, op, ": a window of ", reach,
              " does not fit the padded input of ", x.describe());
    out[axis] = pooled_size(x.size(axis), params.kernel[i], params.stride[i], params.padding[i],
                            params.dilation[i], ceil_mode);
  }
  return out;
}

// y = the largest of each window; dx gathers dy from the windows that an element won.
struct MaxPool2d : Node {
  Pool2dParams params;
  bool ceil_mode;
  SavedTensor offsets;
  Shape in_shape;
  TensorOptions in_options;

  MaxPool2d(const Pool2dParams& params, bool ceil_mode) : params(params), ceil_mode(ceil_mode) {}
  const char* name() const override { return "max_pool2d"; }

  Tensor forward(const Tensor& in_x) {
    const Tensor x = detail::dense_in(in_x, in_x.format());
    in_shape = x.shape();
    in_options = x.options();
    Tensor y = empty(pooled_shape(name(), x, params, ceil_mode), in_options);
    Tensor places;
    if (wants(0)) {
      const bool small = params.kernel[0] * params.kernel[1] <= kMaxByteWindow;
      places = empty_like(y, small ? DType::u8 : DType::i64);
    }
    slots::max_pool2d(x, params, y, places);
    offsets = save(places);
    return y;
  }

  Grads backward(Tensor dy) override {
    const Tensor gradient = detail::dense_in(dy, in_options.format);
    Tensor dx = empty(in_shape, {gradient.dtype(), in_options.device, in_options.format});
    slots::max_pool2d_backward(gradient, offsets.take(), params, dx);
    return {dx};
  }
};

// y = the mean of each window.
struct AvgPool2d : Node {
  Pool2dParams params;
  bool ceil_mode;
  Shape in_shape;
  MemoryFormat format = MemoryFormat::contiguous;

  AvgPool2d(const Pool2dParams& params, bool ceil_mode) : params(params), ceil_mode(ceil_mode) {}
  const char* name() const override { return "avg_pool2d"; }

  Tensor forward(const Tensor& in_x) {
    const Tensor x = detail::dense_in(in_x, in_x.format());
    in_shape = x.shape();
    format = x.format();
    Tensor y = empty(pooled_shape(name(), x, params, ceil_mode), x.options());
    slots::avg_pool2d(x, params, y);
    return y;
  }

  Grads backward(Tensor dy) override {
    const Tensor gradient = detail::dense_in(dy, format);
    Tensor dx = empty(in_shape, {gradient.dtype(), gradient.device(), format});
    slots::avg_pool2d_backward(gradient, params, dx);
    return {dx};
  }
};

}  // namespace

Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options) {
  return apply(MaxPool2d{pool_params("max_pool2d", options), options.ceil_mode}, x);
}

Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options) {
  CHECK_ARG(options.dilation[0] == 1 && options.dilation[1] == 1,
            "avg_pool2d: dilation is for max pooling only");
  return apply(AvgPool2d{pool_params("avg_pool2d", options), options.ceil_mode}, x);
}

Tensor global_avg_pool2d(const Tensor& x) {
  CHECK_ARG(x.rank() == 4 && x.size(2) > 0 && x.size(3) > 0,
            "global_avg_pool2d: needs x [n,c,h,w] with h and w above 0 but got ", x.describe());
  Pool2dOptions options;
  options.kernel = {x.size(2), x.size(3)};
  return avg_pool2d(x, options);
}

}  // namespace headroom
