// CUDA kernels on tensors of more than 2^31 elements. Skipped, visibly, without a GPU that has the
// memory.
#include "tests/kernels/kernel_test.h"

namespace headroom::testing_kernels {
namespace {

TEST(CudaLarge, MoreElementsThanThirtyOneBitsCount) {
  if (!has_runtime(Device::cuda())) GTEST_SKIP() << "no cuda on this machine";
  constexpr int64_t kBytes = int64_t{24} << 30;
  if (runtime_of(Device::cuda()).memory_info().free_bytes < kBytes) {
    GTEST_SKIP() << "needs " << kBytes << " bytes of device memory";
  }
  // [1, c, h, w] with 2^31 + 2^21 elements, and one that is different at the very end.
  const Shape shape{1, 1025, 1024, 2048};
  const int64_t numel = numel_of(shape);
  const TensorOptions half{DType::f16, Device::cuda(), MemoryFormat::channels_last};
  const Tensor x = full(shape, 1, half);
  const auto element = [&](const Tensor& of, int64_t i) {
    return strided(of, {1}, {1}, i).to_vector<Half>()[0];
  };
  slots::fill(3, strided(x, {1}, {1}, numel - 1));
  {
    const Tensor y = empty_like(x);
    slots::unary(UnaryOp::add_scalar, 1, x, y);
    EXPECT_EQ(static_cast<float>(element(y, numel - 1)), 4.0f);
    EXPECT_EQ(static_cast<float>(element(y, numel - 2)), 2.0f);
    slots::copy(strided(x, {numel}, {1}), strided(y, {numel}, {1}));
    EXPECT_EQ(static_cast<float>(element(y, numel - 1)), 3.0f);
    slots::binary(BinaryOp::add, x, strided(x, shape, {0, 0, 0, 0}), y);
    EXPECT_EQ(static_cast<float>(element(y, numel - 1)), 4.0f);
    EXPECT_EQ(static_cast<float>(element(y, 0)), 2.0f);
  }
  const Tensor rows = zeros({1, 1025, 1024, 1}, {DType::f32, Device::cuda()});
  slots::reduce(ReduceOp::sum, x, rows);
  EXPECT_EQ(strided(rows, {1}, {1}, 0).item(), 2048.0);
  EXPECT_EQ(strided(rows, {1}, {1}, rows.numel() - 1).item(), 2050.0);
  const Tensor mean = zeros({1, 1, 1, 1}, {DType::f32, Device::cuda()});
  slots::reduce(ReduceOp::mean, x, mean);
  EXPECT_NEAR(mean.item(), 1.0, 1e-5);
  {
    const Pool2dParams params{{2, 2}, {2, 2}};
    const Shape out{1, 1025, 512, 1024};
    const Tensor y = empty(out, half);
    const Tensor places = empty(out, {DType::u8, Device::cuda(), MemoryFormat::channels_last});
    slots::max_pool2d(x, params, y, places);
    EXPECT_EQ(static_cast<float>(element(y, y.numel() - 1)), 3.0f);
    EXPECT_EQ(strided(places, {1}, {1}, y.numel() - 1).to_vector<uint8_t>()[0], 3);
    const Tensor dx = empty_like(x);
    slots::max_pool2d_backward(y, places, params, dx);
    EXPECT_EQ(static_cast<float>(element(dx, numel - 1)), 3.0f);
    EXPECT_EQ(static_cast<float>(element(dx, numel - 1026)), 0.0f);
  }
}

}  // namespace
}  // namespace headroom::testing_kernels
