// Making tensors: empty, filled, from host values, on another device.
#include <limits>

#include "core/ops/contract.h"
#include "core/tensor/generator.h"
#include "core/tensor/tensor.h"

namespace headroom {
namespace {

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    return To(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace

Tensor empty(const Shape& shape, const TensorOptions& options) {
  const int64_t count = numel_of(shape), width = static_cast<int64_t>(size_of(options.dtype));
  // More bytes than 63 bits count are asked for as the largest size, which no device has either.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  auto storage =
      std::make_shared<Storage>(options.device, count > kMost / width ? kMost : count * width);
  return Tensor::make(std::move(storage), 0, shape, dense_strides(shape, options.format),
                      options.dtype, options.format);
}

Tensor empty_like(const Tensor& like) { return empty(like.shape(), like.options()); }
Tensor empty_like(const Tensor& like, DType dtype) {
  TensorOptions options = like.options();
  options.dtype = dtype;
  return empty(like.shape(), options);
}

Tensor full(const Shape& shape, double value, const TensorOptions& options) {
  Tensor out = empty(shape, options);
  slots::fill(value, out);
  return out;
}
Tensor zeros(const Shape& shape, const TensorOptions& options) { return full(shape, 0, options); }
Tensor ones(const Shape& shape, const TensorOptions& options) { return full(shape, 1, options); }
Tensor scalar(double value, const TensorOptions& options) { return full({}, value, options); }

template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, const TensorOptions& options) {
  CHECK_ARG(static_cast<int64_t>(values.size()) == numel_of(shape), "from_vector: ", values.size(),
            " values for shape ", shape);
  TensorOptions plain = options;
  plain.format = MemoryFormat::contiguous;
  Tensor out = empty(shape, plain);
  dispatch_all(options.dtype, "from_vector", [&](auto tag) {
    using To = decltype(tag);
    DeviceRuntime& runtime = runtime_of(options.device);
    if constexpr (std::is_same_v<To, T>) {
      runtime.copy_to_device(out.view().data, values.data(), out.nbytes(), Stream::compute);
    } else {
      std::vector<To> converted(values.size());
      for (size_t i = 0; i < values.size(); ++i) converted[i] = convert<To>(values[i]);
      runtime.copy_to_device(out.view().data, converted.data(), out.nbytes(), Stream::compute);
    }
  });
  return detail::dense_in(out, options.format);
}
template Tensor from_vector(const std::vector<float>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<double>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<int64_t>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<uint8_t>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<Half>&, const Shape&, const TensorOptions&);
template Tensor from_vector(const std::vector<BFloat16>&, const Shape&, const TensorOptions&);

namespace detail {

Tensor moved(const Tensor& x, Device device) {
  if (x.device() == device) return x;
  const Tensor dense = dense_in(x, x.format());
  TensorOptions options = x.options();
  options.device = device;
  Tensor out = empty(x.shape(), options);
  const bool from_host = x.device().is_cpu(), to_host = device.is_cpu();
  CHECK_ARG(from_host || to_host || x.device().is_meta() || device.is_meta(),
            "to_device: no direct copy from ", x.device(), " to ", device);
  if (device.is_meta()) return out;
  if (to_host) {
    runtime_of(x.device()).copy_to_host(out.view().data, dense.view().data, dense.nbytes());
  } else {
    CHECK_ARG(from_host, "to_device: ", x.device(), " holds nothing to copy to ", device);
    runtime_of(device).copy_to_device(out.view().data, dense.view().data, dense.nbytes(),
                                      Stream::compute);
  }
  return out;
}

Tensor alias(const Tensor& x, int64_t offset, const Shape& shape, const Strides& strides,
             MemoryFormat format) {
  Tensor out = Tensor::make(x.storage(), offset, shape, strides, x.dtype(), format);
  out.impl()->is_view = true;
  return out;
}

Tensor dense_in(const Tensor& x, MemoryFormat format) {
  if (x.rank() != 4) format = MemoryFormat::contiguous;
  View as = x.view();
  as.format = format;
  if (as.is_dense()) {
    if (x.format() == format) return x;
    return alias(x, x.storage_offset(), x.shape(), dense_strides(x.shape(), format), format);
  }
  TensorOptions options = x.options();
  options.format = format;
  Tensor out = empty(x.shape(), options);
  slots::copy(x, out);
  return out;
}

Tensor converted(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor out = empty_like(x, dtype);
  slots::copy(x, out);
  return out;
}

}  // namespace detail

Generator& default_generator() {
  static Generator instance;
  return instance;
}

void manual_seed(uint64_t seed) { default_generator().seed(seed); }

}  // namespace headroom
