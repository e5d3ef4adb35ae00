// The index arithmetic of CUDA's batch normalisation, on the host: whatever the shape, every value
// is visited exactly once, by the block whose count says so, and the workspace holds every partial.
#include "core/ops/batch_norm_partition.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/ops/workspace_rules.h"
#include "kernels/cuda/batch_norm_plan.h"

namespace headroom {
namespace {

using cuda::bn::row_sweep;
using cuda::bn::RowSweep;
using cuda::bn::small_plan;
using cuda::bn::SmallLimits;
using cuda::bn::SmallPlan;
using cuda::bn::walk_length;

struct Rows {
  int64_t rows, channels;
  int vector;
};
const Rows kRows[] = {{1, 1, 1},      {2, 8, 8},      {767, 3, 1},    {49, 64, 8},
                      {1000, 24, 8},  {12345, 64, 8}, {3136, 512, 8}, {100, 2048, 8},
                      {333, 4096, 4}, {5, 100000, 1}, {70001, 10, 1}, {97, 36, 4},
                      {9000, 72, 8},  {13000, 33, 1}, {130, 1032, 8}, {1, 131072, 8}};

TEST(BatchNormPartition, AddsEveryRowOfEveryVectorOnceInABlockThatKnowsItsCount) {
  for (const Rows& shape : kRows) {
    const bn::RowPartition cut = bn::row_partition(shape.rows, shape.channels, shape.vector);
    SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.channels << "/" << shape.vector);
    EXPECT_EQ(cut.lanes & (cut.lanes - 1), 0);
    EXPECT_LE(cut.lanes, 32);
    EXPECT_LE(cut.width(), 128);  // the kernels' shared arrays
    EXPECT_EQ(bn::kReduceThreads % cut.width(), 0);
    EXPECT_EQ(cut.slots * cut.lanes, bn::kReduceThreads);
    EXPECT_GE(cut.groups * cut.lanes, cut.vectors);
    if (cut.blocks > 1) {
      EXPECT_LE(cut.groups, bn::kMaxCounters);
      EXPECT_LE(cut.groups * cut.blocks, bn::kReduceBlocks);
    }
    std::vector<int> seen(static_cast<size_t>(cut.rows));
    for (int block = 0; block < cut.blocks; ++block) {
      int64_t count = 0;
      for (int slot = 0; slot < cut.slots; ++slot) {
        const int64_t first = cut.first_row(block) + slot;
        const int64_t length = walk_length(first, cut.step(), cut.rows);
        for (int64_t i = 0; i < length; ++i) ++seen[static_cast<size_t>(first + i * cut.step())];
        count += length;
      }
      ASSERT_EQ(count, cut.rows_of_block(block));
      ASSERT_GT(count, 0);
    }
    for (const int times : seen) ASSERT_EQ(times, 1);
  }
}

TEST(BatchNormPartition, AddsEveryVectorOfAPlaneOnceInABlockThatKnowsItsCount) {
  for (const bn::Extent extent : {bn::Extent{1, 1, 1000000},
                                  {3, 5, 49},
                                  {64, 3, 1024},
                                  {2, 300, 16},
                                  {1, 1, 2},
                                  {7, 132, 8}}) {
    for (const int vector : {1, 8}) {
      if (extent.inner % vector != 0) continue;
      const bn::PlanePartition cut = bn::plane_partition(extent, vector);
      EXPECT_LE(cut.blocks, bn::kReduceThreads);  // one thread per part finishes the sums
      if (cut.blocks > 1) {
        EXPECT_LE(extent.channels, bn::kMaxCounters);
      }
      int64_t total = 0;
      for (int block = 0; block < cut.blocks; ++block) {
        int64_t vectors = 0;
        for (int thread = 0; thread < bn::kReduceThreads; ++thread) {
          vectors +=
              walk_length(static_cast<int64_t>(block) * bn::kReduceThreads + thread,
                          static_cast<int64_t>(cut.blocks) * bn::kReduceThreads, cut.vectors());
        }
        ASSERT_EQ(vectors * vector, cut.count_of_block(block));
        ASSERT_GT(vectors, 0);
        total += vectors * vector;
      }
      EXPECT_EQ(total, extent.count());
    }
  }
}

TEST(BatchNormPartition, WalksEveryVectorOfAChannelOnce) {
  for (const bn::Extent extent :
       {bn::Extent{3, 5, 49}, {2000, 2, 8}, {1, 1, 100000}, {64, 3, 1024}, {5, 300, 16}}) {
    for (const int vector : {1, 8}) {
      if (extent.inner % vector != 0) continue;
      const bn::PlanePartition cut = bn::plane_partition(extent, vector);
      const int64_t channel = extent.channels - 1;
      std::vector<int> seen(static_cast<size_t>(extent.numel()));
      for (int block = 0; block < cut.blocks; ++block) {
        for (int thread = 0; thread < bn::kReduceThreads; ++thread) {
          cuda::bn::PlaneWalk walk(cut, channel, block, thread);
          for (int i = 0; i < walk.count; ++i) {
            ++seen[static_cast<size_t>(walk.offset(vector))];
            walk.advance();
          }
        }
      }
      for (int64_t i = 0; i < extent.numel(); ++i) {
        const bool begins = i / extent.inner % extent.channels == channel && i % vector == 0;
        ASSERT_EQ(seen[static_cast<size_t>(i)], begins ? 1 : 0) << i;
      }
    }
  }
}

TEST(BatchNormPartition, SweepsEveryRowOnce) {
  for (const Rows& shape : kRows) {
    const RowSweep sweep = row_sweep(shape.rows, shape.channels, shape.vector, 512, 264);
    EXPECT_GE(sweep.groups * sweep.lanes, sweep.vectors);
    EXPECT_LT((sweep.groups - 1) * sweep.lanes, sweep.vectors);
    EXPECT_LE(sweep.lanes * sweep.slots, 512);
    EXPECT_GE(sweep.slots, 1);
    int64_t total = 0;
    for (int64_t block = 0; block < sweep.blocks; ++block) {
      for (int slot = 0; slot < sweep.slots; ++slot) {
        total += walk_length(block * sweep.slots + slot, sweep.step(), sweep.rows);
      }
    }
    EXPECT_EQ(total, shape.rows);
  }
}

TEST(BatchNormPartition, GivesClustersWholeRowsThatFitIntoSharedMemory) {
  int fitted = 0;
  for (const Rows& shape : kRows) {
    for (const int tensors : {1, 2}) {
      const SmallPlan plan =
          small_plan(shape.rows, shape.channels, shape.vector, shape.vector == 4 ? 4 : 2, tensors);
      if (plan.cluster == 0) continue;
      ++fitted;
      EXPECT_LE(plan.shared_bytes, cuda::bn::kWideSharedBytes);
      EXPECT_LE(plan.width(), 64);  // the kernels' shared arrays
      EXPECT_EQ(plan.lanes * plan.slots, cuda::bn::kSmallThreads);
      EXPECT_GE(plan.groups * plan.lanes, plan.vectors);
      int64_t total = 0;
      for (int rank = 0; rank < plan.cluster; ++rank) total += plan.rows_of_rank(rank);
      EXPECT_EQ(total, shape.rows);
      EXPECT_GT(plan.rows_of_rank(0), 0);  // sums run about the first block's mean
    }
  }
  EXPECT_GT(fitted, 10);
}

TEST(BatchNormPartition, TakesOneLaunchForTheLastLayersOfSmallResNets) {
  // 64 images of 4x4x512 and of 8x8x256, f16, forward; 64 images of 7x7x2048.
  EXPECT_GT(small_plan(1024, 512, 8, 2, 1).cluster, 0);
  EXPECT_GT(small_plan(4096, 256, 8, 2, 1).cluster, 0);
  EXPECT_GT(small_plan(3136, 2048, 8, 2, 1).cluster, 0);
  EXPECT_EQ(small_plan(64 * 112 * 112, 64, 8, 2, 1).cluster, 0);
}

TEST(BatchNormPartition, TakesNoClusterWhereTheDeviceHasNone) {
  const SmallLimits old{1, 80 * 1024};
  const SmallPlan plan = small_plan(1024, 512, 8, 2, 1, old);
  EXPECT_EQ(plan.cluster, 1);
  EXPECT_LE(plan.shared_bytes, old.shared_bytes);
  EXPECT_EQ(small_plan(40000, 512, 8, 2, 1, old).cluster, 0);
}

TEST(BatchNormPartition, AsksForTheSameBytesWhateverTheAddresses) {
  for (const DType dtype : {DType::f16, DType::f32}) {
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      View x;
      x.shape = {8, 64, 16, 16};
      x.strides = dense_strides(x.shape, format);
      x.dtype = dtype;
      x.format = format;
      x.defined = true;
      const bn::Extent extent = bn::extent_of(x);
      const int64_t bytes = rules::cuda_batch_norm_workspace_bytes(x);
      for (const int vector : {1, bn::widest_vector(dtype)}) {
        const int64_t partials =
            extent.is_rows() ? bn::row_partition(extent.outer, extent.channels, vector).partials()
                             : bn::plane_partition(extent, vector).partials();
        EXPECT_GE(bytes, 8 * (partials + extent.channels));
      }
      EXPECT_LE(bytes, 1 << 20);
    }
  }
}

TEST(BatchNormPartition, AsksForNothingForAnEmptyBatch) {
  View x;
  x.shape = {0, 64, 16, 16};
  x.strides = dense_strides(x.shape, MemoryFormat::channels_last);
  x.format = MemoryFormat::channels_last;
  EXPECT_EQ(rules::cuda_batch_norm_workspace_bytes(x), 0);
}

}  // namespace
}  // namespace headroom
