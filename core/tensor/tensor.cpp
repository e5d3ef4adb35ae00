// Tensor handles: attributes, autograd metadata, reads.
#include "core/tensor/tensor.h"

#include "core/autograd/node.h"
#include "core/ops/contract.h"

namespace headroom {
namespace {

const TensorImpl& defined_impl(const Tensor& tensor) {
  CHECK_ARG(tensor.defined(), "tensor: an undefined tensor was used");
  return *tensor.impl();
}

}  // namespace

std::string describe(const View& view) {
  if (!view.defined) return "none";
  std::string out = std::string(name_of(view.dtype)) + to_string(view.shape);
  if (view.format == MemoryFormat::channels_last) out += " nhwc";
  return out;
}

const Shape& Tensor::shape() const { return defined_impl(*this).shape; }
int64_t Tensor::size(int axis) const {
  return shape()[normalize_axis(axis, shape().rank(), "size")];
}
int64_t Tensor::numel() const { return numel_of(shape()); }
const Strides& Tensor::strides() const { return defined_impl(*this).strides; }
DType Tensor::dtype() const { return defined_impl(*this).dtype; }
Device Tensor::device() const { return defined_impl(*this).storage->device(); }
MemoryFormat Tensor::format() const { return defined_impl(*this).format; }
TensorOptions Tensor::options() const { return {dtype(), device(), format()}; }
bool Tensor::is_dense() const { return view().is_dense(); }
std::string Tensor::describe() const { return headroom::describe(view()); }

View Tensor::view() const {
  if (!impl_) return {};
  View out;
  out.data = static_cast<char*>(impl_->storage->data()) +
             impl_->offset * static_cast<int64_t>(size_of(impl_->dtype));
  out.shape = impl_->shape;
  out.strides = impl_->strides;
  out.dtype = impl_->dtype;
  out.format = impl_->format;
  out.device = impl_->storage->device();
  out.defined = true;
  return out;
}

const std::shared_ptr<Storage>& Tensor::storage() const { return defined_impl(*this).storage; }
int64_t Tensor::storage_offset() const { return defined_impl(*this).offset; }
bool Tensor::is_unique() const {
  return impl_ && impl_.use_count() == 1 && impl_->storage.use_count() == 1;
}

Tensor Tensor::make(std::shared_ptr<Storage> storage, int64_t offset, const Shape& shape,
                    const Strides& strides, DType dtype, MemoryFormat format) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::move(storage);
  impl->offset = offset;
  impl->shape = shape;
  impl->strides = strides;
  impl->dtype = dtype;
  impl->format = shape.rank() == 4 ? format : MemoryFormat::contiguous;
  return Tensor(std::move(impl));
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  const Tensor plain =
      detail::converted(detail::dense_in(*this, MemoryFormat::contiguous), dtype_of<T>());
  std::vector<T> out(static_cast<size_t>(numel()));
  runtime_of(device()).copy_to_host(out.data(), plain.view().data, plain.nbytes());
  return out;
}
template std::vector<float> Tensor::to_vector() const;
template std::vector<double> Tensor::to_vector() const;
template std::vector<int64_t> Tensor::to_vector() const;
template std::vector<uint8_t> Tensor::to_vector() const;
template std::vector<Half> Tensor::to_vector() const;
template std::vector<BFloat16> Tensor::to_vector() const;

double Tensor::item() const {
  CHECK_ARG(numel() == 1, "item: needs a tensor of one element but got ", describe());
  if (dtype() == DType::i64) return static_cast<double>(to_vector<int64_t>()[0]);
  return dtype() == DType::f64 ? to_vector<double>()[0]
                               : static_cast<double>(to_vector<float>()[0]);
}

bool Tensor::requires_grad() const {
  const TensorImpl& impl = defined_impl(*this);
  return impl.requires_grad || impl.grad_fn != nullptr;
}

Tensor& Tensor::set_requires_grad(bool value) {
  CHECK_ARG(is_leaf(), "set_requires_grad: needs a leaf, but an op made this tensor ", describe());
  CHECK_ARG(!value || is_floating(dtype()), "set_requires_grad: needs a floating dtype but got ",
            describe());
  impl_->requires_grad = value;
  if (!value) {
    impl_->leaf.reset();
  } else if (!impl_->leaf) {
    const DType grad_dtype = dtype() == DType::f64 ? DType::f64 : DType::f32;
    impl_->leaf = std::make_shared<LeafNode>(grad_dtype, shape(), format());
  }
  return *this;
}

bool Tensor::is_leaf() const { return defined_impl(*this).grad_fn == nullptr; }

LeafNode* Tensor::leaf() const {
  const TensorImpl& impl = defined_impl(*this);
  return impl.requires_grad && !impl.grad_fn ? impl.leaf.get() : nullptr;
}

Tensor Tensor::grad() const {
  const TensorImpl& impl = defined_impl(*this);
  return impl.leaf ? impl.leaf->grad : Tensor();
}

void Tensor::set_grad(const Tensor& grad) {
  const TensorImpl& impl = defined_impl(*this);
  if (!grad.defined()) {
    if (impl.leaf) impl.leaf->grad = {};
    return;
  }
  CHECK_ARG(impl.leaf, "set_grad: needs a leaf that requires a gradient but got ", describe());
  CHECK_ARG(grad.shape() == shape() && grad.device() == device() && is_floating(grad.dtype()),
            "set_grad: gradient ", grad.describe(), " does not fit ", describe());
  // Later gradients are added to it in place, which a repeated element would feel twice.
  impl.leaf->grad = detail::dense_in(grad, grad.format());
}

Tensor Tensor::detach() const {
  const TensorImpl& impl = defined_impl(*this);
  Tensor out = make(impl.storage, impl.offset, impl.shape, impl.strides, impl.dtype, impl.format);
  out.impl_->is_view = impl.is_view;
  return out;
}

const std::shared_ptr<Node>& Tensor::grad_fn() const { return defined_impl(*this).grad_fn; }

void Tensor::set_half_copy(const Tensor& copy) {
  defined_impl(*this);
  impl_->half_copy_version = -1;
  if (!copy.defined()) {
    impl_->half_copy.reset();
    return;
  }
  CHECK_ARG(is_half(copy.dtype()) && copy.is_dense() && copy.shape() == shape() &&
                copy.device() == device() && copy.format() == format(),
            "set_half_copy: ", copy.describe(), " cannot stand for ", describe());
  impl_->half_copy = copy.impl_;
}

Tensor Tensor::half_copy() const {
  const TensorImpl& impl = defined_impl(*this);
  return impl.half_copy ? Tensor(impl.half_copy) : Tensor();
}

void Tensor::mark_half_copy_current() {
  impl_->half_copy_version = defined_impl(*this).storage->version();
}

bool Tensor::half_copy_is_current() const {
  const TensorImpl& impl = defined_impl(*this);
  return impl.half_copy && impl.half_copy_version == impl.storage->version();
}

}  // namespace headroom
