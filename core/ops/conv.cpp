// conv2d: layout, padding of narrow inputs, workspaces and the ladder that is walked without
// memory.
#include "core/ops/conv.h"

#include <algorithm>
#include <atomic>

#include "core/autograd/autocast.h"
#include "core/base/settings.h"
#include "core/ops/conv_calls.h"
#include "core/ops/op_helpers.h"
#include "core/ops/scratch.h"

namespace headroom {
namespace {

std::atomic<int64_t> fallbacks{0};

// cuDNN copies inputs of fewer channels than this into padded scratch of its own (tens of MiB for a
// 224x224 stem); padding them here costs the same bytes once and no more.
constexpr int64_t kMinHalfChannels = 4;

// cuDNN counts further than 32 bits only in some of its engines; the native kernels always do.
constexpr int64_t kMaxLibraryNumel = (int64_t{1} << 31) - 1;

// Kernels that work in channels_last take tensors of the other format this many bytes of images at
// a time (one image at least): whole copies would double what a convolution needs.
constexpr int64_t kConvertedBytes = int64_t{32} << 20;

bool stands_for_cuda(const Tensor& x) { return x.device().stands_for == DeviceType::cuda; }

// Runs one convolution kernel with the largest workspace of the ladder that memory allows: the
// settings' limit, an eighth of it, then none, which on CUDA means the native kernels. CPU kernels
// have one size only. False if only native kernels are left and these do not take x's format.
template <class Run>
bool with_workspace(ConvDirection direction, const View& x, const View& w, const View& y,
                    Conv2dParams params, const Run& run) {
  const int64_t limit = settings().workspace_limit_bytes;
  int64_t tried = -1;
  for (const int64_t step : {limit, limit / 8, int64_t{0}}) {
    if (step == 0 && x.device.stands_for == DeviceType::cuda) {
      if (x.format == MemoryFormat::contiguous) return false;
      params.algorithm = ConvAlgorithm::native;
    }
    const int64_t bytes = conv2d_workspace_bytes(x.device, direction, x, w, y, params, step);
    if (bytes == tried) continue;
    tried = bytes;
    Tensor workspace;
    try {
      workspace = detail::scratch(x.device, bytes);
    } catch (const OutOfMemory&) {
      if (step == 0 || x.device.stands_for == DeviceType::cpu) throw;
      ++fallbacks;
      continue;
    }
    detail::ConvCallScope told;
    run(params, workspace);
    told.end(direction, x, w, y, params, bytes);
    return true;
  }
  return false;
}

// dx and dw of one convolution. dw[k,c,r,s] = sum over n,p,q of dy * x at the tap; dx is the
// transposed convolution of dy with w; dbias = sum of dy over n,p,q.
struct Conv2d : Node {
  Conv2dParams params;
  SavedTensor x, w;
  Shape x_shape, w_shape;
  MemoryFormat x_format = MemoryFormat::contiguous, w_format = MemoryFormat::contiguous;
  DType bias_dtype = DType::f32;

  explicit Conv2d(const Conv2dOptions& options) {
    params.stride = options.stride;
    params.padding = options.padding;
    params.dilation = options.dilation;
    params.groups = options.groups;
  }
  const char* name() const override { return "conv2d"; }

  Tensor forward(const Tensor& in_x, const Tensor& in_w, const Tensor& bias) {
    const Shape y_shape = check(in_x, in_w, bias);
    choose_algorithm(in_x, y_shape);
    x_shape = in_x.shape();
    w_shape = in_w.shape();
    x_format = in_x.format();
    w_format = in_w.format();
    if (bias.defined()) bias_dtype = bias.dtype();
    if (wants(1)) x = save(in_x);
    if (wants(0)) w = save(in_w);

    Tensor y = empty(y_shape, {in_x.dtype(), in_x.device(), x_format});
    for_images(y, [&](int64_t first, int64_t count, MemoryFormat format) {
      const Tensor a = operand(images(in_x, first, count), format), b = operand(in_w, format);
      Result out(images(y, first, count), format);
      return with_workspace(ConvDirection::forward, a, b, out.part, params,
                            [&](const Conv2dParams& with, const Tensor& workspace) {
                              slots::conv2d(a, b, bias, with, workspace, out.part);
                              out.finish();
                            });
    });
    return y;
  }

  Grads backward(Tensor dy_in) override {
    const Tensor dy = detail::dense_in(dy_in, x_format);
    dy_in = {};
    Tensor dx, dw, dbias;
    if (wants(2)) dbias = bias_gradient(dy);
    // dw first: x can go before dx is made.
    if (wants(1)) dw = weight_gradient(dy);
    if (wants(0)) dx = input_gradient(dy);
    return {dx, dw, dbias};
  }

 private:
  // The native kernels and the CPU's work in channels_last; cuDNN takes x's format.
  MemoryFormat working_format() const {
    return params.algorithm == ConvAlgorithm::library && library_formats
               ? x_format
               : MemoryFormat::channels_last;
  }

  // Images [first, first + count) of x or y.
  static Tensor images(const Tensor& t, int64_t first, int64_t count) {
    Shape shape = t.shape();
    shape[0] = count;
    return detail::alias(t, t.storage_offset() + first * t.strides()[0], shape, t.strides(),
                         t.format());
  }

  // Calls fn(first, count, format) for all images at once or, where they have to be converted to
  // channels_last, for some at a time: fewer still where memory does not allow that. fn says false,
  // having done nothing, where the library's format will not do. y as in the forward pass. An empty
  // batch is one call.
  template <class Fn>
  void for_images(const Tensor& y, const Fn& fn) const {
    const int64_t n = x_shape[0];
    if (working_format() == x_format && fn(int64_t{0}, n, x_format)) return;
    int64_t step = images_at_once(y), first = 0;
    do {
      const int64_t count = std::min(step, n - first);
      try {
        fn(first, count, MemoryFormat::channels_last);
      } catch (const OutOfMemory&) {
        if (count <= 1) throw;
        step = (count + 1) / 2;
        ++fallbacks;
        continue;
      }
      first += count;
    } while (first < n);
  }
  int64_t images_at_once(const Tensor& y) const {
    const int64_t n = std::max<int64_t>(1, x_shape[0]);
    const int64_t image_bytes =
        (numel_of(x_shape) + y.numel()) / n * static_cast<int64_t>(size_of(y.dtype()));
    return std::clamp<int64_t>(kConvertedBytes / std::max<int64_t>(1, image_bytes), 1, n);
  }

  // Where a kernel writes images: in place, or into a copy in its own format that finish() brings
  // there.
  struct Result {
    Result(const Tensor& to, MemoryFormat format) : to(to), part(to) {
      if (to.format() != format) part = empty(to.shape(), {to.dtype(), to.device(), format});
    }
    void finish() {
      if (part.format() != to.format()) slots::copy(part, to);
    }
    Tensor to, part;
  };

  // x or w as the kernel takes it: in the working format, narrow channels padded with zeros.
  Tensor operand(const Tensor& t, MemoryFormat format) const {
    Tensor out = detail::dense_in(t, format);
    if (!pads_channels) return out;
    Shape shape = out.shape();
    shape[1] = kMinHalfChannels;
    const Tensor padded = empty(shape, out.options());
    slots::pad_channels(out, padded);
    return padded;
  }

  Tensor bias_gradient(const Tensor& dy) const {
    const int64_t k = dy.size(1);
    Tensor dbias = empty({k}, {bias_dtype, dy.device()});
    slots::reduce(ReduceOp::sum, dy,
                  detail::alias(dbias, 0, {1, k, 1, 1}, {k, 1, 1, 1}, MemoryFormat::contiguous));
    return dbias;
  }

  Tensor weight_gradient(const Tensor& dy) {
    const Tensor all = x.take();
    Shape shape = w_shape;
    shape[1] = pads_channels ? kMinHalfChannels : w_shape[1];
    Tensor dw;
    for_images(dy, [&](int64_t first, int64_t count, MemoryFormat format) {
      // Sums over several calls are kept in f32, as one call keeps its own.
      const bool is_whole = count == x_shape[0] || dy.dtype() == DType::f64;
      const DType dtype = is_whole ? dy.dtype() : DType::f32;
      const Tensor a = operand(images(all, first, count), format);
      const Tensor d = detail::dense_in(images(dy, first, count), format);
      Tensor part = empty(shape, {dtype, dy.device(), format});
      return with_workspace(ConvDirection::backward_weight, a, part, d, params,
                            [&](const Conv2dParams& with, const Tensor& workspace) {
                              slots::conv2d_backward_weight(a, d, with, workspace, part);
                              if (first > 0) slots::binary(BinaryOp::add, dw, part, part);
                              dw = part;
                            });
    });
    dw = detail::converted(dw, dy.dtype());
    if (pads_channels) {
      const Tensor cut = empty(w_shape, dw.options());
      slots::pad_channels(dw, cut);
      dw = cut;
    }
    return detail::dense_in(dw, w_format);
  }

  Tensor input_gradient(const Tensor& dy) {
    const Tensor weight = w.take();
    Tensor dx = empty(x_shape, {dy.dtype(), dy.device(), x_format});
    for_images(dy, [&](int64_t first, int64_t count, MemoryFormat format) {
      const Tensor d = detail::dense_in(images(dy, first, count), format);
      const Tensor b = detail::dense_in(weight, format);
      Result out(images(dx, first, count), format);
      return with_workspace(ConvDirection::backward_input, out.part, b, d, params,
                            [&](const Conv2dParams& with, const Tensor& workspace) {
                              slots::conv2d_backward_input(d, b, with, workspace, out.part);
                              out.finish();
                            });
    });
    return dx;
  }

  Shape check(const Tensor& in_x, const Tensor& in_w, const Tensor& bias) {
    detail::check_floating("conv2d", {&in_x, &in_w, &bias});
    const std::string got =
        detail::concat(" (x ", in_x.describe(), ", weight ", in_w.describe(), ")");
    CHECK_ARG(in_x.rank() == 4 && in_w.rank() == 4, "conv2d: needs x [n,c,h,w] and weight ",
              "[k,c/groups,r,s]", got);
    CHECK_ARG(in_x.dtype() == in_w.dtype(), "conv2d: dtypes differ", got);
    CHECK_ARG(params.groups >= 1 && in_x.size(1) % params.groups == 0 &&
                  in_w.size(0) % params.groups == 0,
              "conv2d: ", params.groups, " groups do not divide the channels", got);
    CHECK_ARG(in_w.size(1) * params.groups == in_x.size(1), "conv2d: weight takes ",
              in_w.size(1) * params.groups, " channels but x has ", in_x.size(1), got);
    CHECK_ARG(!bias.defined() || (bias.rank() == 1 && bias.size(0) == in_w.size(0)),
              "conv2d: bias must have ", in_w.size(0), " elements but is ", describe(bias));
    Shape y{in_x.size(0), in_w.size(0), 0, 0};
    for (size_t i = 0; i < 2; ++i) {
      const int axis = static_cast<int>(i) + 2;
      CHECK_ARG(
          params.stride[i] >= 1 && params.dilation[i] >= 1 && params.padding[i] >= 0,
          "conv2d: stride and dilation must be at least 1 and padding at least 0, got stride ",
          params.stride[i], ", dilation ", params.dilation[i], ", padding ", params.padding[i]);
      CHECK_ARG(in_w.size(axis) >= 1, "conv2d: the kernel is empty", got);
      const int64_t reach = params.dilation[i] * (in_w.size(axis) - 1) + 1;
      const int64_t padded = in_x.size(axis) + 2 * params.padding[i];
      CHECK_ARG(padded >= reach, "conv2d: the kernel reaches over ", reach,
                " elements but the padded input has ", padded, got);
      y[axis] = (padded - reach) / params.stride[i] + 1;
    }
    return y;
  }

  void choose_algorithm(const Tensor& in_x, const Shape& y_shape) {
    if (!stands_for_cuda(in_x)) return;
    library_formats = true;
    if (!settings().cudnn || std::max(in_x.numel(), numel_of(y_shape)) > kMaxLibraryNumel) {
      params.algorithm = ConvAlgorithm::native;
    }
    pads_channels = params.algorithm == ConvAlgorithm::library && is_half(in_x.dtype()) &&
                    in_x.format() == MemoryFormat::channels_last && params.groups == 1 &&
                    in_x.size(1) < kMinHalfChannels;
  }

  bool library_formats = false;
  bool pads_channels = false;
};

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options) {
  return apply(Conv2d{options}, autocast::to_half(x), autocast::to_half(w), bias);
}

int64_t conv2d_workspace_fallbacks() { return fallbacks; }

}  // namespace headroom
