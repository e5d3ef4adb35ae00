// Running one row of the op table.
#include "tests/ops/row_run.h"

#include <ostream>

#include "core/autograd/engine.h"
#include "core/memory/caching_allocator.h"
#include "core/tensor/generator.h"
#include "tests/kernels/kernel_test.h"
#include "tests/ops/reference_ops.h"

namespace headroom::testing_ops {
namespace {

constexpr int64_t kSliceMargin = 2;  // elements before a slice; one fewer after it

// What the elements around a slice hold: large enough to show when a kernel reads them.
constexpr double kOutside = 60;

Array swapped(const Array& x) {
  std::vector<int> axes;
  for (int i = 0; i < x.shape.rank(); ++i) axes.push_back(i);
  std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
  return reference::permute(x, axes);
}

Array widened(const Array& x) {
  const int last = x.shape.rank() - 1;
  Shape margin = x.shape;
  margin[last] = kSliceMargin;
  const Array before = reference::filled(margin, kOutside);
  margin[last] = kSliceMargin - 1;
  return reference::concat({before, x, reference::filled(margin, kOutside)}, last);
}

// A tensor of the input's layout. Made by the same calls on every device, so that allocators see
// the same requests.
Tensor make_input(const Input& input, const Array& array, const RunOptions& options) {
  MemoryFormat format = options.format;
  if (input.format == Format::nchw) format = MemoryFormat::contiguous;
  if (input.format == Format::nhwc) format = MemoryFormat::channels_last;
  if (array.shape.rank() != 4) format = MemoryFormat::contiguous;
  const TensorOptions made{dtype_of_input(input, options.dtype), options.device, format};
  const int last = array.shape.rank() - 1;
  switch (input.layout) {
    case Layout::dense:
      return from_vector(array.values, array.shape, made);
    case Layout::transposed: {
      TensorOptions plain = made;
      plain.format = MemoryFormat::contiguous;
      const Array turned = swapped(array);
      const Tensor base = from_vector(turned.values, turned.shape, plain);
      Strides strides = base.strides();
      std::swap(strides[last], strides[last - 1]);
      return Tensor::make(base.storage(), 0, array.shape, strides, base.dtype(), plain.format);
    }
    case Layout::sliced: {
      const Array wide = widened(array);
      const Tensor base = from_vector(wide.values, wide.shape, made);
      return Tensor::make(base.storage(), kSliceMargin * base.strides()[last], array.shape,
                          base.strides(), base.dtype(), format);
    }
    case Layout::repeated: {
      const Array once = reference::slice(array, 0, 0, 1);
      const Tensor base = from_vector(once.values, once.shape, made);
      Strides strides = base.strides();
      strides[0] = 0;
      return Tensor::make(base.storage(), 0, array.shape, strides, base.dtype(), format);
    }
  }
  return {};
}

Call make_call(const Row& row, const Arrays& arrays, const RunOptions& options) {
  Call call;
  call.options = {options.dtype, options.device, options.format};
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    call.inputs.push_back(make_input(row.inputs[i], arrays[i], options));
    if (i < options.wanted.size() && options.wanted[i]) {
      call.inputs.back().set_requires_grad(true);
    }
  }
  return call;
}

Array drawn_seed(const Shape& shape) {
  return {shape, testing_kernels::test_values(numel_of(shape), -1, 1, 99)};
}

bool runs_backward(const RunOptions& options) {
  if (!options.backward) return false;
  for (const bool wanted : options.wanted) {
    if (wanted) return true;
  }
  return false;
}

template <class T>
double number(T value) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

}  // namespace

DType dtype_of_input(const Input& input, DType dtype) {
  switch (input.kind) {
    case Kind::of_run:
      return dtype;
    case Kind::statistic:
      return dtype == DType::f64 ? DType::f64 : DType::f32;
    case Kind::label:
      return DType::i64;
    case Kind::byte:
      return DType::u8;
  }
  return dtype;
}

bool is_differentiable(const Row& row, const Input& input) {
  const bool floating = input.kind == Kind::of_run || input.kind == Kind::statistic;
  return row.differentiable && input.wants_grad && floating;
}

std::vector<bool> differentiable_inputs(const Row& row) {
  std::vector<bool> out;
  for (const Input& input : row.inputs) out.push_back(is_differentiable(row, input));
  return out;
}

bool has_images(const Row& row) {
  for (const Input& input : row.inputs) {
    if (input.shape.rank() == 4 && input.format == Format::of_run) return true;
  }
  return false;
}

Arrays input_arrays(const Row& row, DType dtype) {
  Arrays out;
  uint64_t stream = 1;
  for (const Input& input : row.inputs) {
    Array array{input.shape, input.values};
    if (input.values.empty()) {
      array.values =
          testing_kernels::test_values(numel_of(input.shape), input.low, input.high, stream);
    }
    ++stream;
    array = reference::stored(array, dtype_of_input(input, dtype));
    if (input.layout == Layout::repeated) {
      array = reference::expand(reference::slice(array, 0, 0, 1), input.shape);
    }
    out.push_back(std::move(array));
  }
  return out;
}

Outcome run(const Row& row, const Arrays& arrays, const RunOptions& options, const Array* seed) {
  Outcome out;
  out.call = make_call(row, arrays, options);
  manual_seed(kSeed);
  out.outputs = row.op(out.call);
  out.grads.resize(row.inputs.size());
  if (!runs_backward(options)) return out;
  const Tensor& y = out.outputs[0];
  out.seed = seed ? *seed : reference::stored(drawn_seed(y.shape()), y.dtype());
  backward(y, from_vector(out.seed.values, y.shape(), y.options()));
  for (size_t i = 0; i < out.grads.size(); ++i) out.grads[i] = out.call[i].grad();
  return out;
}

Account account_for(const Row& row, const Arrays& arrays, const RunOptions& options) {
  Account out;
  empty_cache(options.device);
  const Call call = make_call(row, arrays, options);
  manual_seed(kSeed);
  reset_peak_memory_stats(options.device);
  const int64_t before = memory_allocated(options.device);
  std::vector<Tensor> outputs = row.op(call);
  out.footprint.after_forward = memory_allocated(options.device) - before;
  if (runs_backward(options)) {
    const Tensor& y = outputs[0];
    backward(y, from_vector(drawn_seed(y.shape()).values, y.shape(), y.options()));
  }
  out.footprint.after_backward = memory_allocated(options.device) - before;
  out.footprint.peak = max_memory_allocated(options.device) - before;
  out.footprint.peak_reserved = max_memory_reserved(options.device);
  for (const Tensor& output : outputs) out.outputs.push_back(output.describe());
  for (const Tensor& input : call.inputs) {
    const Tensor grad = input.grad();
    out.grads.push_back(grad.defined() ? grad.describe() : "none");
  }
  return out;
}

std::ostream& operator<<(std::ostream& out, const Footprint& footprint) {
  return out << footprint.after_forward << " B after forward, " << footprint.after_backward
             << " B after backward, peak " << footprint.peak << " B, reserved "
             << footprint.peak_reserved << " B";
}

Values values_of(const Tensor& tensor) {
  if (!tensor.device().is_cpu()) return testing_kernels::values_of(tensor);
  const View view = tensor.view();
  Values out(static_cast<size_t>(view.numel()));
  dispatch_all(view.dtype, "values_of", [&](auto tag) {
    using T = decltype(tag);
    for (size_t i = 0; i < out.size(); ++i) {
      int64_t rest = static_cast<int64_t>(i), offset = 0;
      for (int axis = view.rank() - 1; axis >= 0; --axis) {
        offset += rest % view.shape[axis] * view.strides[axis];
        rest /= view.shape[axis];
      }
      out[i] = number(view.as<T>()[offset]);
    }
  });
  return out;
}

}  // namespace headroom::testing_ops
