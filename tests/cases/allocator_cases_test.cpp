// Section H, the allocator's part: statistics, cached pieces, and convolutions without room.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/autograd/autograd.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/ops.h"
#include "core/tensor/generator.h"
#include "tests/cases/case_test.h"

namespace headroom::cases {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

std::string name_of_device(const testing::TestParamInfo<Device>& info) {
  std::string out = name_of(info.param);
  std::replace(out.begin(), out.end(), ':', '_');
  return out;
}

// An allocator of its own on each device, meta devices included.
class AllocatorCase : public testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (!has_runtime(GetParam())) GTEST_SKIP() << "no " << GetParam() << " on this machine";
    own_ = std::make_unique<CachingAllocator>(GetParam(), runtime_of(GetParam()));
  }
  CachingAllocator& allocator() { return *own_; }

 private:
  std::unique_ptr<CachingAllocator> own_;
};

INSTANTIATE_TEST_SUITE_P(On, AllocatorCase,
                         testing::Values(Device::cpu(), Device::cuda(),
                                         Device::meta(DeviceType::cpu),
                                         Device::meta(DeviceType::cuda)),
                         name_of_device);

TEST_P(AllocatorCase, O40_PeakStatistics) {
  Block* a = allocator().allocate(64 * kMiB);
  Block* b = allocator().allocate(32 * kMiB);
  allocator().free(a);
  EXPECT_EQ(allocator().max_allocated_bytes(), 96 * kMiB);
  EXPECT_EQ(allocator().allocated_bytes(), 32 * kMiB);
  allocator().reset_peak_stats();
  EXPECT_EQ(allocator().max_allocated_bytes(), 32 * kMiB);
  EXPECT_EQ(allocator().allocated_bytes(), 32 * kMiB);
  Block* c = allocator().allocate(16 * kMiB);
  EXPECT_EQ(allocator().max_allocated_bytes(), 48 * kMiB);
  allocator().free(b);
  allocator().free(c);
  EXPECT_EQ(allocator().allocated_bytes(), 0);
  EXPECT_EQ(allocator().max_allocated_bytes(), 48 * kMiB);
  EXPECT_EQ(allocator().reserved_bytes(), 96 * kMiB);
  allocator().empty_cache();
  EXPECT_EQ(allocator().reserved_bytes(), 0);
  EXPECT_EQ(allocator().max_reserved_bytes(), 96 * kMiB);
  EXPECT_EQ(allocator().allocated_bytes(), 0);
  EXPECT_EQ(allocator().max_allocated_bytes(), 48 * kMiB);
}

// The parts of the peak follow it, and all of it holds for tensors and the device's own readings.
TEST_P(AllocatorCase, O40_PeakStatisticsOfTensorsAndTheirTags) {
  const Device device = GetParam();
  const auto tensor = [device](int64_t mib, Tag tag) {
    const TagScope scope(tag);
    return empty({mib * kMiB}, {DType::u8, device});
  };
  const auto part = [device](Tag tag) {
    return allocator_of(device).stats().peak_by_tag[static_cast<size_t>(tag)];
  };
  reset_peak_memory_stats(device);
  const int64_t before = memory_allocated(device), inputs_before = part(Tag::input);
  const int64_t parameters_before = part(Tag::parameter);
  Tensor a = tensor(64, Tag::input), b = tensor(32, Tag::parameter);
  a = {};
  EXPECT_EQ(max_memory_allocated(device) - before, 96 * kMiB);
  EXPECT_EQ(part(Tag::input) - inputs_before, 64 * kMiB);
  reset_peak_memory_stats(device);
  EXPECT_EQ(max_memory_allocated(device) - before, 32 * kMiB);
  EXPECT_EQ(part(Tag::input), inputs_before) << "the old peak's parts stay";
  EXPECT_EQ(part(Tag::parameter) - parameters_before, 32 * kMiB);
  Tensor c = tensor(16, Tag::input);
  EXPECT_EQ(max_memory_allocated(device) - before, 48 * kMiB);
  EXPECT_EQ(part(Tag::input) - inputs_before, 16 * kMiB);
  b = c = {};
  const int64_t allocated = memory_allocated(device);
  EXPECT_EQ(allocated, before);
  empty_cache(device);
  EXPECT_EQ(memory_allocated(device), allocated);
  EXPECT_EQ(max_memory_allocated(device) - before, 48 * kMiB);
}

// Marks a live block at both ends; meta blocks hold nothing.
class Mark {
 public:
  Mark(Device device, const Block& block, uint8_t value) : device_(device), block_(block) {
    bytes_.assign(4096, value);
    if (device_.is_meta()) return;
    for (char* at : {begin(), end()}) {
      runtime_of(device_).copy_to_device(at, bytes_.data(), size(), Stream::compute);
    }
  }
  bool intact() const {
    if (device_.is_meta()) return true;
    for (const char* at : {begin(), end()}) {
      std::vector<uint8_t> found(bytes_.size());
      runtime_of(device_).copy_to_host(found.data(), at, size());
      if (found != bytes_) return false;
    }
    return true;
  }

 private:
  int64_t size() const { return static_cast<int64_t>(bytes_.size()); }
  char* begin() const { return static_cast<char*>(block_.address); }
  char* end() const { return begin() + block_.bytes - size(); }

  Device device_;
  Block block_;
  std::vector<uint8_t> bytes_;
};

TEST_P(AllocatorCase, O41_FreeMemoryExistsButOnlyInCachedPieces) {
  struct Sizes {
    int64_t limit, piece, wanted;
  };
  // Also pieces of other sizes, and a limit that is no multiple of them.
  for (const Sizes& sizes :
       {Sizes{4 * kGiB, kGiB, kGiB + kGiB / 2}, Sizes{100 * kMiB, 12 * kMiB, 30 * kMiB},
        Sizes{200 * kMiB, 50 * kMiB, 99 * kMiB}}) {
    SCOPED_TRACE(sizes.piece);
    allocator().set_memory_limit(sizes.limit);
    std::vector<Block*> live;
    std::vector<Block*> pieces;
    try {
      while (true) pieces.push_back(allocator().allocate(sizes.piece));
    } catch (const OutOfMemory&) {
    }
    ASSERT_EQ(pieces.size(), static_cast<size_t>(sizes.limit / sizes.piece));
    std::vector<Mark> marks;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i % 2) {
        allocator().free(pieces[i]);
      } else {
        live.push_back(pieces[i]);
        marks.emplace_back(GetParam(), *pieces[i], static_cast<uint8_t>(i + 1));
      }
    }
    const int64_t retries = allocator().stats().retries;
    const int64_t live_bytes = allocator().allocated_bytes();
    Block* wanted = allocator().allocate(sizes.wanted);
    if (!GetParam().is_meta()) {
      runtime_of(GetParam()).fill_bytes(wanted->address, 0xEE, kMiB);
      runtime_of(GetParam())
          .fill_bytes(static_cast<char*>(wanted->address) + wanted->bytes - kMiB, 0xEE, kMiB);
    }
    EXPECT_EQ(allocator().stats().retries, retries + 1);
    EXPECT_EQ(allocator().allocated_bytes(), live_bytes + wanted->bytes);
    EXPECT_LE(allocator().max_reserved_bytes(), sizes.limit);
    for (const Mark& mark : marks) EXPECT_TRUE(mark.intact());
    allocator().free(wanted);
    for (Block* block : live) allocator().free(block);
    allocator().empty_cache();
    allocator().reset_peak_stats();
    EXPECT_EQ(allocator().reserved_bytes(), 0);
  }
}

// A convolution with all its gradients, and how many bytes more it may reserve.
struct Convolution {
  Device device;
  DType dtype = DType::f32;
  MemoryFormat format = MemoryFormat::contiguous;
  Shape x_shape;

  struct Result {
    Tensor y, dx, dw, dbias;
  };

  // What a run takes besides x, w and dy: y, dx and, for a half x, its gradient in f32; the
  // gradients of w and the bias. Each in a segment of its own at worst.
  int64_t own_bytes() const {
    const auto image_bytes = [this](DType of) {
      return segment_bytes_for(
          rounded_bytes(numel_of(x_shape) * static_cast<int64_t>(size_of(of))));
    };
    return 2 * image_bytes(dtype) + (is_half(dtype) ? image_bytes(DType::f32) : 0) +
           kLargeSegmentBytes + kSmallSegmentBytes;
  }

  // Without a limit if spare_bytes < 0.
  Result run(int64_t spare_bytes) const {
    CachingAllocator& allocator = allocator_of(device);
    allocator.empty_cache();  // operands take no part of a larger segment
    const int64_t channels = x_shape[1];
    const TensorOptions options{dtype, device, format};
    const auto filled = [&](const Shape& shape, double range, uint64_t key) {
      Tensor t = empty(shape, options);
      manual_seed(key);
      uniform_(t, -range, range);
      return t;
    };
    Tensor x = filled(x_shape, 1, 1), w = filled({channels, channels, 3, 3}, 0.05, 2);
    Tensor bias = filled({channels}, 1, 3);
    const Tensor dy = filled(x_shape, 1, 4);
    for (Tensor* leaf : {&x, &w, &bias}) leaf->set_requires_grad(true);
    allocator.empty_cache();
    if (spare_bytes >= 0) {
      allocator.set_memory_limit(allocator.reserved_bytes() + own_bytes() + spare_bytes);
    }
    Result out;
    out.y = conv2d(x, w, bias, {.padding = {1, 1}});
    backward(out.y, dy);
    allocator.set_memory_limit(0);
    out.y = out.y.detach();
    out.dx = x.grad();
    out.dw = w.grad();
    out.dbias = bias.grad();
    return out;
  }
};

class SmallWorkspaceCase : public CaseTest {
 protected:
  void TearDown() override {
    if (has_runtime(device())) allocator_of(device()).set_memory_limit(0);
    CaseTest::TearDown();
  }
};
HEADROOM_CASES(SmallWorkspaceCase);

double largest_difference(const Tensor& a, const Tensor& b) {
  const double scale = max(abs(b)).item();
  return max(abs(sub(a, b))).item() / scale;
}

TEST_P(SmallWorkspaceCase, O43_NoRoomForTheFastAlgorithmsWorkspace) {
  // A CPU would take half a minute for the 32 images.
  const int64_t images = device().is_cpu() ? 2 : 32;
  settings().workspace_limit_bytes = kGiB;
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Convolution conv{device(), DType::f32, format, {images, 64, 112, 112}};
    const Convolution::Result free = conv.run(-1);
    for (const int64_t spare : {64 * kMiB, 33 * kMiB}) {
      SCOPED_TRACE(testing::Message() << (format == MemoryFormat::contiguous ? "nchw" : "nhwc")
                                      << ", " << spare / kMiB << " MiB to spare");
      const int64_t steps_before = conv2d_workspace_fallbacks();
      const Convolution::Result tight = conv.run(spare);
      // Three kernels, each with two steps down and a choice of fewer images at a time.
      EXPECT_LE(conv2d_workspace_fallbacks() - steps_before, 12);
      EXPECT_LT(largest_difference(tight.y, free.y), 1e-4);
      EXPECT_LT(largest_difference(tight.dx, free.dx), 1e-4);
      EXPECT_LT(largest_difference(tight.dw, free.dw), 1e-4);
      EXPECT_LT(largest_difference(tight.dbias, free.dbias), 1e-4);
    }
  }
}

// The case at its full size, for every backend, wherever it runs: meta walks the same ladder.
TEST(SmallWorkspaceOnMeta, O43_NoRoomForTheFastAlgorithmsWorkspace) {
  const Settings before = settings();
  settings().workspace_limit_bytes = kGiB;
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda}) {
    for (const bool cudnn : {true, false}) {
      for (const DType dtype : {DType::f32, DType::f16}) {
        for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
          settings().cudnn = cudnn;
          const Convolution conv{Device::meta(type), dtype, format, {32, 64, 112, 112}};
          SCOPED_TRACE(testing::Message()
                       << name_of(conv.device) << (cudnn ? " cudnn " : " native ") << name_of(dtype)
                       << (format == MemoryFormat::contiguous ? " nchw" : " nhwc"));
          const int64_t steps_before = conv2d_workspace_fallbacks();
          EXPECT_NO_THROW(conv.run(64 * kMiB));
          allocator_of(conv.device).set_memory_limit(0);
          // cuDNN would copy f32 images in nchw; half ones find room where the f32 gradient goes.
          const bool is_tight = type == DeviceType::cuda && cudnn && dtype == DType::f32 &&
                                format == MemoryFormat::contiguous;
          EXPECT_EQ(conv2d_workspace_fallbacks() > steps_before, is_tight);
        }
      }
    }
  }
  settings() = before;
}

}  // namespace
}  // namespace headroom::cases
