// CUDA against the CPU on shapes that reach each way a CUDA kernel has of doing its work: packs and
// tails, rows of packs, transposed tiles, two-stage sums and several launches for one list.
// Skipped, visibly, without a GPU.
#include <vector>

#include "tests/kernels/kernel_test.h"

namespace headroom::testing_kernels {
namespace {

constexpr DType kHalfAndSingle[] = {DType::f16, DType::bf16, DType::f32};

class CudaPaths : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_runtime(Device::cuda())) GTEST_SKIP() << "no cuda on this machine";
  }
  // fn(device) makes its operands there, runs a slot and returns the result.
  template <class Fn>
  static void expect_same(Fn&& fn, double units = 2, double scale = 0) {
    expect_near(fn(Device::cuda()), values_of(fn(Device::cpu())), units, scale);
  }
  static Tensor make(Device device, const Shape& shape, DType dtype, uint64_t seed = 1,
                     MemoryFormat format = MemoryFormat::contiguous, double low = -2,
                     double high = 2) {
    return from_vector(test_values(numel_of(shape), low, high, seed), shape,
                       {dtype, device, format});
  }
  // The same values, starting `offset` elements into their storage.
  static Tensor shifted(const Tensor& x, int64_t offset) {
    const Tensor room = full({x.numel() + offset}, NAN, {x.dtype(), x.device()});
    const Tensor out = strided(room, x.shape(), x.strides(), offset);
    slots::copy(x, out);
    return out;
  }
};

TEST_F(CudaPaths, ElementwiseSizesAroundPacksAndBlocks) {
  for (const int64_t size : {1, 7, 8, 9, 4095, 4096, 4097, 100003}) {
    for (const int64_t offset : {0, 1, 8}) {
      for (const DType dtype : kHalfAndSingle) {
        for (int op = 0; op < 4; ++op) {
          expect_same(
              [&](Device device) {
                const Tensor x = shifted(make(device, {size}, dtype), offset);
                const Tensor y = shifted(make(device, {size}, dtype, 2), offset);
                if (op == 0) slots::unary(UnaryOp::silu, 0, x, y);
                if (op == 1) slots::unary_backward(UnaryOp::tanh, 0, y, x, y);
                if (op == 2) slots::binary(BinaryOp::sub, y, x, y);
                if (op == 3) slots::dropout(0.3, 5, 7, x, y);
                return y;
              },
              2, 8);
        }
      }
    }
  }
}

TEST_F(CudaPaths, HalfGradientsAccumulateIntoSingle) {
  for (const int64_t size : {1, 8, 1003, 70000}) {
    for (const DType half : {DType::f16, DType::bf16}) {
      expect_same(
          [&](Device device) {
            const Tensor sum = make(device, {size}, DType::f32);
            slots::binary(BinaryOp::add, sum, make(device, {size}, half, 2), sum);
            return sum;
          },
          1);
    }
  }
}

TEST_F(CudaPaths, BroadcastRowsInPacksAndWithout) {
  for (const int64_t channels : {3, 16, 64}) {
    for (const MemoryFormat format : kFormats) {
      for (const DType dtype : kHalfAndSingle) {
        const Shape shape{3, channels, 5, 8};
        expect_same(
            [&](Device device) {
              const Tensor x = make(device, shape, dtype, 1, format);
              const Tensor bias = make(device, {channels}, dtype, 2);
              const Tensor column = make(device, {3}, dtype, 3);
              const Tensor y = empty_like(x);
              slots::binary(BinaryOp::mul, x, strided(bias, shape, {0, 1, 0, 0}), y);
              slots::binary(BinaryOp::add, y, strided(column, shape, {1, 0, 0, 0}), y);
              return y;
            },
            2, 2);
      }
    }
  }
}

TEST_F(CudaPaths, CopiesOfRowsTilesAndConversions) {
  const Shape image{3, 72, 33, 40};
  for (const DType from : {DType::f32, DType::f16}) {
    for (const DType to : kHalfAndSingle) {
      expect_same(
          [&](Device device) {
            const Tensor nchw = make(device, image, from);
            const Tensor nhwc = empty(image, {to, device, MemoryFormat::channels_last});
            const Tensor back = empty(image, {to, device});
            slots::copy(nchw, nhwc);
            slots::copy(nhwc, back);
            return back;
          },
          1);
      expect_same(
          [&](Device device) {  // the middle channels of wider pixels
            const Tensor wide = make(device, {50, 64}, from);
            const Tensor out = full({50, 24}, NAN, {to, device});
            slots::copy(strided(wide, {50, 16}, {64, 1}, 32), strided(out, {50, 16}, {24, 1}, 8));
            slots::fill(0.5, strided(out, {50, 8}, {24, 1}, 0));
            return strided(out, {50, 24}, {24, 1});
          },
          1);
    }
  }
  expect_same([&](Device device) {
    std::vector<int64_t> values(1003);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i) - 500;
    const Tensor labels = from_vector(values, {17, 59}, {DType::i64, device});
    const Tensor out = empty({59, 17}, {DType::f32, device});
    slots::copy(strided(labels, {59, 17}, {1, 59}), out);
    return out;
  });
}

TEST_F(CudaPaths, ReductionsInOneStageAndInTwo) {
  struct Case {
    Shape shape;
    Shape out;
    MemoryFormat format = MemoryFormat::contiguous;
  };
  const MemoryFormat nhwc = MemoryFormat::channels_last;
  for (const Case& c :
       {Case{{30000, 64}, {1, 64}}, Case{{30000, 10}, {1, 10}}, Case{{9, 1000}, {1, 1000}},
        Case{{1000001}, {1}}, Case{{1000000}, {1}}, Case{{3, 300000}, {3, 1}},
        Case{{2, 8, 1500}, {1, 8, 1}}, Case{{4, 256, 7, 7}, {4, 256, 1, 1}, nhwc},
        Case{{4, 30, 7, 7}, {4, 30, 1, 1}}, Case{{8, 24, 40, 40}, {1, 24, 1, 1}},
        Case{{8, 24, 40, 40}, {1, 24, 1, 1}, nhwc}, Case{{70000, 3}, {70000, 1}},
        Case{{2000, 1024}, {2000, 1}}, Case{{20, 9000}, {20, 1}}}) {
    for (const DType dtype : {DType::f16, DType::f32}) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
        const double count =
            static_cast<double>(numel_of(c.shape)) / static_cast<double>(numel_of(c.out));
        expect_same(
            [&](Device device) {
              const Tensor y = full(c.out, NAN, {DType::f32, device});
              slots::reduce(op, make(device, c.shape, dtype, 1, c.format, 0, 1), y);
              return y;
            },
            16, op == ReduceOp::sum ? count : 1);
      }
    }
  }
}

TEST_F(CudaPaths, ReductionsGiveTheSameBitsTwice) {
  const Tensor x = make(Device::cuda(), {20000, 50}, DType::f32);
  const auto sums = [&] {
    const Tensor columns = zeros({1, 50}, {DType::f32, Device::cuda()});
    const Tensor all = zeros({1, 1}, {DType::f32, Device::cuda()});
    slots::reduce(ReduceOp::sum, x, columns);
    slots::reduce(ReduceOp::sum, x, all);
    std::vector<float> out = columns.to_vector<float>();
    out.push_back(all.to_vector<float>()[0]);
    return out;
  };
  EXPECT_EQ(sums(), sums());
}

TEST_F(CudaPaths, PoolingOfEveryWindowThatHasItsOwnKernel) {
  struct Case {
    Shape shape;
    Shape out;
    Pool2dParams params;
  };
  const std::vector<Case> cases = {
      {{2, 16, 15, 18}, {2, 16, 8, 9}, {{3, 3}, {2, 2}, {1, 1}}},
      {{2, 16, 14, 18}, {2, 16, 7, 9}, {{2, 2}, {2, 2}}},
      {{2, 6, 13, 17}, {2, 6, 7, 9}, {{2, 2}, {2, 2}}},  // ceil mode overhangs
      {{2, 8, 13, 17}, {2, 8, 4, 5}, {{3, 2}, {3, 4}, {1, 1}, {2, 1}}},
      {{1, 8, 40, 41}, {1, 8, 21, 22}, {{20, 20}, {1, 1}}},  // offsets beyond u8
  };
  for (const Case& c : cases) {
    const bool wide = c.params.kernel[0] * c.params.kernel[1] > 255;
    for (const MemoryFormat format : kFormats) {
      for (const DType dtype : {DType::f16, DType::f32}) {
        const auto run = [&](Device device, int result) {
          const Tensor x = make(device, c.shape, dtype, 1, format);
          const Tensor y = empty(c.out, {dtype, device, format});
          const Tensor places = empty(c.out, {wide ? DType::i64 : DType::u8, device, format});
          const Tensor dx = empty(c.shape, {dtype, device, format});
          slots::max_pool2d(x, c.params, y, places);
          slots::max_pool2d_backward(y, places, c.params, dx);
          return result == 0 ? y : result == 1 ? places : dx;
        };
        for (const int result : {0, 1, 2}) {
          expect_same([&](Device device) { return run(device, result); }, 2, 40);
        }
        Pool2dParams average = c.params;
        average.dilation = {1, 1};
        for (const bool count_padding : {false, true}) {
          average.count_padding = count_padding;
          expect_same(
              [&](Device device) {
                const Tensor y = empty(c.out, {dtype, device, format});
                slots::avg_pool2d(make(device, c.shape, dtype, 1, format), average, y);
                return y;
              },
              4, 40);
          expect_same(
              [&](Device device) {
                const Tensor dx = empty(c.shape, {dtype, device, format});
                slots::avg_pool2d_backward(make(device, c.out, dtype, 2, format), average, dx);
                return dx;
              },
              4, 40);
        }
      }
    }
  }
}

TEST_F(CudaPaths, RowsOfAWarpAndOfABlock) {
  for (const int64_t columns : {1, 10, 33, 1024, 1025, 5000}) {
    const int64_t rows = 37;
    for (const DType dtype : {DType::f16, DType::f32}) {
      std::vector<int64_t> values(static_cast<size_t>(rows));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = i % 5 == 3 ? -100 : static_cast<int64_t>(i * 7919) % columns;
      }
      const CrossEntropyParams params{.label_smoothing = 0.1};
      const auto run = [&](Device device, int result) {
        const Tensor logits =
            make(device, {rows, columns}, dtype, 3, MemoryFormat::contiguous, -8, 8);
        const Tensor labels = from_vector(values, {rows}, {DType::i64, device});
        const TensorOptions single{DType::f32, device};
        const Tensor row_loss = empty({rows}, single), lse = empty({rows}, single);
        const Tensor loss = empty({}, single), counted = empty({}, single);
        const Tensor dx = empty_like(logits);
        slots::cross_entropy(logits, labels, params, row_loss, lse, loss, counted);
        if (result == 0) return loss;
        if (result == 1) return row_loss;
        // The outputs that the backward kernels are given are the same numbers on both devices.
        const Tensor dy = make(device, {rows, columns}, dtype, 4);
        const Tensor y = make(device, {rows, columns}, dtype, 5, MemoryFormat::contiguous, -4, 0);
        if (result == 2) {
          slots::cross_entropy_backward(logits, labels, lse, counted, loss, params, dx);
        } else if (result == 3) {
          slots::softmax(logits, dx);
        } else if (result == 4) {
          slots::log_softmax(logits, dx);
        } else if (result == 5) {
          slots::softmax_backward(y, dy, dx);
        } else {
          slots::log_softmax_backward(y, dy, dx);
        }
        return dx;
      };
      for (int result = 0; result < 7; ++result) {
        expect_same([&](Device device) { return run(device, result); }, 8, 64 + 4.0 * columns);
      }
    }
  }
}

// A network's worth of tensors, more than one launch takes.
struct Network {
  ViewList parameters, gradients, first, second, halves;
  std::vector<Tensor> tensors;  // keeps the views alive

  const Tensor& keep(ViewList& list, Tensor tensor) {
    list.push_back(tensor);
    return tensors.emplace_back(std::move(tensor));
  }
};

TEST_F(CudaPaths, OptimizersOverMoreTensorsThanALaunchTakes) {
  constexpr int kTensors = 1400;
  const auto run = [&](Device device, bool adam) {
    Network network;
    for (int i = 0; i < kTensors; ++i) {
      const auto seed = static_cast<uint64_t>(i + 1);
      const int64_t size = i % 100 == 0 ? 9001 : i % 17 + 1;
      const DType gradient = i % 3 == 0 ? DType::f32 : DType::f16;
      Tensor parameter = make(device, {size}, DType::f32, seed);
      if (i % 7 == 0) parameter = shifted(parameter, 3);
      network.keep(network.parameters, parameter);
      network.keep(network.gradients, make(device, {size}, gradient, seed + 5000));
      network.keep(network.first, make(device, {size}, DType::f32, seed + 10000));
      network.keep(network.second,
                   make(device, {size}, DType::f32, seed + 15000, MemoryFormat::contiguous, 0, 1));
      if (i % 2 == 0) {
        network.keep(network.halves, empty({size}, {DType::f16, device}));
      } else {
        network.halves.push_back(View{});
      }
    }
    // A gradient that lies in another order than its parameter.
    const Shape image{4, 3, 2, 5};
    network.keep(network.parameters, make(device, image, DType::f32, 1));
    network.keep(network.gradients,
                 make(device, image, DType::f32, 2, MemoryFormat::channels_last));
    network.keep(network.first, make(device, image, DType::f32, 3));
    network.keep(network.second,
                 make(device, image, DType::f32, 4, MemoryFormat::contiguous, 0, 1));
    network.halves.push_back(View{});

    Values fields(kControlFields, 1);
    fields[kLr] = 0.1;
    fields[kInvScale] = 0.25;
    fields[kFoundInf] = 0;
    fields[kBias1] = 0.5;
    fields[kBias2] = 0.25;
    const Tensor control = from_vector(fields, {kControlFields}, {DType::f32, device});
    slots::clip_norm(network.gradients, 3.0, control);
    slots::check_finite(network.gradients, control);
    if (adam) {
      slots::adam_step(network.parameters, network.gradients, network.first, network.second,
                       network.halves, control, {.weight_decay = 0.01, .decoupled = true});
    } else {
      slots::sgd_step(network.parameters, network.gradients, network.first, network.halves, control,
                      {.momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
    }
    Values all = values_of(control);
    for (const Tensor& tensor : network.tensors) {
      const Values values = values_of(tensor);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  for (const bool adam : {false, true}) {
    const Values expected = run(Device::cpu(), adam), got = run(Device::cuda(), adam);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      // Half copies may round the other way where the updates differ in the last bit.
      ASSERT_NEAR(got[i], expected[i], 1e-3 * std::abs(expected[i]) + 1e-5) << i;
    }
  }
}

TEST_F(CudaPaths, ASkippedStepAndAnOverflowInTheLastElement) {
  const Device device = Device::cuda();
  const Tensor parameter = ones({70001}, {DType::f32, device});
  Values values(70001, 1);
  values.back() = INFINITY;
  const Tensor gradient = from_vector(values, {70001}, {DType::f16, device});
  const Tensor momentum = zeros({70001}, {DType::f32, device});
  const Tensor control = zeros({kControlFields}, {DType::f32, device});
  slots::check_finite({gradient.view()}, control);
  EXPECT_EQ(control.to_vector<float>()[kFoundInf], 1.0f);
  slots::sgd_step({parameter.view()}, {gradient.view()}, {momentum.view()}, {}, control,
                  {.momentum = 0.9});
  EXPECT_EQ(parameter.to_vector<float>(), std::vector<float>(70001, 1.0f));
  EXPECT_EQ(momentum.to_vector<float>(), std::vector<float>(70001, 0.0f));
}

}  // namespace
}  // namespace headroom::testing_kernels
