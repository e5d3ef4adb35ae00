// Tensor: a cheap handle on shape, layout and shared storage, plus its place in the autograd graph.
// Copying a Tensor copies the handle. Shapes are in n, c, h, w order whatever the memory format.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/device.h"
#include "core/base/dtype.h"
#include "core/base/shape.h"
#include "core/tensor/storage.h"
#include "core/tensor/view.h"

namespace headroom {

class Node;
class LeafNode;
class Recipe;
class Tensor;

// Type, place and layout of a tensor to be made.
struct TensorOptions {
  DType dtype = DType::f32;
  Device device = Device::cpu();
  MemoryFormat format = MemoryFormat::contiguous;
};

struct TensorImpl;

// Reading anything of an undefined tensor but defined() and is_unique() throws InvalidArgument.
class Tensor {
 public:
  Tensor() = default;  // undefined: an optional operand that was not given

  bool defined() const { return impl_ != nullptr; }
  explicit operator bool() const { return defined(); }

  const Shape& shape() const;
  int64_t size(int axis) const;  // negative axes count from the end; throws if out of range
  int rank() const { return shape().rank(); }
  int64_t numel() const;
  const Strides& strides() const;  // elements
  DType dtype() const;
  Device device() const;
  MemoryFormat format() const;
  TensorOptions options() const;
  // Bytes of its elements (not of its block).
  int64_t nbytes() const { return numel() * static_cast<int64_t>(size_of(dtype())); }
  bool is_dense() const;
  std::string describe() const;  // "f32[8,3,32,32] nhwc"

  View view() const;
  operator View() const { return view(); }  // NOLINT: kernels take views
  const std::shared_ptr<Storage>& storage() const;
  int64_t storage_offset() const;  // elements
  // The only tensor on its storage, and the only handle on it: an op may write its result there.
  bool is_unique() const;

  // Reads. Both wait for the device, and throw what it failed with. On a meta device they give
  // zeros. T: float, double, int64_t, uint8_t, Half or BFloat16; values are converted to it.
  template <class T>
  std::vector<T> to_vector() const;  // logical (row-major n, c, h, w) order
  double item() const;               // throws InvalidArgument unless there is one element

  // Autograd. A leaf is a tensor that no op made; .grad() of a leaf that requires one appears after
  // backward, f32 for half and f32 tensors, f64 for f64.
  bool requires_grad() const;
  // Throws InvalidArgument for what is no leaf, or not floating. false drops the gradient as well.
  Tensor& set_requires_grad(bool value);
  bool is_leaf() const;
  Tensor grad() const;     // undefined if none
  LeafNode* leaf() const;  // where backward gathers it; nullptr for all but leaves that want one
  // Takes the handle (a copy where it is not dense); undefined clears it. Throws InvalidArgument
  // unless this is a leaf that requires a gradient and the gradient is floating, of this shape and
  // device.
  void set_grad(const Tensor& grad);
  Tensor detach() const;  // the same storage outside the graph
  const std::shared_ptr<Node>& grad_fn() const;

  // The half-precision copy of a parameter that an optimizer keeps; autocast uses it instead of
  // casting, and brings it up to date first if the parameter was written by anyone else. Undefined
  // takes it away. Throws InvalidArgument unless it is half, dense, and of this shape, device and
  // format.
  void set_half_copy(const Tensor& copy);
  Tensor half_copy() const;  // undefined if none
  // Says that the copy holds the parameter's present contents.
  void mark_half_copy_current();
  bool half_copy_is_current() const;

  // For ops and the engine.
  TensorImpl* impl() const { return impl_.get(); }
  static Tensor make(std::shared_ptr<Storage> storage, int64_t offset, const Shape& shape,
                     const Strides& strides, DType dtype, MemoryFormat format);

 private:
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<TensorImpl> impl_;
};

struct TensorImpl {
  std::shared_ptr<Storage> storage;
  int64_t offset = 0;
  Shape shape;
  Strides strides;
  DType dtype = DType::f32;
  MemoryFormat format = MemoryFormat::contiguous;
  bool requires_grad = false;      // set by the user on a leaf
  bool is_view = false;            // made by a view op from another tensor
  std::shared_ptr<Node> grad_fn;   // the op that made it, or for a cast of a leaf that leaf's node
  std::shared_ptr<LeafNode> leaf;  // where the gradient of a leaf is gathered
  std::shared_ptr<Recipe> recipe;  // how to make the contents again, if the producer can
  int64_t recipe_version = 0;      // storage version that the recipe reproduces
  std::shared_ptr<TensorImpl> half_copy;
  int64_t half_copy_version = -1;  // storage version that the half copy holds
};

// Creation, of dense tensors. Contents of empty() are undefined. Throws InvalidArgument for a
// negative extent, more than 2^60 elements, and a device that is not there; OutOfMemory.
Tensor empty(const Shape& shape, const TensorOptions& options = {});
Tensor empty_like(const Tensor& like);  // shape, dtype, device and format
Tensor empty_like(const Tensor& like, DType dtype);
Tensor zeros(const Shape& shape, const TensorOptions& options = {});
Tensor ones(const Shape& shape, const TensorOptions& options = {});
Tensor full(const Shape& shape, double value, const TensorOptions& options = {});
// From host values in logical order, converted to options.dtype (T as for to_vector). Throws
// InvalidArgument when the count does not fit the shape.
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape,
                   const TensorOptions& options = {});
// A tensor of rank 0.
Tensor scalar(double value, const TensorOptions& options = {});

namespace detail {

// A handle on part of x's storage with another shape and layout, outside the graph.
Tensor alias(const Tensor& x, int64_t offset, const Shape& shape, const Strides& strides,
             MemoryFormat format);
// x dense in `format`, outside the graph: x itself, a relabelled handle where the strides fit both
// formats, or a copy made on x's device.
Tensor dense_in(const Tensor& x, MemoryFormat format);
// x in another dtype, dense in x's format, outside the graph; x itself if it is of that dtype.
Tensor converted(const Tensor& x, DType dtype);
// x copied to another device, outside the graph; x itself if it is there already. Waits where the
// host is one side. What comes from a meta device is zeros. Throws InvalidArgument between two
// accelerators.
Tensor moved(const Tensor& x, Device device);

}  // namespace detail

}  // namespace headroom
