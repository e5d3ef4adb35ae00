// The CUDA runtime: memory, copies, events, and the ways in which errors of the device come to
// light. Skipped, visibly, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/process.h"
#include "core/base/settings.h"
#include "core/memory/caching_allocator.h"
#include "core/ops/contract.h"
#include "core/tensor/tensor.h"

#ifdef HEADROOM_WITH_CUDA
#include "kernels/cuda/cuda_common.h"
#endif

namespace headroom {
namespace {

class CudaRuntime : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_runtime(Device::cuda())) GTEST_SKIP() << "no cuda on this machine";
  }
  DeviceRuntime& runtime() const { return runtime_of(Device::cuda()); }
};

// Operands of cross_entropy for zero logits.
struct Batch {
  Batch(const std::vector<int64_t>& values, int64_t classes)
      : logits(zeros({static_cast<int64_t>(values.size()), classes}, cuda())),
        labels(from_vector(values, {static_cast<int64_t>(values.size())},
                           {DType::i64, Device::cuda()})),
        row_loss(zeros(labels.shape(), cuda())),
        lse(zeros(labels.shape(), cuda())),
        loss(zeros({}, cuda())),
        counted(zeros({}, cuda())) {}
  void run() const { slots::cross_entropy(logits, labels, {}, row_loss, lse, loss, counted); }
  static TensorOptions cuda() { return {DType::f32, Device::cuda()}; }

  Tensor logits, labels, row_loss, lse, loss, counted;
};

template <class Fn>
std::string message_of(Fn&& fn) {
  try {
    fn();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST_F(CudaRuntime, NamesTheGpuAndTheVersions) {
  const std::string text = runtime().description();
  for (const char* part : {"driver", "CUDA runtime", "cuDNN"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST_F(CudaRuntime, KnowsWhatThisProcessHoldsAndCountsItToNoOther) {
  const std::optional<int64_t> before = runtime().process_bytes();
  if (!before) GTEST_SKIP() << "the driver does not list this process, as in a container";
  constexpr int64_t kBytes = int64_t{64} << 20;  // whole pages, so the driver takes no more
  void* segment = runtime().acquire(kBytes);
  ASSERT_NE(segment, nullptr);
  const std::optional<int64_t> after = runtime().process_bytes();
  runtime().release(segment, kBytes);
  ASSERT_TRUE(after);
  EXPECT_EQ(*after - *before, kBytes);
  EXPECT_GT(*before, memory_reserved(Device::cuda())) << "the context takes something as well";
  const std::string own = " " + std::to_string(own_pid()) + " ";
  const std::string others = runtime().describe_other_users();
  EXPECT_FALSE(others.empty());
  EXPECT_EQ(others.find(own), std::string::npos) << others;
}

#ifdef HEADROOM_WITH_CUDA
TEST_F(CudaRuntime, SaysWhoHoldsTheGpuWhereThatMayBeWhyACallFailed) {
  const auto message = [](cudaError_t status) {
    try {
      cuda::throw_cuda_error(status, "a call");
    } catch (const DeviceError& error) {
      return std::string(error.what());
    }
  };
  std::string users = runtime().describe_other_users();
  users.resize(std::min(users.size(), users.find_first_of("0123456789")));  // bytes may change
  const std::string full = message(cudaErrorMemoryAllocation);
  EXPECT_NE(full.find("; device has "), std::string::npos) << full;
  EXPECT_NE(full.find(", " + users), std::string::npos) << full;
  EXPECT_EQ(message(cudaErrorInvalidValue).find("device has"), std::string::npos);
}
#endif

TEST_F(CudaRuntime, SegmentsAreAlignedAndRefusedWhenTheDeviceIsTooSmall) {
  void* segment = runtime().acquire(2 << 20);
  ASSERT_NE(segment, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(segment) % 512, 0u);
  runtime().release(segment, 2 << 20);
  EXPECT_EQ(runtime().acquire(runtime().memory_info().total_bytes * 2), nullptr);
  // The refusal leaves nothing behind that a later call would trip over.
  runtime().check_async_error();
  runtime().synchronize();
}

// Two neighbouring pages in the middle of a range, which kernels use as one piece of memory.
TEST_F(CudaRuntime, PagesAreMappedIntoARangeAndGivenBackAfterTheWorkOnThem) {
  constexpr int64_t kPage = 20 << 20;
  const int64_t granularity = runtime().page_granularity();
  if (granularity == 0) GTEST_SKIP() << "this GPU or driver has no virtual memory";
  ASSERT_EQ(kPage % granularity, 0);
  constexpr int64_t kRange = 16 * kPage;
  auto* range = static_cast<char*>(runtime().reserve_range(kRange));
  ASSERT_NE(range, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(range) % 512, 0u);
  char* pages = range + 3 * kPage;
  const int64_t free_before = runtime().memory_info().free_bytes;
  for (int round = 0; round < 2; ++round) {  // addresses can be used again
    ASSERT_TRUE(runtime().map_page(pages, kPage));
    ASSERT_TRUE(runtime().map_page(pages + kPage, kPage));
    EXPECT_LE(runtime().memory_info().free_bytes, free_before - 2 * kPage);
    runtime().fill_bytes(pages, 7, 2 * kPage);
    runtime().copy_within(pages, pages + kPage, kPage);
    std::vector<uint8_t> back(4096, 0);
    runtime().copy_to_host(back.data(), pages + kPage - 2048, 4096);  // across the border
    EXPECT_EQ(back, std::vector<uint8_t>(4096, 7));
    for (int i = 0; i < 100; ++i) runtime().fill_bytes(pages, 8, 2 * kPage);
    // The fills are still under way: they must end before their pages go.
    runtime().unmap_page(pages, kPage);
    runtime().unmap_page(pages + kPage, kPage);
    runtime().check_async_error();
    // The driver may keep page tables, but neither of the pages.
    EXPECT_GT(runtime().memory_info().free_bytes, free_before - kPage);
  }
  runtime().release_range(range, kRange);
  runtime().synchronize();
}

TEST_F(CudaRuntime, APageIsRefusedWhenTheDeviceIsFull) {
  const int64_t granularity = runtime().page_granularity();
  if (granularity == 0) GTEST_SKIP() << "this GPU or driver has no virtual memory";
  const int64_t total = runtime().memory_info().total_bytes / granularity * granularity;
  void* range = runtime().reserve_range(2 * total);
  ASSERT_NE(range, nullptr);
  EXPECT_FALSE(runtime().map_page(range, 2 * total));
  runtime().check_async_error();
  // Nothing of it stays behind.
  ASSERT_TRUE(runtime().map_page(range, granularity));
  runtime().unmap_page(range, granularity);
  runtime().release_range(range, 2 * total);
}

TEST_F(CudaRuntime, PinnedMemoryReachesTheDeviceOnBothStreams) {
  constexpr int64_t kBytes = 1 << 16;
  auto* pinned = static_cast<uint8_t*>(runtime().host_acquire(kBytes));
  void* device = runtime().acquire(kBytes);
  for (const Stream stream : {Stream::compute, Stream::copy}) {
    const uint8_t mark = stream == Stream::compute ? 17 : 99;
    std::fill(pinned, pinned + kBytes, mark);
    const EventHandle copied = runtime().create_event();
    runtime().copy_to_device(device, pinned, kBytes, stream);
    runtime().record_event(copied, stream);
    runtime().wait_event(copied, Stream::compute);
    std::vector<uint8_t> back(kBytes, 0);
    runtime().copy_to_host(back.data(), device, kBytes);
    EXPECT_EQ(back, std::vector<uint8_t>(kBytes, mark));
    runtime().destroy_event(copied);
  }
  runtime().release(device, kBytes);
  runtime().host_release(pinned);
}

TEST_F(CudaRuntime, CopiesToPinnedMemoryAreDoneWhenTheirEventIs) {
  constexpr int64_t kCount = 1 << 22, kBytes = kCount * 4;
  auto* pinned = static_cast<float*>(runtime().host_acquire(kBytes));
  const EventHandle computed = runtime().create_event(), copied = runtime().create_event();
  for (const Stream stream : {Stream::copy, Stream::compute}) {
    std::fill(pinned, pinned + kCount, -1.0f);
    const Tensor x = zeros({kCount}, Batch::cuda());
    for (int i = 0; i < 8; ++i) slots::unary(UnaryOp::add_scalar, 1, x, x);
    runtime().record_event(computed, Stream::compute);
    runtime().wait_event(computed, stream);
    runtime().queue_copy_to_host(pinned, x.view().data, kBytes, stream);
    runtime().record_event(copied, stream);
    // What overwrites the source waits for the copy.
    runtime().wait_event(copied, Stream::compute);
    slots::fill(-2, x);
    runtime().synchronize_event(copied);
    EXPECT_EQ(std::count(pinned, pinned + kCount, 8.0f), kCount);
  }
  runtime().destroy_event(computed);
  runtime().destroy_event(copied);
  runtime().host_release(pinned);
}

TEST_F(CudaRuntime, EventsTimeTheComputeStream) {
  const EventHandle begin = runtime().create_event(), end = runtime().create_event();
  const Tensor x = zeros({1 << 22}, Batch::cuda());
  runtime().record_event(begin, Stream::compute);
  for (int i = 0; i < 4; ++i) slots::unary(UnaryOp::add_scalar, 1, x, x);
  runtime().record_event(end, Stream::compute);
  runtime().synchronize_event(end);
  EXPECT_GT(runtime().elapsed_ms(begin, end), 0.0f);
  EXPECT_EQ(x.to_vector<float>()[12345], 4.0f);
  runtime().destroy_event(begin);
  runtime().destroy_event(end);
}

TEST_F(CudaRuntime, ABadLabelIsReportedAtTheNextWaitAndTheContextLives) {
  const Batch bad({3, 10, 2}, 10);
  bad.run();
  // An unrelated product runs in between and must not be blamed.
  const Tensor a = ones({4, 4}, Batch::cuda()), product = zeros({4, 4}, Batch::cuda());
  slots::binary(BinaryOp::mul, a, a, product);
  const std::string message = message_of([&] { product.to_vector<float>(); });
  for (const char* part : {"cross_entropy", "label 10", "row 1", "10 classes"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  // Reported once.
  EXPECT_EQ(product.to_vector<float>()[5], 1.0f);
  const Batch good({3, 9, 2}, 10);
  good.run();
  EXPECT_NEAR(good.loss.item(), 2.3025851, 1e-6);
  EXPECT_EQ(good.counted.item(), 3.0);
}

TEST_F(CudaRuntime, TheFirstBadRowIsReportedAndBadRowsDoNotCount) {
  std::vector<int64_t> values(5000, 1);
  values[4321] = -7;
  values[1234] = 99;
  values[77] = -100;  // ignored, not bad
  const Batch batch(values, 10);
  batch.run();
  const std::string message = message_of([&] { runtime().synchronize(); });
  EXPECT_NE(message.find("row 1234 has label 99"), std::string::npos) << message;
  EXPECT_EQ(batch.counted.item(), 4997.0);
  EXPECT_EQ(batch.row_loss.to_vector<float>()[1234], 0.0f);
}

TEST_F(CudaRuntime, EveryWaitReportsABadLabel) {
  const EventHandle event = runtime().create_event();
  const auto reports = [&](auto&& wait) {
    Batch({10}, 10).run();
    runtime().record_event(event, Stream::compute);
    return message_of(wait).find("cross_entropy") != std::string::npos;
  };
  EXPECT_TRUE(reports([&] { runtime().synchronize(); }));
  EXPECT_TRUE(reports([&] { runtime().synchronize_event(event); }));
  float value = 0;
  const Tensor source = zeros({1}, Batch::cuda());
  EXPECT_TRUE(reports([&] { runtime().copy_to_host(&value, source.view().data, sizeof(value)); }));
  // Without waiting it shows as soon as the kernel is done.
  EXPECT_TRUE(reports([&] {
    for (int i = 0; i < 1000; ++i) {
      runtime().check_async_error();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }));
  runtime().destroy_event(event);
}

TEST_F(CudaRuntime, BlockingLaunchesReportAtTheKernelItself) {
  settings().launch_blocking = true;
  const Batch bad({10}, 10);
  const std::string message = message_of([&] { bad.run(); });
  settings().launch_blocking = false;
  EXPECT_NE(message.find("cross_entropy"), std::string::npos) << message;
}

TEST_F(CudaRuntime, AGatheredIndexOutsideTheTableIsReported) {
  const TensorOptions bytes{DType::u8, Device::cuda()};
  const Tensor table = full({4, 48}, 7, bytes), rows = full({3, 48}, 1, bytes);
  const Tensor index =
      from_vector(std::vector<int64_t>{0, 4, 3}, {3}, {DType::i64, Device::cuda()});
  slots::gather_rows(table, index, rows);
  const std::string message = message_of([&] { runtime().synchronize(); });
  for (const char* part : {"gather_rows", "[0, 4)", "entry 1", "4"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  const auto stored = rows.to_vector<uint8_t>();
  EXPECT_EQ(stored[0], 7);
  EXPECT_EQ(stored[48], 0);
  EXPECT_EQ(stored[96], 7);
}

// Writes where nothing lies, which ends the process's context: each time in a process of its own.
// Its standard error says what was thrown, and where.
void write_to_nowhere(bool blocking) {
  settings().launch_blocking = blocking;
  const Tensor x = zeros({4}, {DType::f32, Device::cuda()});
  View nowhere = x.view();
  nowhere.data = reinterpret_cast<void*>(uintptr_t{512});
  const PathScope path("blocks.3");
  const PhaseScope phase(Phase::forward);
  const OpScope op("broken");
  const char* at = "the launch";
  try {
    slots::fill(1.5, nowhere);
    at = "the wait";
    runtime_of(Device::cuda()).synchronize();
  } catch (const DeviceError& error) {
    std::fprintf(stderr, "at %s: %s\n", at, error.what());
    std::_Exit(3);  // no destructor would find a device that works
  }
  std::_Exit(0);
}

using CudaRuntimeDeathTest = CudaRuntime;

TEST_F(CudaRuntimeDeathTest, AFaultNamesTheKernelsThatItMayBeOf) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(write_to_nowhere(false), testing::ExitedWithCode(3),
              "at the wait: .*cudaErrorIllegalAddress.* any of the [0-9]+ launched since .*"
              "fill of blocks.3 \\(forward\\).*HEADROOM_LAUNCH_BLOCKING=1");
}

TEST_F(CudaRuntimeDeathTest, AFaultOfABlockingLaunchNamesItsOp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(write_to_nowhere(true), testing::ExitedWithCode(3),
              "at the launch: fill: the kernel failed: cudaErrorIllegalAddress.*op broken of "
              "blocks.3 \\(forward\\)");
}

}  // namespace
}  // namespace headroom
